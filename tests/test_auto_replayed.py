"""The controller as the default drafter: recorded answers at measured costs, predictions, and batches."""

from __future__ import annotations

from statistics import harmonic_mean

import pytest
from replayed import gains
from simulated import CONFIG, SimulatedRuntime, auto, speed

from selfspec import drafters
from selfspec.drafters.evidence import Record

DEFAULT = "auto:suffix,early_exit"


def mean(found):
    """S over all answers: their tokens in the time of all."""
    return harmonic_mean(found.values())


@pytest.mark.parametrize("bits", [16, 8, 4])
def test_the_default_is_as_good_as_look_up_alone(bits):
    """Guards the default: 3 % at most for deciding and for exits that are never right, and none much slower."""
    alone, chosen = gains(bits, "suffix"), gains(bits, DEFAULT)
    assert mean(chosen) > 0.985 * mean(alone)
    for task, gain in chosen.items():
        assert gain > 0.96 * alone[task], task
        assert gain > 0.97, task


def test_it_catches_a_controller_that_believes_no_look_up(monkeypatch):
    """The negative control."""
    monkeypatch.setattr(Record, "honesty", 0.0)
    assert mean(gains(16, DEFAULT, repeats=1)) < 1.02


@pytest.mark.parametrize("candidates", ["suffix,lighter:7", "suffix,lighter:7,early_exit"])
def test_with_fewer_bits_it_gains_more_than_either_alone(candidates):
    """Guards the choice between a look-up and a dear draft, also beside exits that are tried first."""
    best = max(mean(gains(16, "suffix")), mean(gains(16, "lighter:4")))
    assert mean(gains(16, f"auto:{candidates}")) > best


def test_an_engine_finds_the_better_draft_within_its_first_answers():
    """Guards probes: a dear candidate has its turn although cheap ones are there."""
    assert mean(gains(16, "auto:early_exit,lighter:7", repeats=1)) > 0.9 * mean(gains(16, "lighter:4"))


def test_a_right_prediction_is_used_as_well_as_by_look_up_alone():
    """Guards predictions under the controller: it must see one token hold before it believes."""
    alone = gains(16, "suffix", prediction=list)
    chosen = gains(16, DEFAULT, prediction=list)
    assert mean(alone) > 4.0
    assert mean(chosen) > 0.96 * mean(alone)


def batch_gain(texts, slope, drafter, rounds=100):
    """Speed ÷ that of plain decoding, and row-layers per token, once a text alone has shown what rows cost."""
    simulated = SimulatedRuntime(lambda *_: 0.8, slope)
    speed(simulated, drafter, 150)
    rate, layers, _ = speed(simulated, drafter, 10**5, texts=texts, rounds=rounds)
    return rate / (100.0 * texts / (1.0 + slope * (texts - 1))), layers


@pytest.mark.parametrize("texts", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("slope", [0.1, 0.3])
def test_the_batch_in_which_speculation_stops_paying_is_found(slope, texts):
    """Guards the price of a row: the more texts share a pass, the fewer drafts pay, and at last none."""
    gain, layers = batch_gain(texts, slope, auto())
    fixed = max(
        batch_gain(texts, slope, drafters.create("early_exit", CONFIG, {"exit_layer": 2, "gamma": gamma}), 50)[0]
        for gamma in (1, 2)
    )
    assert gain > 0.98
    assert gain > 0.94 * fixed
    if fixed < 0.95:
        assert layers < 1.02
