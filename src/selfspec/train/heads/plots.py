"""Plots of a run: losses and held-out acceptance against the tokens that were read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selfspec.train.heads.progress import History

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def plot(out: Path, curves: Sequence[str] = ()) -> list[Path]:
    """Write ``loss.svg`` and ``alpha.svg`` from the history in ``out``; needs matplotlib.

    ``curves`` are names of the losses; without them they are called by head and step.
    """
    lines = History.read(out / "history.jsonl")
    steps = [line for line in lines if line["kind"] == "step"]
    evaluations = [line for line in lines if line["kind"] == "evaluation" and line["heads"]]
    found = [_drawn(out / "loss.svg", "loss", _named(_losses(steps), curves))] if steps else []
    return [*found, _drawn(out / "alpha.svg", "acceptance", _acceptance(evaluations))] if evaluations else found


def _losses(steps: Sequence[dict[str, Any]]) -> dict[str, tuple[list[float], list[float]]]:
    """Means over some steps, by head and step of the roll-out."""
    size = max(1, len(steps) // 200)
    groups = [steps[start : start + size] for start in range(0, len(steps), size)]
    tokens = [float(group[-1]["tokens"]) for group in groups]
    return {
        f"head {h}, step {s}": (
            tokens,
            [sum(line["loss"][h][s] for line in group) / len(group) for group in groups],
        )
        for h, losses in enumerate(steps[0]["loss"])
        for s in range(len(losses))
    }


def _named(
    found: dict[str, tuple[list[float], list[float]]], names: Sequence[str]
) -> dict[str, tuple[list[float], list[float]]]:
    return dict(zip(names, found.values(), strict=True)) if names else found


def _acceptance(evaluations: Sequence[dict[str, Any]]) -> dict[str, tuple[list[float], list[float]]]:
    found: dict[str, tuple[list[float], list[float]]] = {}
    for line in evaluations:
        for name, kinds in line["heads"].items():
            for kind, measured in kinds.items():
                for position, alpha in enumerate(measured["alphas"], 1):
                    tokens, alphas = found.setdefault(f"{name} {kind} {position}", ([], []))
                    tokens.append(float(line["tokens"]))
                    alphas.append(alpha)
    return found


def _drawn(path: Path, label: str, curves: dict[str, tuple[list[float], list[float]]]) -> Path:
    from matplotlib.figure import Figure  # no global state, and no display

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for name, (tokens, values) in curves.items():
        axes.plot(tokens, values, label=name, marker="." if len(tokens) < 30 else "")
    axes.set_xlabel("answer tokens read")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, format="svg", metadata={"Date": None})
    return path
