"""How often every exit layer would be right: the target's own answer, run once, with the head over every layer.

An early exit has no KV of its own: below layer k its keys and values are the target's, and a draft token is
followed by another only if the target would have said it, or both are rejected. So one pass over prompt and
answer sees, at every place and for every k, the law that a draft which held so far would have there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.measure.passes import fill
from selfspec.sampling import distribution, top_probability
from selfspec.types import LayerPlan, Prefix, Rows, SubLayer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from selfspec.runtime.base import Runtime
    from selfspec.types import Array, Distribution, Sampling

_ROWS = 64  # of one pass: each has the logits of a vocabulary


@dataclass(frozen=True, eq=False)
class Agreement:
    """K exits against the target, at the n tokens x of an answer of the target.

    ``ratios`` [K, n] are q(x) / p(x), where an exit has the law q and the target p: in greedy decoding 1 where both
    say x, else 0. ``overlaps`` [K, n] are 1 - the total variation between q and p: how often a token drawn from q
    is accepted; in greedy decoding the same 1 or 0. ``confidences`` [K, n] are the largest probabilities of exits
    at temperature 1, by which a draft may be stopped; None where nobody asked.
    """

    ratios: NDArray[np.float64]
    overlaps: NDArray[np.float64]
    confidences: NDArray[np.float64] | None = None


def measure_agreement(
    runtime: Runtime,
    prompt: Sequence[int],
    answer: Sequence[int],
    exits: Sequence[int],
    sampling: Sampling,
    is_confidence_asked: bool = False,
) -> Agreement:
    """Compare the exits at the layers ``exits`` with the target along ``answer``, its own one to ``prompt``.

    Neither is empty. One pass of all layers over prompt and answer, and the head once for every exit.
    """
    tokens, first = [*prompt, *answer], len(prompt) - 1
    cache = runtime.new_cache(1, len(tokens))
    fill(runtime, cache, tokens[:first])
    full, taps = LayerPlan.full(runtime.config.num_layers), [SubLayer(k - 1) for k in exits]
    parts, confidences = [], []
    for start in range(first, len(tokens) - 1, _ROWS):
        stop = min(start + _ROWS, len(tokens) - 1)
        rows = Rows.of([0] * (stop - start), range(start, stop))
        hidden, tapped = runtime.run(runtime.embed(tokens[start:stop], rows.positions), full, rows, cache, taps)
        prefixes = [Prefix(tokens[: place + 1], len(prompt)) for place in range(start, stop)]
        target = _laws(runtime.logits(hidden), sampling, prefixes)
        said, found = tokens[start + 1 : stop + 1], []
        for tap in taps:
            logits = runtime.logits(tapped[tap])
            found.append(_compared(target, _laws(logits, sampling, prefixes), said))
            if is_confidence_asked:
                confidences.append([top_probability(row) for row in logits])
        parts.append(np.array(found))
    ratios, overlaps = np.moveaxis(np.concatenate(parts, axis=1), 2, 0)
    if not is_confidence_asked:
        return Agreement(ratios, overlaps)
    chunks = [confidences[i : i + len(taps)] for i in range(0, len(confidences), len(taps))]
    return Agreement(ratios, overlaps, np.concatenate([np.array(chunk) for chunk in chunks], axis=1))


def _laws(rows: Array, sampling: Sampling, prefixes: Sequence[Prefix]) -> list[Distribution]:
    return [distribution(logits, sampling, prefix) for logits, prefix in zip(rows, prefixes, strict=True)]


def _compared(
    target: Sequence[Distribution], drafted: Sequence[Distribution], said: Sequence[int]
) -> list[tuple[float, float]]:
    """Ratio and overlap at every token."""
    rows: Any = zip(target, drafted, said, strict=True)
    return [(ratio(p, q, token), 1.0 - p.excess(q, 1.0)) for p, q, token in rows]


def ratio(p: Distribution, q: Distribution, token: int) -> float:
    """q(token) / p(token)."""
    mass = p.probability(token)
    # the target did say it: where p has nothing there, rounding moved a tie since
    return q.probability(token) / mass if mass > 0.0 else q.probability(token)
