"""What a profile shows: S over exit layer and draft length, acceptance by layer, the cost of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selfspec.measure.quantities import number
from selfspec.reporting.cells import level, measured, speedup
from selfspec.reporting.drawing import Line, lines
from selfspec.reporting.view import Plot, Section, Table, Words, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from selfspec.reporting.results import Result
    from selfspec.reporting.view import Cell, Part

COMMAND = "selfspec profile --out profile.json"


def profile_sections(result: Result, name: str) -> Iterator[Section]:
    """Those that a profile, or a tuned profile, has something for; ``name`` begins their anchors."""
    document = result.document
    points, exits = document["points"], document["exits"]
    if points:
        maps = tuple(_map(temperature, found) for temperature, found in points.items())
        yield Section(
            f"{name}-speedups", "Predicted S over exit layer and draft length", (*maps, *_checks(document))
        )
    if exits:
        yield Section(f"{name}-alpha", "Acceptance by layer", tuple(_alpha(document, name)))
    if document["passes"]:
        yield Section(f"{name}-rows", "What rows cost: v(T)", (_rows(document["passes"], name), *_bounds(document)))
    if document["left_out"] and result.kind == "profile":  # a tuned one says so itself
        left = tuple(f"{what}: {why}" for what, why in document["left_out"].items())
        yield Section(f"{name}-left-out", "Left out of the profile", (Words(left),))


def _map(temperature: str, points: Sequence[Mapping[str, Any]]) -> Table:
    """S of every (k, γ)."""
    found = {(int(point["exit_layer"]), int(point["gamma"])): float(point["speedup"]) for point in points}
    exits, gammas = sorted({k for k, _ in found}), sorted({gamma for _, gamma in found})
    best = max(found, key=lambda point: found[point])
    rows: list[tuple[str | Cell, ...]] = [
        (f"{k}", *(speedup(found.get((k, gamma)), is_best=(k, gamma) == best) for gamma in gammas)) for k in exits
    ]
    return table(
        f"S at temperature {temperature}: the largest, {found[best]:.2f}, is at layer k = {best[0]}, γ = {best[1]}",
        ("k", *(f"γ {gamma}" for gamma in gammas)),
        rows,
        "S is tokens per second after the first token ÷ those of plain decoding. Above 1 a draft pays.",
    )


def _checks(document: Mapping[str, Any]) -> Iterator[Part]:
    rows: list[tuple[str | Cell, ...]] = [
        (
            f"k {check['exit_layer']}, γ {check['gamma']}",
            f"{check['predicted']:.2f}",
            measured(check["measured"]),
            f"{check['error']:+.1%}",
        )
        for check in document["checks"]
    ]
    if rows:
        yield table(
            "S predicted, and measured in pairs with plain decoding",
            ("point", "predicted", "measured [90 % interval]", "off by"),
            rows,
            "? marks what the pairs do not decide.",
        )


def needed_alpha(points: Sequence[Mapping[str, Any]]) -> dict[int, float | None]:
    """By exit layer: the least acceptance rate that pays at any draft length; None where none does."""
    found: dict[int, list[float]] = {}
    for point in points:
        known = found.setdefault(int(point["exit_layer"]), [])
        if point["break_even_alpha"] is not None:
            known.append(float(point["break_even_alpha"]))
    return {k: min(alphas, default=None) for k, alphas in found.items()}


def _alpha(document: Mapping[str, Any], name: str) -> Iterator[Part]:
    """Acceptance and what would be needed, for each temperature."""
    for number_, (temperature, exits) in enumerate(document["exits"].items()):
        needed = needed_alpha(document["points"].get(temperature, ()))
        layers = [int(one["exit_layer"]) for one in exits]
        alphas = [float(one["alpha"]) for one in exits]
        wanted = [needed.get(k) for k in layers]
        curves = [
            Line("α: how often the exit is right", layers, alphas),
            Line("α that S = 1 would need, at the best γ", layers, wanted),
            Line("c: what a draft step costs ÷ a full one", layers, [float(one["c"]) for one in exits]),
        ]
        enough = [
            k for k, alpha, least in zip(layers, alphas, wanted, strict=True) if least is not None and alpha > least
        ]
        says = f"{len(enough)} of {len(layers)} exits are right often enough to pay at temperature {temperature}"
        yield Plot(
            lines(f"{name}-alpha-{number_}", curves, "exit layer k", "α, c", 1.0),
            f"{says}: the α that an exit has, and the α that it would need, by layer.",
            _alpha_table(temperature, exits, needed),
        )


def _alpha_table(temperature: str, exits: Sequence[Mapping[str, Any]], needed: Mapping[int, float | None]) -> Table:
    positions = max(len(one["alpha_by_position"]) for one in exits)
    rows: list[tuple[str | Cell, ...]] = [
        (
            f"{one['exit_layer']}",
            f"{one['c']:.3f}",
            level(one["alpha"]),
            number(needed.get(one["exit_layer"]), 1, ".2f"),
            *(level(rate) for rate in one["alpha_by_position"]),
        )
        for one in exits
    ]
    return table(
        f"c and α by layer at temperature {temperature}, and α by position in the draft",
        ("k", "c", "α", "α needed", *(f"at {place}" for place in range(1, positions + 1))),
        rows,
        "At a position: of the drafts whose tokens before it held.",
    )


def _rows(passes: Sequence[Mapping[str, Any]], name: str) -> Plot:
    curves = [
        Line(f"after {found['context']} tokens", range(1, len(found["v"]) + 1), [float(v) for v in found["v"]])
        for found in passes
    ]
    most = max(len(found["v"]) for found in passes)
    ends = ", ".join(
        f"v({len(found['v'])}) = {found['v'][-1]:.2f} after {found['context']} tokens" for found in passes
    )
    rows: list[tuple[str | Cell, ...]] = [
        (
            f"{found['context']} tokens",
            f"{found['seconds'][0] * 1e3:.1f} ms",
            *(f"{v:.2f}" for v in found["v"]),
            *("-",) * (most - len(found["v"])),
        )
        for found in passes
    ]
    return Plot(
        lines(f"{name}-v", curves, "rows T of a pass", "v(T)"),
        f"A pass of T rows ÷ a pass of one: {ends}. v(γ+1) is how many tokens a round of free drafts must give.",
        table("v(T) by context", ("context", "one row", *(f"v({n})" for n in range(1, most + 1))), rows),
    )


def _bounds(document: Mapping[str, Any]) -> Iterator[Part]:
    ceiling = document["ceiling"]
    if ceiling is not None:
        yield Words(
            (
                f"The machine reads {ceiling['bytes_per_second'] / 1e9:.1f} GB/s and computes "
                f"{ceiling['operations_per_second'] / 1e9:.0f} G operations/s in float32: a pass of "
                f"{ceiling['break_even_rows']:.1f} rows would take as long to compute as to read.",
            )
        )
