"""What the verbs that train share: opening, what is told, and the lines of a run."""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from selfspec.cli.opening import open_engine
from selfspec.cli.output import emit_json, note, progress
from selfspec.errors import RuntimeMissingError
from selfspec.measure.quantities import size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from accelerate import Accelerator

    from selfspec.train.distill.job import Setup as Distilling
    from selfspec.train.heads.corpus import Corpus
    from selfspec.train.heads.job import Setup
    from selfspec.train.heads.progress import Event
    from selfspec.train.heads.trainer import Job
    from selfspec.train.options import HeadOptions

    Stated = Setup | Distilling


_EVERY = 15.0  # seconds between lines of steps


def run(asked: HeadOptions, opening: Mapping[str, Any], out: str, as_json: bool) -> None:
    """Train what ``asked`` says in the folder ``out``, and say how it goes."""
    require_packages()
    from selfspec.train.heads.job import Setup
    from selfspec.train.heads.trainer import accelerator_of

    engine = open_engine(opening)
    setup = Setup(engine, asked, Path(out))
    for line in _about(setup):
        note(line)
    make_states(setup)
    accelerator = accelerator_of(asked, opening.get("device"))
    result = follow(setup.job(accelerator.device), accelerator)
    document = {"heads": {name: str(setup.path(name)) for name in setup.facts}, **result}
    if as_json:
        emit_json(document)
    else:
        for name in setup.facts:
            click.echo(f"{setup.path(name)}  {alphas_of(result['held_out'].get(name, {}))}")


def follow(job: Job, accelerator: Accelerator, curves: Sequence[str] = ()) -> dict[str, Any]:
    """Train to the end, say how it goes, and plot it, with names of ``curves`` of loss; its sums.

    Where the run ended before, they are empty.
    """
    from selfspec.train.heads.trainer import train

    lines = _Lines()
    try:
        for event in train(job, accelerator):
            if line := lines.of(event):
                note(line)
    except KeyboardInterrupt:
        note(f"what was learned is in {str(job.out)!r}; run the same command again to go on")
        raise
    _plot(job.out, curves)
    return lines.result


def require_packages(*more: str, extra: str = "train") -> None:
    """Raise RuntimeMissingError where one that trains, or one of ``more``, is not installed."""
    needed = ("torch", "accelerate", *more)
    if missing := next((name for name in needed if find_spec(name) is None), None):
        raise RuntimeMissingError(
            f"training needs {missing}, which is not installed: pip install 'selfspec[{extra}]'"
        )


def _about(setup: Setup) -> list[str]:
    vocabulary = setup.vocabulary
    return [
        *about_texts(setup),
        f"draft vocabulary: {len(vocabulary):,} tokens, {setup.coverage:.2%} of the answers",
        *about_states(setup),
    ]


def about_texts(setup: Stated) -> list[str]:
    """What there is to learn from."""
    lines = [about_corpus(setup.corpus)]
    if setup.grown > len(setup.data):
        lines.append(f"the data have grown to {setup.grown:,} texts; this run goes on with its {len(setup.data):,}")
    return lines


def about_corpus(corpus: Corpus) -> str:
    """Which texts train, and which evaluate."""
    return (
        f"{corpus.drafted + len(corpus.training):,} answer tokens in {len(corpus.training):,} texts to train on, "
        f"{len(corpus.held_out):,} texts held out; {corpus.cut} cut, {corpus.short} too short"
    )


def about_states(setup: Stated) -> list[str]:
    """What keeping the states takes."""
    plan, lines = setup.plan, []
    where = f"kept in {str(setup.folder)!r}" if plan.fits else (
        f"more than --disk-budget or the {size(plan.free)} that are free: run anew in every epoch"
    )  # fmt: skip
    written, read = setup.data.provenance.get("precision"), setup.engine.runtime.precision
    if written not in (None, read):
        lines.append(f"the answers were written in {written}, and the states are of {read}; --bits changes that")
    return [*lines, f"states of {plan.rows:,} tokens: {size(plan.bytes)}, {where}"]


def make_states(setup: Stated) -> None:
    """Run the target over what is missing, and say how it goes."""
    started, done, told = time.monotonic(), 0, time.monotonic()
    with progress(setup.plan.rows, 0, "states") as move:

        def tell(rows: int) -> None:
            nonlocal done, told
            done += rows
            move(rows)
            if time.monotonic() - told > _EVERY and not sys.stderr.isatty():  # else there is a bar
                told = time.monotonic()
                note(f"states: {done:,} tokens, {done / (told - started):,.0f} tokens/s")

        setup.make_states(tell)


class _Lines:
    """Lines for people, some seconds apart."""

    def __init__(self) -> None:
        self._told = 0.0
        self._begun: tuple[float, float] | None = None  # when this sitting began, and where
        self._alphas = ""
        self.result: dict[str, Any] = {"steps": 0, "tokens": 0, "seconds": 0.0, "held_out": {}}

    def of(self, event: Event) -> str:
        """A line, or "" where it is not time for one."""
        now = time.monotonic()
        if self._begun is None:
            self._begun = (now, event.share)
        where = event.progress
        self.result |= {"steps": where.step, "tokens": where.tokens, "seconds": where.seconds}
        if event.kind == "checkpoint":
            return f"checkpoint {event.facts['path']}"
        if event.kind == "evaluation":
            self.result["held_out"] = event.facts["heads"]
            said = [f"{name}: {alphas_of(kinds)}" for name, kinds in event.facts["heads"].items()]
            return f"step {where.step} · held-out α " + " · ".join(said) if said else ""
        if now - self._told < _EVERY:
            return ""
        self._told = now
        return self._step(event, now)

    def _step(self, event: Event, now: float) -> str:
        assert self._begun is not None
        begun, share = self._begun
        left = (now - begun) * (1.0 - event.share) / max(event.share - share, 1e-9)
        losses = [" ".join(f"{value:.3f}" for value in head) for head in event.facts["loss"]]
        divergences = [" ".join(f"{value:.3f}" for value in head) for head in event.facts.get("kl", ())]
        far = f" · KL {' | '.join(divergences)}" if divergences else ""
        return (
            f"{event.share:.1%} · epoch {event.progress.epoch + 1} · step {event.progress.step} · "
            f"{event.facts['tokens_per_second']:,.0f} tokens/s · loss {' | '.join(losses)}{far} · "
            f"ETA {left / 60:.0f} min"
        )


def alphas_of(kinds: Mapping[str, Mapping[str, Any]]) -> str:
    """Held-out acceptance by kind of text."""
    return ", ".join(
        f"{kind} {' '.join(f'{alpha:.3f}' for alpha in found['alphas'])} (τ {found['tokens_per_round']:.2f})"
        for kind, found in sorted(kinds.items())
    )


def _plot(out: Path, curves: Sequence[str]) -> None:
    from selfspec.train.heads.plots import plot

    try:
        plot(out, curves)
    except ModuleNotFoundError as error:
        note(f"no plots, because {error.name} is not installed: pip install 'selfspec[train]'")
