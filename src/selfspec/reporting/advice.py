"""Whether to speculate, in words, from everything that was measured; and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selfspec.measure.advice import WORTH
from selfspec.measure.quantities import number, ratio
from selfspec.reporting.from_profile import needed_alpha
from selfspec.reporting.view import Advice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from selfspec.reporting.results import Result

_OPEN = Advice(
    "Whether to speculate does not follow from these results.",
    ("Measure it: selfspec bench, or selfspec profile, says what drafts gain here.",),
    "open",
)


def advice_of(results: Sequence[Result]) -> Advice:
    """The word of the result that knows most, with the others' as reasons.

    A certificate that found a bug goes before everything; then what was tuned, benchmarked, profiled, planned.
    """
    found: list[Advice] = []
    for kind in ("certify", "tune", "bench", "profile", "plan"):
        for result in results:
            if result.kind == kind:
                with result.whole():
                    found += _MAKERS[kind](result.document)
    proofs = tuple(reason for result in results if result.kind == "certify" for reason in _proof(result.document))
    if not found:
        return Advice(_OPEN.headline, (*_OPEN.reasons, *proofs), "open")
    first, *others = found
    more = (" ".join([other.headline, *other.reasons[:1]]) for other in others)
    return Advice(first.headline, (*first.reasons, *more, *proofs), first.tone)


def _broken(document: Mapping[str, Any]) -> list[Advice]:
    if document["verdict"] == "pass":
        return []
    failed = ", ".join(document["failed"])
    return [
        Advice(f"Do not speculate: it changes what is said here ({failed} failed). Please report it.", (), "loss")
    ]


def _proof(document: Mapping[str, Any]) -> list[str]:
    if document["verdict"] != "pass":
        return []
    return [f"selfspec certify found that drafts change nothing here ({len(document['checks'])} checks)."]


def _tuned(document: Mapping[str, Any]) -> list[Advice]:
    held = document["held_out"]
    where = f"on {held['prompts']} prompts that nothing was chosen on"
    known = {column: found["decoding"] or found["whole"] for column, found in held["columns"].items()}
    reasons = [f"{column}, {where}: S {ratio(cell).strip()}." for column, cell in known.items() if cell]
    return [Advice(str(document["recommendation"]), tuple(reasons), "gain" if document["pays"] else "loss")]


def _benched(document: Mapping[str, Any]) -> list[Advice]:
    wrong = {found["column"] for found in document["differences"] if found["is_fault"]}
    whole = document["overall"]
    ours = [name for name in whole if document["columns"][name]["is_ours"] and name not in wrong]
    if not ours:
        return []
    best = max(ours, key=lambda name: float(whole[name]["median"]))
    reasons = [_why(name, document) for name in sorted(ours, key=lambda name: -float(whole[name]["median"]))]
    reasons += [f"{name} is out: it wrote another text than plain decoding." for name in sorted(wrong)]
    return [_verdict(best, whole[best], tuple(reasons))]


def _verdict(best: str, cell: Mapping[str, Any], reasons: tuple[str, ...]) -> Advice:
    interval = f"{cell['median']:.2f}x [{cell['low']:.2f}, {cell['high']:.2f}]"
    shown = f"{interval} of plain decoding's speed over whole answers ({cell['pairs']} pairs)"
    if cell["verdict"] == "faster" and cell["median"] >= WORTH:
        return Advice(f"Draft with {best}: it was measured at {shown}.", reasons, "gain")
    if cell["verdict"] == "undecided" and cell["median"] > 1.0:
        more = f"selfspec bench --drafts plain,{best} --repeats 7"
        return Advice(
            f"Open: {best} looks best, at {shown}, which does not decide it. Until then, do not speculate.",
            (f"Measure more pairs: {more}", *reasons),
            "open",
        )
    return Advice(f"Do not speculate: the best draft that was measured, {best}, is at {shown}.", reasons, "loss")


def _why(name: str, document: Mapping[str, Any]) -> str:
    """What a method's rounds give, and what they take."""
    found, cell = document["totals"][name], document["decoding"]["all"].get(name)
    tau, alpha = found.get("mean_accepted_length"), found.get("acceptance_rate")
    if alpha is None or tau is None or cell is None:
        return f"{name} drafted nothing." if found.get("drafted") == 0 else f"{name}: its rounds are not known."
    takes = tau / cell["median"]
    return (
        f"{name}: {alpha:.2f} of its draft tokens held, so a round gave {tau:.2f} tokens; it took about as long as "
        f"{takes:.2f} plain rounds: {cell['median']:.2f}x after the first token."
    )


def _profiled(document: Mapping[str, Any]) -> list[Advice]:
    temperature = next(iter(document["points"]), None)
    if temperature is None:
        return []
    points, exits = document["points"][temperature], document["exits"][temperature]
    best = max(points, key=lambda point: float(point["speedup"]))
    k, gamma, gain = best["exit_layer"], best["gamma"], float(best["speedup"])
    where = f"an early exit at layer {k} with γ {gamma} is predicted at {gain:.2f}x after the first token"
    (row,) = (one for one in exits if one["exit_layer"] == k)
    needed = needed_alpha(points)[k]
    reasons = [
        f"At layer {k} α is {row['alpha']:.2f} and a draft step costs {row['c']:.2f} of a full one; "
        + ("no α would pay there." if needed is None else f"S = 1 would need α of {number(needed, 1, '.2f')}.")
    ]
    reasons += [
        f"Measured: exit layer {check['exit_layer']}, γ {check['gamma']}: {ratio(check['measured']).strip()} "
        f"(predicted {check['predicted']:.2f})."
        for check in document["checks"]
    ]
    if gain < WORTH:
        return [Advice(f"Do not speculate with early exits: at best {where}.", tuple(reasons), "loss")]
    return [Advice(f"Draft with early exits: {where}.", tuple(reasons), "gain")]


def _planned(document: Mapping[str, Any]) -> list[Advice]:
    said = str(document["recommendation"])
    if said.startswith("Draft with"):
        return [Advice(said, (), "gain")]
    return [Advice(said, (), "loss" if said.startswith("Do not speculate") else "open")]


_MAKERS = {"certify": _broken, "tune": _tuned, "bench": _benched, "profile": _profiled, "plan": _planned}
