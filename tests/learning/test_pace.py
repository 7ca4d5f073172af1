"""A share of a core, by a clock that the tests hold."""

from __future__ import annotations

import numpy as np
import pytest

from selfspec.learning.pace import Pace, threads_of_products


class Clock:
    now = cpu = 0.0


@pytest.mark.parametrize("share", [0.01, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("times", [1, 4])
def test_work_takes_its_share_and_no_more(share, times):
    """Guards the promise: in any stretch of time at most the share of it, and one piece of work more."""
    clock, random = Clock(), np.random.default_rng(0)
    pace = Pace(share, times, lambda: clock.now, lambda: clock.cpu)
    marks, longest = [(0.0, 0.0)], 0.0
    for _ in range(400):
        if random.random() < 0.05:
            clock.now += random.exponential(5.0)  # nothing to do: it must not be saved up
        pace.begin()
        took = float(random.exponential(0.01))
        longest = max(longest, times * took)
        clock.cpu += took
        clock.now += took * float(random.uniform(1.0, 4.0))  # others run, too
        rest = pace.end()
        assert rest >= 0.0
        marks.append((clock.now, pace.spent))
        clock.now += rest
    assert pace.spent == pytest.approx(times * clock.cpu)
    for i in range(0, len(marks), 7):
        for j in range(i + 1, len(marks), 11):
            wall, work = marks[j][0] - marks[i][0], marks[j][1] - marks[i][1]
            assert work <= share * wall + 2 * longest


def test_without_a_rest_it_takes_all_that_it_is_given():
    """Guards a whole core: nothing waits that need not."""
    clock = Clock()
    pace = Pace(1.0, 1, lambda: clock.now, lambda: clock.cpu)
    pace.begin()
    clock.cpu += 0.5
    clock.now += 0.5
    assert pace.end() == pytest.approx(0.0)


def test_threads_of_products_are_at_least_one(monkeypatch):
    """Guards what CPU seconds of this thread stand for, where nobody limits the threads of products."""
    assert threads_of_products() >= 1
    monkeypatch.setattr("selfspec.learning.pace._blas", lambda: None)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    assert threads_of_products() == 3
