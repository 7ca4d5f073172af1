"""Whether two answers are the same, and if not, whether rounding explains it (docs/lossless.md, Precision)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from array_api_compat import to_device

from selfspec.types import LayerPlan, Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.runtime.base import Runtime

Numbers: TypeAlias = "np.ndarray[Any, Any]"
_ROWS = 6  # of the many-row pass; a draft of γ 4 and its bonus need 5
_MOST_NOISE = {"float32": 1e-3, "float64": 1e-9}  # lower precisions have no bound, only the rule of twice


@dataclass(frozen=True)
class Comparison:
    """How an answer compares with the baseline's; ``at`` is the first token that differs.

    ``gap`` is how far the lesser of the two tokens is below the best logit there, ``noise`` the largest difference
    between the logits of one-row and many-row passes; both are None where one text ends and the other goes on.
    """

    kind: Literal["equal", "near-tie", "different"]
    at: int | None = None
    gap: float | None = None
    noise: float | None = None


def compare(runtime: Runtime, prompt: Sequence[int], base: Sequence[int], other: Sequence[int]) -> Comparison:
    """Compare two greedy answers to ``prompt``."""
    if tuple(base) == tuple(other):
        return Comparison("equal")
    at = next((i for i, (a, b) in enumerate(zip(base, other, strict=False)) if a != b), None)
    if at is None:  # one is the beginning of the other: an end was missed, and no rounding does that
        return Comparison("different", min(len(base), len(other)))
    tokens = [*prompt, *base[:at]]
    one, many = (_last_logits(runtime, tokens, rows) for rows in (1, _ROWS))
    gap = float(one[-1].max() - min(one[-1][base[at]], one[-1][other[at]]))
    noise = float(np.abs(one - many).max())
    is_tie = gap <= 2 * noise and noise < _MOST_NOISE.get(runtime.precision, np.inf)
    return Comparison("near-tie" if is_tie else "different", at, gap, noise)


def _last_logits(runtime: Runtime, tokens: list[int], rows_per_pass: int) -> Numbers:
    """Logits of the last rows, run in passes of ``rows_per_pass`` after a prefill of what is before them."""
    start, stop = max(0, len(tokens) - _ROWS), len(tokens)
    plan, cache = LayerPlan.full(runtime.config.num_layers), runtime.new_cache(1, stop)
    spans = [(i, min(i + rows_per_pass, stop)) for i in range(start, stop, rows_per_pass)]
    out = []
    for low, high in [(0, start), *spans] if start else spans:
        rows = Rows.of([0] * (high - low), range(low, high))
        logits = runtime.logits(runtime.run(runtime.embed(tokens[low:high]), plan, rows, cache)[0])
        out.append(logits if isinstance(logits, np.ndarray) else np.asarray(to_device(logits, "cpu")))
    return np.concatenate(out[1:] if start else out)
