"""What ``selfspec profile`` prints for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selfspec.cli.output import facts, table
from selfspec.measure.quantities import number, ratio, size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SHOWN_EXITS = 40  # of a deeper model, some are left to --json
_SHOWN_GAMMAS = (1, 2, 3, 4, 6, 8)


def page(document: Mapping[str, Any]) -> str:
    """The tables."""
    parts = [
        _head(document),
        _roofline(document),
        _passes(document),
        *(_rounds(name, found) for name, found in document["rounds"].items()),
        *(_exits(name, document) for name in document["exits"]),
        *(_speedups(name, found) for name, found in document["points"].items()),
        _checks(document),
        _left_out(document),
    ]
    return "\n\n".join(part for part in parts if part)


def _head(document: Mapping[str, Any]) -> str:
    machine, options = document["machine"], document["options"]
    return (
        f"{document['model']} · {document['layers']} layers · {document['precision']} on {document['runs_on']} · "
        f"{machine['processor']}, {machine['cores']} cores · answers of {options['max_new_tokens']} tokens, "
        f"data {options['data']}"
    )


def _roofline(document: Mapping[str, Any]) -> str:
    if document["roofline"] is None:
        return "roofline: not measured, the weights are on no CPU"
    ceiling = document["ceiling"]
    header = ("context", "weights", "KV", "bound ms", "one row ms", "of bound", "GB/s", "M operations", "rows")
    rows = [
        (
            f"{found['context']}",
            size(found["weight_bytes"]),
            size(found["kv_bytes"]),
            f"{max(found['memory_seconds'], found['arithmetic_seconds_per_row']) * 1e3:.1f}",
            f"{found['measured_seconds'] * 1e3:.1f}",
            f"{found['share_of_bound']:.2f}",
            f"{found['bytes_per_second_reached'] / 1e9:.1f}",
            f"{found['operations_per_row'] / 1e6:.0f}",
            f"{found['arithmetic_bound_rows']:.1f}",
        )
        for found in document["roofline"]
    ]
    return (
        f"roofline: {ceiling['bytes_per_second'] / 1e9:.1f} GB/s, {ceiling['operations_per_second'] / 1e9:.0f} G "
        "operations/s in float32, both with NumPy; rows: where arithmetic takes as long as reading\n"
        + table([header, *rows])
    )


def _passes(document: Mapping[str, Any]) -> str:
    found = document["passes"]
    if not found:
        return ""
    rows = range(1, len(found[0]["v"]) + 1)
    header = ("context", "one row ms", *(f"v({n})" for n in rows))
    lines = [
        (f"{one['context']}", f"{one['seconds'][0] * 1e3:.1f}", *(f"{v:.2f}" for v in one["v"])) for one in found
    ]
    return "passes of T rows ÷ one of one row; v(γ+1) is the τ at which a free draft breaks even\n" + table(
        [header, *lines]
    )


def _rounds(name: str, found: Mapping[str, Any]) -> str:
    return (
        f"a plain round at temperature {name} takes {found['plain_seconds'] * 1e3:.1f} ms; "
        f"c = {found['rest']:.3f} + {found['layer']:.4f} k: the head, the choice and the loop, and a layer"
    )


def _exits(name: str, document: Mapping[str, Any]) -> str:
    """Costs and acceptance by layer."""
    exits, points = document["exits"][name], document["points"][name]
    positions = min(len(exits[0]["alpha_by_position"]), 4)
    gammas = [gamma for gamma in (1, 2, 4) if any(point["gamma"] == gamma for point in points)]
    header = (
        *("k", "c", "α"),
        *(f"α at {position}" for position in range(1, positions + 1)),
        *(f"α for S=1, γ {gamma}" for gamma in gammas),
    )
    needed = {(point["exit_layer"], point["gamma"]): point["break_even_alpha"] for point in points}
    rows = [
        (
            f"{found['exit_layer']}",
            f"{found['c']:.3f}",
            f"{found['alpha']:.3f}",
            *(number(rate, 1, ".2f") for rate in found["alpha_by_position"][:positions]),
            *(number(needed[found["exit_layer"], gamma], 1, ".2f") for gamma in gammas),
        )
        for found in _some(exits)
    ]
    how = "how often exit and target agree" if float(name) == 0.0 else "1 - total variation"
    return (
        f"exits at temperature {name}: α is {how}; α at i of drafts whose tokens before it all held; "
        "α for S=1 where no α would do: -\n" + table([header, *rows])
    )


def _speedups(name: str, points: Sequence[Mapping[str, Any]]) -> str:
    """Predicted S by exit and γ."""
    most = max(point["gamma"] for point in points)
    gammas = [gamma for gamma in _SHOWN_GAMMAS if gamma <= most]
    found = {(point["exit_layer"], point["gamma"]): point for point in points}
    exits = sorted({point["exit_layer"] for point in points})
    best = max(points, key=lambda point: float(point["speedup"]))
    rows = [
        (f"{k}", *(f"{found[k, gamma]['speedup']:.2f}" for gamma in gammas))
        for k in (one["exit_layer"] for one in _some([{"exit_layer": k} for k in exits]))
    ]
    return (
        f"predicted S at temperature {name} (decoding only, median over the answers); best {best['speedup']:.2f}: "
        f"k {best['exit_layer']}, γ {best['gamma']}, τ {best['tokens_per_round']:.2f}\n"
        + table([("k", *(f"γ {gamma}" for gamma in gammas)), *rows])
    )


def _checks(document: Mapping[str, Any]) -> str:
    checks = document["checks"]
    if not checks:
        return ""
    header = ("k", "γ", "predicted", "formula", "measured [90 % interval]", "pairs", "predicted is off by", "equal")
    rows = [
        (
            f"{check['exit_layer']}",
            f"{check['gamma']}",
            f"{check['predicted']:.2f}",
            number(check["formula"], 1, ".2f"),
            ratio(check["measured"]),
            f"{check['measured']['pairs']}",
            f"{check['error']:+.1%}",
            f"{check['equal_answers']}/{check['measured']['pairs']}",
        )
        for check in checks
    ]
    worst = max(abs(check["error"]) for check in checks)
    return (
        f"S predicted and measured, decoding only; the largest error is {worst:.1%}; equal: answers that are plain "
        "decoding's\n" + table([header, *rows])
    )


def _left_out(document: Mapping[str, Any]) -> str:
    found = document["left_out"]
    return "LEFT OUT (with --out FILE the same command goes on)\n" + facts([*found.items()]) if found else ""


def _some(exits: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """All of them, or, of a deep model, every so many and the last."""
    step = -(-len(exits) // _SHOWN_EXITS)
    return [*exits[:-1:step], exits[-1]]
