"""Ratios from pairs of runs: the median, its interval, and whether that decides anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_PAIRS = 7  # fewer decide nothing
LEVEL = 0.9
_RESAMPLES = 2000

Verdict: TypeAlias = Literal["faster", "slower", "undecided"]


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of the ratios of ``pairs`` pairs, and its 90 % interval."""

    median: float
    low: float
    high: float
    pairs: int

    def verdict(self, claim: float = 1.0) -> Verdict:
        """Whether the ratio is above or below ``claim``.

        It is neither with fewer than `MIN_PAIRS` pairs, or where the interval is wider than the margin, which
        is the distance between the median and the claim.
        """
        if self.pairs < MIN_PAIRS or self.high - self.low > abs(self.median - claim) or self.median == claim:
            return "undecided"
        return "faster" if self.median > claim else "slower"


def paired_ratio(pairs: Sequence[tuple[float, float]], seed: int = 0) -> Ratio:
    """The ratio second ÷ first over at least one pair of positive numbers.

    The interval is the percentile bootstrap of the median (Efron 1979): pairs are drawn again with
    replacement, whole pairs, so that what both runs of a pair share (the prompt, the state of the machine)
    cancels.
    """
    assert pairs
    ratios = np.array([second / first for first, second in pairs])
    drawn = np.random.default_rng(seed).choice(ratios, size=(_RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Ratio(float(np.median(ratios)), float(low), float(high), len(ratios))
