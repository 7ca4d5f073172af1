"""What to do with a plan, in words: what would make it fit, and whether to speculate."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from selfspec.measure.quantities import size
from selfspec.runtime.packing import BITS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from selfspec.measure.plan import Planner, Row
    from selfspec.measure.sizes import Sizes

WORTH = 1.03
"""The least expected speedup for which a draft is recommended: less is within what predictions are off."""


# -- what would make it fit -------------------------------------------------------------------------------


def remedies(planner: Planner, plain: Row) -> Iterator[dict[str, Any]]:
    """Changes that make plain decoding fit, each enough by itself; none where it fits.

    A shorter context and fewer texts are the largest that fit; then fewer bits, a smaller cache, and both. Where no
    change is enough, the one that comes closest, with the context and texts that it leaves room for, if any.
    """
    if not plain.short:
        return
    if plain.largest_context:
        yield _remedy(f"--context {plain.largest_context}", plain.budget)
    if plain.largest_concurrency:
        yield _remedy(f"--concurrency {plain.largest_concurrency}", plain.budget)
    others = {flags: planner.placed(*changes) for flags, changes in _lighter(planner)}
    totals = {flags: planner.total(sizes, plain.way) for flags, sizes in others.items()}
    fitting = [flags for flags, total in totals.items() if total <= planner.budget]
    for flags in fitting:
        if not any(_is_less(other, flags) for other in fitting):
            yield _remedy(flags, totals[flags])
    if fitting or plain.largest_context or plain.largest_concurrency:
        return
    yield from _last(planner, plain, others)


def _remedy(flags: str, total: int) -> dict[str, Any]:
    """Flags, and the most bytes that are then held."""
    return {"flags": flags, "total": total}


def _lighter(planner: Planner) -> Iterator[tuple[str, tuple[int | None, str | None]]]:
    """Flags, and the bits and the precision of keys and values that they stand for."""
    sizes = planner.sizes
    own = BITS.get(sizes.precision.partition(",")[0], 64)
    if not planner.is_cpu:
        if own > 16:
            yield "--dtype bfloat16", (16, None)
        return
    fewer: list[int | None] = [None, *(bits for bits in (16, 8, 4) if bits < own and planner.can_pack)]
    kept: list[str | None] = [None, *(["int8"] if sizes.kv_precision != "int8" else [])]
    # bits that are not changed stay what was asked for, and so does the cache
    for bits, kv in product(fewer, kept):
        if bits or kv:
            flags = [f"--bits {bits}"] * bool(bits) + [f"--kv {kv}"] * bool(kv)
            yield " ".join(flags), (bits or planner.bits, kv or sizes.kv_precision)


def _is_less(flags: str, than: str) -> bool:
    """Whether a change is a part of another, or keeps more bits and the rest of it."""
    (bits, kv), (others, other_kv) = _change(flags), _change(than)
    return flags != than and bits >= others and kv <= other_kv


def _change(flags: str) -> tuple[int, bool]:
    """Bits a weight (64: no change), and whether the cache changes."""
    words = flags.split()
    return int(words[words.index("--bits") + 1]) if "--bits" in words else 64, "--kv" in words


def _last(planner: Planner, plain: Row, others: Mapping[str, Sizes]) -> Iterator[dict[str, Any]]:
    """The smallest of all, with what it leaves room for."""
    placed = {"": planner.sizes, **others}
    flags, sizes = min(placed.items(), key=lambda item: planner.total(item[1], plain.way))
    context, texts = planner.largest(sizes, plain.way)
    for change, value in (("context", context), ("concurrency", texts)):
        if value:
            yield _remedy(f"{flags} --{change} {value}".strip(), planner.budget)
    if not texts and planner.concurrency > 1 and (alone := planner.largest(sizes, plain.way, slots=1)[0]):
        yield _remedy(f"{flags} --concurrency 1 --context {alone}".strip(), planner.budget)


def least(planner: Planner, plain: Row) -> tuple[str, int]:
    """The flags of the smallest that this model can be, and its bytes with one text of one token."""
    placed = {"": planner.sizes} | {flags: planner.placed(*changes) for flags, changes in _lighter(planner)}
    totals = {flags: planner.total(sizes, plain.way, 1, 1) for flags, sizes in placed.items()}
    return min(totals.items(), key=lambda item: item[1])


# -- whether to speculate ---------------------------------------------------------------------------------


def recommendation(model: str, rows: Sequence[Row], found: Sequence[Mapping[str, Any]], planner: Planner) -> str:
    """One sentence; the first of ``rows`` is plain decoding, and only what this version has is recommended."""
    plain, *drafts = rows
    if plain.short:
        would = _would(plain, found, planner)
        return f"It does not fit, with no draft either: {size(plain.short)} are missing; {would}."
    usable = [row for row in drafts if row.way.is_built and not row.short]
    known = [row for row in usable if row.worth]
    if not known:
        free = [row.label for row in usable if not row.way.weights]
        names, verb = ", ".join(free) or "nothing", "take" if len(free) > 1 else "takes"
        return (
            f"Whether a draft pays does not follow from sizes: measure it with `selfspec profile --model {model} "
            f"--out FILE` and give --profile FILE, or state --alpha; {names} {verb} no more weights."
        )
    best = max(known, key=lambda row: (_gain(row), -row.extra))
    return f"{_verdict(best)}{_beyond(best, drafts)}."


def _would(plain: Row, found: Sequence[Mapping[str, Any]], planner: Planner) -> str:
    if found:
        return "what would fit: " + " or ".join(remedy["flags"] for remedy in found)
    flags, held = least(planner, plain)
    return f"only a smaller model would, as this one takes {size(held)} at least{flags and f' ({flags})'}"


def _gain(row: Row) -> float:
    return row.worth.speedup if row.worth else 0.0


def _verdict(best: Row) -> str:
    worth = best.worth
    assert worth is not None
    how = "by the profile" if worth.source == "profile" else "by what was stated"
    exit_layer = "" if best.way.exit_layer is None else f"exit layer {best.way.exit_layer}, "
    if worth.speedup < WORTH:
        return (
            f"Do not speculate: the best draft that fits and of which α is known, {best.label} ({exit_layer}γ "
            f"{worth.gamma}), is expected at {worth.speedup:.2f}x of plain decoding, {how}"
        )
    more = f"{size(best.extra)} more memory" if best.extra else "no more memory"
    return (
        f"Draft with {best.label} ({exit_layer}γ {worth.gamma}): {worth.speedup:.2f}x of plain decoding is "
        f"expected, {how}, for {more}"
    )


def _beyond(best: Row, drafts: Sequence[Row]) -> str:
    """What would gain more, and does not fit."""
    better = [row for row in drafts if row.short and row.way.is_built and _gain(row) > max(_gain(best), WORTH)]
    if not better:
        return ""
    first = max(better, key=_gain)
    return f"; {first.label} would give {_gain(first):.2f}x and lacks {size(first.short)}"
