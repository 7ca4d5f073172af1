"""The model of drafting ahead, against the real loop on a clock that the passes move."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from doubles import Host
from simulated import CONFIG, SIZE, SimulatedRuntime, right_token, speed

from selfspec import drafters
from selfspec.errors import OptionError
from selfspec.measure.overlap import Setting, hit_rate, predict


class Drafting(SimulatedRuntime):
    """The right token is among its F likeliest with probability 1 - (1 - α) F^-r; a step takes c target passes."""

    def __init__(self, target, setting):
        super().__init__(lambda *_: 0.0, setting.draft_row)
        self.clock, self.setting = target.clock, setting
        self.ranked = cache(self._ranked)
        # as many of each rank as there should be, in a random order
        self.drawn = np.random.default_rng(7).permutation((np.arange(1_600) + 0.5) / 1_600)

    def _takes(self, share, rows):
        self.clock.now += self.setting.c * 0.01 * share * (1.0 + self.slope * (rows - 1))

    def logits(self, hidden):
        self._takes(0.0, len(hidden))
        return np.stack([self.ranked(place + 1) for place in hidden[:, 0].astype(int).tolist()])

    def run(self, hidden, plan, rows, cache, taps=()):
        self._takes(1.0, len(hidden))
        return hidden, {}

    def _ranked(self, place):
        """Logits of the token at a place."""
        rank = 1
        while rank < SIZE and self.drawn[place] < (1.0 - self.setting.alpha) * rank**-self.setting.spread:
            rank += 1
        order = [token for token in range(SIZE) if token != right_token(place)]
        order.insert(rank - 1, right_token(place))
        logits = np.zeros(SIZE)
        logits[order] = -np.arange(SIZE)
        return logits


class Beside:
    """Another device: what begins now ends when it would if nobody waited; meanwhile the target is slowed."""

    def __init__(self, target, slowdown):
        self.target, self.slowdown = target, slowdown

    def __call__(self, work):
        clock = self.target.clock
        started = clock.now
        found = work()
        took, clock.now = clock.now - started, started
        self.target.load = lambda _: self.slowdown

        class Work:
            def result(_self):
                self.target.load = lambda _: 1.0
                clock.now = max(clock.now, started + took)
                return found

        return Work()


def measured(setting, adaptive=False, tokens=1500):
    """Speedup over plain decoding, the share of rounds that drafted ahead, and of those the hits."""
    target = SimulatedRuntime(lambda *_: 1.0, setting.v_slope)
    host = Host(target, {"other": Drafting(target, setting)})
    wraps = f"draft_model:draft_model=other:gamma={setting.gamma}"
    options = {"wraps": wraps, "outcomes": setting.outcomes, "adaptive": adaptive}
    drafter = drafters.create("overlap", CONFIG, options, host)
    drafter.begin_work = Beside(target, setting.slowdown)
    memories = []
    begin = drafter.begin

    def kept(text):
        begin(text)
        memories.append(drafter._memories[text])

    drafter.begin = kept
    rate, _, rounds = speed(target, drafter, tokens)
    (memory,) = memories
    return rate / 100.0, memory.ahead / rounds, memory.hits / max(memory.ahead, 1)


class Linear(Setting):
    """A setting whose v(T) is a line."""

    v_slope = 0.05


def setting(**options):
    gamma = options.get("gamma", 4)
    return Linear(v=[1.0 + Linear.v_slope * row for row in range(gamma + 1)], **options)


SETTINGS = {
    "a fast second device": setting(alpha=0.8, gamma=4, c=0.1, outcomes=8, draft_row=0.02),
    "drafts that take longer than the target": setting(alpha=0.7, gamma=3, c=0.45, outcomes=4, draft_row=0.02),
    "few outcomes": setting(alpha=0.6, gamma=2, c=0.2, outcomes=2, spread=1.2),
    "one device that is shared": setting(alpha=0.8, gamma=4, c=0.1, outcomes=8, slowdown=1.5),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_model_agrees_with_the_loop(name):
    """Guards every term: hit rate and speedup within 5 % of what the real drafter does, by a simulated clock."""
    chosen = SETTINGS[name]
    want = predict(chosen)
    speedup, share, hits = measured(chosen)
    assert share > 0.99
    assert hits == pytest.approx(want.hit_rate, rel=0.05)
    assert speedup == pytest.approx(want.speedup, rel=0.05)


def test_what_does_not_pay_is_left_out():
    """Guards the back-off in the real loop: nearly the speed without it, where it pays nearly that with it."""
    shared, second = SETTINGS["one device that is shared"], SETTINGS["a fast second device"]
    speedup, share, _ = measured(shared, adaptive=True, tokens=1500)
    assert share < 0.1
    assert speedup > 0.97 * predict(shared).speedup_without
    speedup, share, _ = measured(second, adaptive=True, tokens=1500)
    assert share > 0.9
    assert speedup > 0.95 * predict(second).speedup


def test_the_model_by_hand():
    """Guards the formulas: one token and one outcome, and drafts that cost nothing."""
    one = Setting(alpha=0.5, gamma=1, c=0.2, outcomes=1, spread=1.0)
    assert one.fan == [1, 0]
    assert hit_rate(one) == pytest.approx(0.5 * 0.5)
    found = predict(one)
    assert (found.tokens, found.ahead, found.round_without) == (1.5, 0.4, 1.2)
    assert found.round_with == pytest.approx(0.75 * 0.2 + 1.0)
    assert found.gain == pytest.approx(1.2 / 1.15)
    free = predict(Setting(alpha=0.5, gamma=1, c=0.0))
    assert free.gain == 1.0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"gamma": 0}, "gamma is 0"),
        ({"outcomes": 40}, "outcomes is 40"),
        ({"c": math.nan}, "c is nan"),
        ({"slowdown": 0.5}, "slowdown is 0.5; it must be 1 or more"),
        ({"v": [1.0]}, "v has 1 values"),
    ],
)
def test_settings_out_of_range(options, says):
    """Guards the one-line errors."""
    with pytest.raises(OptionError, match=says):
        Setting(alpha=0.5, **options)
