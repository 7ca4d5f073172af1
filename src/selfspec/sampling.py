"""Logits to probabilities, and the randomness that picks from them.

``distribution`` is the only place where logits become probabilities, for drafter, verifier and plain decoding
alike. Order and semantics are those of transformers: processors, temperature, top-k, top-p.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from selfspec.errors import ModelError
from selfspec.types import Array, Dense, Distribution, OneHot, Sampling, namespace

if TYPE_CHECKING:
    from collections.abc import Sequence


def distribution(logits: Array, sampling: Sampling, prefix: Sequence[int]) -> Distribution:
    """The law of the token that follows ``prefix``, from its ``logits`` [V].

    Greedy is the one-hot of the largest logit, the lowest id where several are equal. Tokens that tie with
    the last one kept by top-k or top-p are kept as well. Probabilities are float64.
    """
    for processor in sampling.processors:
        logits = processor(prefix, logits)
    xp = namespace(logits)
    best = int(xp.argmax(logits))
    top = float(logits[best])
    if not math.isfinite(top):
        raise ModelError(f"the largest logit is {top}: the weights are damaged or overflow this precision")
    if sampling.is_greedy:
        return OneHot(best)
    # below 1e-300 the law is the one-hot in float64 anyway, and the division would overflow
    scaled = (xp.astype(logits, xp.float64) - top) / max(sampling.temperature, 1e-300)
    return Dense.of(xp.exp(_truncate(scaled, sampling)))


def _truncate(scaled: Array, sampling: Sampling) -> Array:
    """Minus infinity for what top-k and top-p leave out of ``scaled`` [V], whose largest value is 0."""
    size = scaled.shape[0]
    if sampling.top_k in range(1, size) or sampling.top_p < 1.0:
        xp = namespace(scaled)
        ordered = xp.sort(scaled, descending=True)
        if sampling.top_k:
            ordered = ordered[: sampling.top_k]
        if sampling.top_p < 1.0:
            mass = xp.exp(ordered)
            before = xp.cumulative_sum(mass) - mass  # what the better tokens hold
            ordered = ordered[: int(xp.sum(xp.astype(before < sampling.top_p * xp.sum(mass), xp.int64)))]
        return xp.where(scaled >= ordered[-1], scaled, xp.asarray(-math.inf, dtype=scaled.dtype))
    return scaled


def top_probability(logits: Array) -> float:
    """The largest raw probability (temperature 1, nothing cut) under ``logits`` [V]: a draft's confidence."""
    xp = namespace(logits)
    return 1.0 / float(xp.sum(xp.exp(logits - xp.max(logits))))


class Chance:
    """The randomness of one sequence: a stream of uniform numbers that are never used twice.

    ``seed`` and ``stream`` select it; equal pairs give equal streams. Decisions that are certain consume
    nothing, so greedy decoding draws no numbers at all.
    """

    def __init__(self, seed: int, stream: int = 0) -> None:
        self._random = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(stream,))))

    def accept(self, probability: float) -> bool:
        """True with the given probability."""
        if probability >= 1.0:
            return True
        return probability > 0.0 and bool(self._random.random() < probability)

    def pick(self, law: Distribution) -> int:
        """A token from ``law``."""
        return law.token if isinstance(law, OneHot) else law.pick(self._random.random())
