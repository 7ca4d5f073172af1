"""What is learned of the cost of passes: lines with a bend, drift, disturbed passes, prices in a batch."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import run, tiny_runtime

from selfspec.measure.toy import MarkovRuntime
from selfspec.runtime.costs import PRIOR, PassCosts


def learned(v, count=200, noise=0.0, seed=0, rows=range(1, 9), costs=None, base=0.01):
    """Costs after ``count`` passes of random sizes, whose time is v(rows) times ``base`` seconds."""
    random, costs = np.random.default_rng(seed), costs or PassCosts()
    for size in random.choice(list(rows), count):
        costs.observe(int(size), base * v(size) * random.lognormal(0.0, noise))
    return costs


def test_before_anything_is_known():
    """Guards the prior: a row costs something, also when plain passes are all that was seen."""
    costs = PassCosts()
    assert costs.v(1) == 1.0
    assert costs.v(3) == pytest.approx(1 + 2 * PRIOR)
    for _ in range(500):
        costs.observe(1, 0.02)
    assert costs.v(3) == pytest.approx(1 + 2 * PRIOR)


@pytest.mark.parametrize("slope", [0.02, 0.1, 0.3, 0.8])
@pytest.mark.parametrize("base", [1e-4, 10.0])
def test_a_line_is_found(slope, base):
    """Guards the fit, in any unit of time."""
    costs = learned(lambda rows: 1 + slope * (rows - 1), base=base)
    for rows in range(1, 9):
        assert costs.v(rows) == pytest.approx(1 + slope * (rows - 1), rel=0.05)


def test_a_bend_is_found():
    """Guards passes beyond eight rows, where a row may cost more."""
    costs = learned(lambda rows: 1 + 0.1 * (rows - 1) + 0.2 * max(0, rows - 8), 400, rows=range(1, 17))
    assert costs.v(16) == pytest.approx(4.1, rel=0.03)
    assert costs.v(8) == pytest.approx(1.7, rel=0.03)


def test_noise_and_disturbed_passes():
    """Guards the estimate against a machine that does other things too."""
    costs = PassCosts()
    random = np.random.default_rng(1)
    for i in range(400):
        rows = int(random.integers(1, 9))
        spike = 50.0 if i % 100 == 50 else 1.0
        costs.observe(rows, 0.01 * (1 + 0.15 * (rows - 1)) * random.lognormal(0.0, 0.1) * spike)
    assert costs.v(5) == pytest.approx(1.6, rel=0.2)


def test_drift_is_followed():
    """Guards the memory: what passes cost a thousand passes ago says nothing now."""
    costs = learned(lambda rows: 1 + 0.02 * (rows - 1))
    learned(lambda rows: 3 * (1 + 0.5 * (rows - 1)), costs=costs, count=400)
    assert costs.v(5) == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize("factor", [3.0, 0.3])
def test_a_machine_that_changes_is_followed_at_once_and_changes_no_v(factor):
    """Guards decisions just after another program starts or ends: a few passes without drafts tell."""
    costs = learned(lambda rows: 1 + 0.3 * (rows - 1))
    for _ in range(3):
        costs.observe(1, 0.01 * factor, has_drafts=False)
    assert costs.a_pass == pytest.approx(0.01 * factor, rel=0.02)
    assert costs.v(5) == pytest.approx(2.2, rel=0.02)


def test_partial_passes_teach_what_rows_cost():
    """Guards texts that are always drafted by an early exit, whose verifications are no whole passes."""
    costs = PassCosts()
    costs.observe(1, 0.01)
    for rows in [2, 3, 5, 8] * 20:
        costs.observe_parts([(1, 0.4), (rows, 0.6)], 0.01 * (0.4 + 0.6 * (1 + 0.3 * (rows - 1))))
    assert costs.v(5) == pytest.approx(2.2, rel=0.05)


def test_what_was_never_seen_beyond_eight_rows_is_not_feared():
    """Guards large batches: a guess that forbids such passes would never be put right."""
    costs = learned(lambda rows: 1 + 0.1 * (rows - 1))
    assert costs.v(16) == pytest.approx(2.5, rel=0.05)


def test_cheaper_passes_of_more_rows_are_noise():
    """Guards v >= 1: a row never costs less than nothing."""
    costs = learned(lambda rows: 1 - 0.05 * (rows - 1))
    assert costs.v(8) == 1.0
    assert costs.price(4, 1) == 0.0


def test_no_time_teaches_nothing():
    """Guards clocks that stand still, as in tests."""
    costs = PassCosts()
    costs.observe(1, 0.0)
    costs.observe(4, -1.0)
    assert costs.v(2) == 1 + PRIOR


def test_prices():
    """Guards the price of a row: the tokens that its time would give without drafts."""
    costs = learned(lambda rows: 1 + 0.25 * (rows - 1))
    assert costs.price(1, 1) == pytest.approx(0.25, rel=0.03)
    assert costs.price(4, 4) == pytest.approx(0.25 * 4 / 1.75, rel=0.03)


def test_the_loop_observes_whole_passes_only():
    """Guards what is learned from: passes that resume above an exit layer are no full ones."""
    for drafter, options, is_seen in (
        ("plain", {}, True),
        ("ngram", {"adaptive": False}, True),
        ("early_exit", {"exit_layer": 2}, False),
    ):
        runtime = MarkovRuntime()
        run(runtime, [[0, 1, 0, 1]], drafter, options)
        assert (runtime.costs._sums[0] > 0) is is_seen, drafter


def test_costs_belong_to_one_runtime():
    """Guards against costs of one model that steer another."""
    first, second = tiny_runtime(), tiny_runtime()
    run(first, [[1, 2, 3]])
    assert first.costs is first.costs
    assert first.costs._sums[0]
    assert not second.costs._sums[0]
