"""The law of sampled texts through the real loop: by chi-square on many samples, and exactly by enumeration."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.context import Context, Text
from selfspec.decode import decode
from selfspec.measure.dice import AllOutcomes, support
from selfspec.sampling import Chance, distribution
from selfspec.types import Prefix, Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from selfspec.drafters.base import Drafter
    from selfspec.measure.toy import MarkovRuntime
    from selfspec.runtime.base import Runtime
    from selfspec.types import Array

Counts = np.ndarray[Any, np.dtype[np.float64]]
Law = dict[tuple[int, ...], float]


def never(_token: int) -> bool:
    """No token ends a text."""
    return False


# -- statistics -------------------------------------------------------------------------------------------


def transitions(
    runtime: MarkovRuntime,
    sampling: Sampling,
    drafter: Drafter,
    texts: int,
    chance: type[Chance] = Chance,
    seed: int = 0,
) -> Counts:
    """Counts [V, V] of (last token, next token) over ``texts`` sampled texts of 501 new tokens each."""
    size = runtime.config.vocab_size
    made = [Text(i, i, [i % size], 502, sampling, chance(seed, i), never) for i in range(texts)]
    for _ in decode(Context(runtime, runtime.new_cache(texts, 502)), made, drafter):
        pass
    counts = np.zeros((size, size))
    for text in made:
        np.add.at(counts, (text.tokens[:-1], text.tokens[1:]), 1)
    return counts


def chi_square(counts: Counts, law: Counts) -> float:
    """Pearson's statistic of ``counts`` [V, V] against the rows of ``law``; infinite if the impossible was seen."""
    if counts[law == 0.0].any():
        return math.inf
    want = counts.sum(axis=1, keepdims=True) * law
    return float((((counts - want) ** 2)[law > 0] / want[law > 0]).sum())


def p_value(counts: Counts, law: Counts) -> float:
    """How often so large a chi-square would come by chance (Wilson and Hilferty's cube of a normal)."""
    statistic, freedom = chi_square(counts, law), int((law > 0).sum()) - len(counts)
    if math.isinf(statistic):
        return 0.0
    width = 2 / (9 * freedom)
    return math.erfc((math.cbrt(statistic / freedom) - (1 - width)) / math.sqrt(2 * width)) / 2


# -- enumeration ------------------------------------------------------------------------------------------


def plain_law(
    logits: Callable[[tuple[int, ...]], Array],
    prompt: Sequence[int],
    new_tokens: int,
    sampling: Sampling,
    ends: Callable[[int], bool] = never,
) -> Law:
    """P(new tokens) of plain decoding by definition; ``logits`` of a text are those of its next token [V]."""
    law: Law = defaultdict(float)

    def grow(new: tuple[int, ...], weight: float) -> None:
        if len(new) == new_tokens or (new and ends(new[-1])):
            law[new] += weight
            return
        tokens = (*prompt, *new)
        following = distribution(logits(tokens), sampling, Prefix(tokens, len(prompt)))
        for token in support(following):
            grow((*new, token), weight * following.probability(token))

    grow((), 1.0)
    return law


def loop_law(
    runtime: Runtime,
    start: tuple[Sequence[int], int],
    sampling: Sampling,
    drafter: Drafter,
    ends: Callable[[int], bool] = never,
    dice: type[AllOutcomes] = AllOutcomes,
) -> Law:
    """P(new tokens) of the real loop: every draw, acceptance and bonus is explored.

    ``start`` is the prompt and the most new tokens.
    """
    law: Law = defaultdict(float)
    prompt, new_tokens = start
    limit = len(prompt) + new_tokens
    for chance in dice():
        text = Text(0, 0, list(prompt), limit, sampling, chance, ends)
        for _ in decode(Context(runtime, runtime.new_cache(1, limit)), [text], drafter):
            pass
        law[tuple(text.tokens[len(prompt) :])] += chance.weight
    return law


def total_variation(one: Law, other: Law) -> float:
    """Half the sum of the differences between two laws: 0 is equal, 1 is disjoint."""
    return sum(abs(one.get(text, 0.0) - other.get(text, 0.0)) for text in {*one, *other}) / 2
