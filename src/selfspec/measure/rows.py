"""Row invariance: whether a row's result depends on which other rows run in the same pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from selfspec.measure.certificate import Check
from selfspec.measure.nearties import LARGEST_NOISE, difference, logits_of
from selfspec.types import LayerPlan, Rows, on_host

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from selfspec.measure.nearties import Numbers
    from selfspec.runtime.base import Runtime

LENGTH = 16
SLOTS = 3
MOST_ROWS = 8


def rows_check(runtime: Runtime, tokens: Sequence[int]) -> Check:
    """Compare passes of one row with passes of 2 to 8, a prefill in one chunk and in two, and a batch of three.

    Where the runtime claims row invariance every logit must be equal, bit for bit. Elsewhere the largest
    difference is this runtime's noise; it passes below the limit of its precision, if that has one.
    """
    tokens = _filled(tokens)
    one = _passes(runtime, tokens, [1] * LENGTH)
    ways = {f"{rows} rows": _passes(runtime, tokens, _sizes(rows)) for rows in range(2, MOST_ROWS + 1)}
    ways["prefill in one chunk"] = _passes(runtime, tokens, [LENGTH])
    ways["prefill in two chunks"] = _passes(runtime, tokens, [LENGTH - 5, 5])
    ways[f"batch of {SLOTS}"] = _batch(runtime, tokens)
    noise = {name: difference(one, logits) for name, logits in ways.items()}
    largest, is_invariant = max(noise.values()), all(np.array_equal(one, logits) for logits in ways.values())
    limit = 0.0 if runtime.is_row_invariant else LARGEST_NOISE.get(runtime.precision)
    equal = "equal bit for bit" if is_invariant else f"differ by at most {largest:.1e}"
    claim = "claims that" if runtime.is_row_invariant else "claims no equality"
    return Check(
        "rows",
        is_invariant or (not runtime.is_row_invariant and (limit is None or largest < limit)),
        f"one row against 2-{MOST_ROWS}, prefill and batch: logits {equal}; {runtime.name} {claim}",
        {
            "row_invariant": is_invariant,
            "row_invariance_claimed": runtime.is_row_invariant,
            "largest_difference": largest,
            "limit": limit,
            "difference": noise,
            "largest_logit": float(np.abs(one).max()),
        },
    )


def _filled(tokens: Sequence[int]) -> list[int]:
    """The first tokens, again and again where there are too few."""
    return [tokens[i % len(tokens)] for i in range(LENGTH)]


def _sizes(rows: int) -> list[int]:
    return [min(rows, LENGTH - start) for start in range(0, LENGTH, rows)]


def _passes(runtime: Runtime, tokens: Sequence[int], sizes: Iterable[int]) -> Numbers:
    """Logits [LENGTH, V] from passes of the given sizes."""
    cache, start, out = runtime.new_cache(1, LENGTH), 0, []
    for size in sizes:
        out.append(logits_of(runtime, tokens, (start, start + size), cache))
        start += size
    return np.concatenate(out)


def _batch(runtime: Runtime, tokens: Sequence[int]) -> Numbers:
    """The same from passes with one row for each of several texts; the first text is the one that counts.

    The others are the same text, behind by one and two tokens.
    """
    cache, full, out = runtime.new_cache(SLOTS, LENGTH), LayerPlan.full(runtime.config.num_layers), []
    for step in range(LENGTH):
        slots = [slot for slot in range(SLOTS) if slot <= step]
        rows = Rows.of(slots, [step - slot for slot in slots])
        hidden = runtime.embed([tokens[step - slot] for slot in slots], rows.positions)
        hidden, _ = runtime.run(hidden, full, rows, cache)
        out.append(on_host(runtime.logits(hidden[:1])))
    return np.concatenate(out)
