"""Timing hygiene: one clock, warm-up, alternation; and a drafter of known cost is measured as what it is."""

from __future__ import annotations

import random
from itertools import count

import pytest
from measure_doubles import Fixed, successor

from selfspec import control
from selfspec.measure.ours import DrafterColumn
from selfspec.measure.pairs import paired_ratio
from selfspec.measure.timing import Answer, Ask, Column, Stopwatch

WRONG = 7  # added to a right token


def measured(watch, ask, repeats):
    runs = {}
    for _ in range(repeats):
        for column, run in watch.round(ask):
            runs.setdefault(column.name, []).append(run)
    return runs


def ratio_of(runs, name, base="base"):
    speeds = [[run.tokens_per_second for run in runs[key]] for key in (base, name)]
    return paired_ratio(list(zip(*speeds, strict=True)))


def test_one_clock_gives_every_time(clock, ask):
    """Guards against two clocks: on a clock that only the columns move, every time is exact."""
    (run,) = measured(Stopwatch([Fixed("a", clock, 2.0)], clock), ask, 1)["a"]
    assert (run.seconds, run.ttft_seconds, run.tpot_seconds) == (2.0, 0.5, pytest.approx(1.5 / 9))
    assert run.tokens_per_second == 5.0


def test_a_column_that_never_tells_has_no_first_token(clock, ask):
    """Guards against a made-up time to first token."""

    class Silent(Column):
        name = "silent"

        def answer(self, ask, first):
            clock.spend(1.0)
            return Answer((1, 2))

    (run,) = measured(Stopwatch([Silent()], clock), ask, 1)["silent"]
    assert run.ttft_seconds is None
    assert run.tpot_seconds is None


def test_warm_up_is_not_counted(clock, ask):
    """Guards the first measured run: what a column does once, it does before."""
    cold = Fixed("cold", clock, lambda call: 50.0 if call == 1 else 1.0)
    watch = Stopwatch([cold], clock)
    watch.warm_up(ask)
    assert [run.seconds for run in measured(watch, ask, 3)["cold"]] == [1.0, 1.0, 1.0]


def test_every_pair_of_columns_alternates(clock, ask):
    """Guards the order: of any two columns, each is first as often as the other."""
    order = []
    measured(Stopwatch([Fixed(name, clock, 1.0, order=order) for name in "abc"], clock), ask, 4)
    assert "".join(order) == "abccbaabccba"


def test_a_drifting_machine_favours_nobody(clock, ask):
    """Guards alternation by what it is for: equal columns on a machine that slows down by 3 % a run."""

    runs_so_far = count()

    def drifting(_):
        return 1.03 ** next(runs_so_far)

    columns = [Fixed("base", clock, drifting), Fixed("same", clock, drifting)]
    fair = ratio_of(measured(Stopwatch(columns, clock), ask, 8), "same")
    assert fair.median == pytest.approx(1.0, abs=1e-3)
    assert fair.low < 1.0 < fair.high
    runs = {"base": [], "same": []}  # negative control: always in one order
    for _ in range(8):
        for column, run in Stopwatch(columns, clock).round(ask):
            runs[column.name].append(run)
    biased = ratio_of(runs, "same")
    assert biased.high < 0.98


def test_a_column_that_fails_leaves_and_is_named(clock, ask):
    """Guards the others: they go on, and the failure is kept with its reason."""
    broken = Fixed("broken", clock, lambda call: 1.0 if call < 3 else None)
    watch = Stopwatch([Fixed("base", clock, 1.0), broken], clock)
    runs = measured(watch, ask, 5)
    assert [len(runs[name]) for name in ("base", "broken")] == [5, 2]
    assert watch.failed == {"broken": "out of order"}
    assert broken.is_closed


def test_no_token_is_a_failure(clock, ask):
    """Guards the ratios: an answer of nothing has no speed."""
    watch = Stopwatch([Fixed("empty", clock, 1.0, tokens=0)], clock)
    assert list(watch.round(ask)) == []
    assert "no token" in watch.failed["empty"]


@pytest.mark.parametrize(
    ("alpha", "gamma", "c", "v"), [(0.8, 4, 0.1, 1.2), (0.5, 2, 0.3, 1.5), (0.9, 8, 0.05, 2.0)]
)
def test_a_drafter_of_known_cost_and_acceptance_is_measured_within_5_percent(simulated, clock, alpha, gamma, c, v):
    """Guards the whole chain from loop to ratio: S of the cost model, on a clock that only costs move.

    With 6,000 tokens the standard error of the mean accepted length is below 1 %; seeded, so no false alarm.
    """
    dice = random.Random(1)

    def script(tokens, most):
        draft, last = [], tokens[-1]
        for _ in range(most):
            clock.spend(c)
            last = successor(last)
            draft.append(last if dice.random() < alpha else (last + WRONG) % 64)
        return draft

    engine = simulated(v)
    columns = [
        DrafterColumn(engine, "base", "plain", {}),
        DrafterColumn(engine, "scripted", "scripted", {"script": script, "gamma": gamma}),
    ]
    watch = Stopwatch(columns, clock)
    runs = measured(watch, Ask((1, 2, 3), 6000), 2)
    assert all(run.answer.tokens == runs["base"][0].answer.tokens for run in runs["scripted"])
    found = ratio_of(runs, "scripted").median
    assert found == pytest.approx(control.speedup(alpha, gamma, c, v), rel=0.05)
    stats = runs["scripted"][0].answer.stats
    first = stats.accepted_per_position[0] / stats.drafted_per_position[0]
    assert first == pytest.approx(alpha, rel=0.05)
    assert stats.mean_accepted_length == pytest.approx(control.expected_tokens(alpha, gamma), rel=0.05)
