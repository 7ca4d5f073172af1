"""Whether two answers are the same, and if not, whether rounding explains it (docs/lossless.md, Precision)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from selfspec.types import LayerPlan, Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.runtime.base import Runtime

_ROWS = 6  # of the many-row pass; a draft of γ 4 and its bonus need 5
_MOST_NOISE = {"float32": 1e-3, "float64": 1e-9}  # lower precisions have no bound, only the rule of twice


@dataclass(frozen=True)
class Comparison:
    """How an answer compares with the baseline's; ``at`` is the first token that differs.

    ``gap`` is that of the two best logits there, ``noise`` the largest difference between the logits of
    one-row and many-row passes.
    """

    kind: Literal["equal", "near-tie", "different"]
    at: int | None = None
    gap: float | None = None
    noise: float | None = None


def compare(runtime: Runtime, prompt: Sequence[int], base: Sequence[int], other: Sequence[int]) -> Comparison:
    """Compare two greedy answers to ``prompt``. A text that ends earlier differs where it ended."""
    if tuple(base) == tuple(other):
        return Comparison("equal")
    pairs = enumerate(zip(base, other, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(base), len(other)))
    gap, noise = _gap_and_noise(runtime, [*prompt, *base[:at]])
    is_tie = gap <= 2 * noise and noise <= _MOST_NOISE.get(runtime.precision, np.inf)
    # two texts that say the same up to where one stops are no near-tie: there was a next token, or an end
    return Comparison("near-tie" if is_tie and at < min(len(base), len(other)) else "different", at, gap, noise)


def _gap_and_noise(runtime: Runtime, tokens: list[int]) -> tuple[float, float]:
    one, many = _last_logits(runtime, tokens, 1), _last_logits(runtime, tokens, _ROWS)
    best = np.sort(one[-1])[-2:]
    return float(best[1] - best[0]), float(np.abs(one - many).max())


def _last_logits(runtime: Runtime, tokens: list[int], rows_per_pass: int) -> np.ndarray[tuple[int, int], np.dtype]:
    """Logits of the last rows, run in passes of ``rows_per_pass`` after a prefill of what is before them."""
    start = max(0, len(tokens) - _ROWS)
    plan, cache = LayerPlan.full(runtime.config.num_layers), runtime.new_cache(1, len(tokens))
    spans = [(i, min(i + rows_per_pass, len(tokens))) for i in range(start, len(tokens), rows_per_pass)]
    out = []
    for low, high in [(0, start), *spans] if start else spans:
        rows = Rows.of([0] * (high - low), range(low, high))
        logits = runtime.logits(runtime.run(runtime.embed(tokens[low:high]), plan, rows, cache)[0])
        if low >= start:
            out += [np.array(row.tolist()) for row in logits]  # a torch tensor on a GPU has no other way here
    return np.stack(out)
