"""Ratios and their intervals."""

from __future__ import annotations

import numpy as np
import pytest

from selfspec.measure.pairs import Ratio, paired_ratio


@pytest.mark.parametrize("pairs", [7, 12, 24])
def test_the_interval_covers_a_known_ratio_in_about_90_of_100_runs(pairs):
    """Guards the bootstrap: 500 simulated benchmarks with a true ratio of 1.3 and noise of 15 % per run.

    Seven pairs cover 87.5 % by the order statistics of a median. Seeded; with other seeds 500 runs would leave
    [0.84, 0.95] about once in 200.
    """
    random = np.random.default_rng(5)
    covered = 0
    for run in range(500):
        base = np.exp(random.normal(0, 0.3, pairs))  # prompts differ
        noise = np.exp(random.normal(0, 0.15, (2, pairs)))
        found = paired_ratio(list(zip(base * noise[0], 1.3 * base * noise[1], strict=True)), seed=run)
        covered += found.low <= 1.3 <= found.high
    assert 0.84 <= covered / 500 <= 0.95


def test_pairing_cancels_what_both_runs_share():
    """Guards the pairing: prompts that differ tenfold in speed leave no width; unpaired they would."""
    base = np.geomspace(1, 10, 9)
    found = paired_ratio(list(zip(base, 1.5 * base, strict=True)))
    assert (found.low, found.median, found.high) == pytest.approx((1.5, 1.5, 1.5))


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (Ratio(1.3, 1.2, 1.4, 7), "faster"),
        (Ratio(0.7, 0.65, 0.75, 7), "slower"),
        (Ratio(1.3, 1.2, 1.4, 6), "undecided"),  # too few pairs
        (Ratio(1.1, 1.02, 1.18, 20), "undecided"),  # wider than the margin, though 1 is outside
        (Ratio(1.0, 1.0, 1.0, 20), "undecided"),
    ],
)
def test_a_wide_interval_or_few_pairs_decide_nothing(ratio, verdict):
    """Guards claims: the rule of the house, by its edges."""
    assert ratio.verdict() == verdict


def test_a_claim_is_judged_by_its_own_margin():
    """Guards aims such as 1.3: being faster than plain does not meet them."""
    ratio = Ratio(1.33, 1.28, 1.40, 7)
    assert ratio.verdict() == "faster"
    assert ratio.verdict(1.3) == "undecided"
