"""Prompts that go on from what earlier texts have left: the same texts, fewer rows."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import tiny_core, tiny_hybrid, tiny_runtime

from selfspec.engine import Engine
from selfspec.flight import Flight
from selfspec.model.config import Layer
from selfspec.prefixes import LEAST_SHARED, Prefixes, shared_length

FIRST = list(range(3, 33))
ASKED = {"max_new_tokens": 12, "ignore_eos": True, "temperature": 1.0, "seed": 5}
WINDOWS = {"layers": (Layer(window=8), Layer(), Layer(window=8), Layer(), Layer(window=8))}


class Whole:
    def rewinds(self, written, to):
        return True


class Stuck:
    def rewinds(self, written, to):
        return to in (0, written)


def flown(flight, engine, index, prompt, **more):
    """The end of one generation that runs alone in a flight."""
    flight.board(index, engine.prepare(prompt, **ASKED | more))
    found = flight.fill()
    while flight.aboard:
        found += flight.turn()
    return found[-1].end


@pytest.mark.parametrize(
    ("make", "goes_back"),
    [
        (lambda: tiny_core("int8"), True),
        (tiny_runtime, True),
        (lambda: tiny_runtime(**WINDOWS), True),
        (lambda: tiny_hybrid("conv"), False),
        (lambda: tiny_hybrid("delta"), False),
    ],
    ids=["core", "torch", "windows", "conv", "delta"],
)
@pytest.mark.parametrize(
    "draft", [{"draft": "plain"}, {"draft": "early_exit", "exit_layer": 2, "gamma": 3}], ids=str
)
def test_a_text_is_the_same_whatever_its_slot_holds(make, goes_back, draft):
    """Guards bits and counts: a conversation goes on, a prefix is shared, what cannot rewind starts anew."""
    engine = Engine(make(), None, "tiny", **draft)
    flight = Flight(engine.runtime, 1, 96, keeps_prefixes=True)
    first = flown(flight, engine, 0, FIRST)
    asked = [*FIRST, *first.token_ids]
    prompts = {
        1: [*asked, 7, 8],  # all of it, and more
        2: [*FIRST[:24], 50, 51, 52],  # a part
        3: [60, *FIRST],  # nothing
        4: [60, *FIRST],  # the same again: all but its last token
    }
    cached = {1: len(asked) - 1, 2: 24, 3: 0, 4: len(FIRST)}
    for index, prompt in prompts.items():
        made = flown(flight, engine, index, prompt)
        alone = engine.generate(prompt, **ASKED)
        assert made.token_ids == alone.token_ids
        want = cached[index] if goes_back or index == 1 else 0
        assert made.cached_tokens == want, index
        rows = (len(prompt) - want) * engine.config.num_layers
        assert made.stats.prefill_row_layers == pytest.approx(rows)


def test_who_is_let_go_of_leaves_what_has_run():
    """Guards a prompt half-way, a text in its rounds, and one that failed, whose cells nobody should trust."""
    engine = Engine(tiny_core("int8"), None, "tiny", draft="early_exit", exit_layer=2)
    prompt = list(range(1, 61))

    def fails(tokens, logits):
        if len(tokens) > 61:
            raise ZeroDivisionError
        return logits

    for rounds in (0, 2):
        flight = Flight(engine.runtime, 1, 96, keeps_prefixes=True)
        flight.board(0, engine.prepare(prompt, **ASKED))
        flight.fill()
        for _ in range(rounds):
            flight.turn()
        flight.drop(0)
        again = flown(flight, engine, 1, [*prompt, 5])
        assert again.token_ids == engine.generate([*prompt, 5], **ASKED).token_ids
        assert again.cached_tokens == 60
    flight = Flight(engine.runtime, 1, 96, keeps_prefixes=True)
    assert isinstance(flown(flight, engine, 0, prompt, processors=[fails]), ZeroDivisionError)
    assert flown(flight, engine, 1, prompt).cached_tokens == 0


def test_rows_that_must_run_do(monkeypatch):
    """Guards scores of prompts, and drafters that need the states of every row (the hook for trained heads)."""
    engine = Engine(tiny_core("int8"), None, "tiny", draft="early_exit", exit_layer=2)
    flight = Flight(engine.runtime, 1, 96, keeps_prefixes=True)
    flown(flight, engine, 0, FIRST)
    scored = flown(flight, engine, 1, FIRST, prompt_logprobs=1)
    assert (scored.cached_tokens, len(scored.prompt_scores)) == (0, len(FIRST) - 1)
    assert flown(flight, engine, 2, FIRST).cached_tokens == len(FIRST) - 1
    monkeypatch.setattr("selfspec.drafters.early_exit.EarlyExit.reads_prompt_states", True)
    assert flown(flight, engine, 3, FIRST).cached_tokens == 0
    off = Flight(engine.runtime, 1, 96)
    assert [flown(off, engine, i, FIRST).cached_tokens for i in range(2)] == [0, 0]


def test_scores_of_a_prompt_are_those_of_a_generation(tmp_path):
    """Guards `prompt_logprobs` in Python: one for each token but the first, the same where it is written."""
    engine = Engine(tiny_core("fp32"), None, "tiny", draft="plain")
    made = engine.generate(FIRST, max_new_tokens=9, ignore_eos=True, logprobs=2)
    again = engine.generate([*FIRST, *made.token_ids], max_new_tokens=1, prompt_logprobs=2)
    assert again.prompt_scores[len(FIRST) - 1 :] == made.scores
    assert len(again.to_dict()["prompt_logprobs"]) == len(FIRST) + len(made.token_ids) - 1


def test_the_slot_that_has_most_is_taken_else_an_empty_one_else_who_left_first():
    """Guards the choice of slots, whatever was left in which order."""
    long, other = list(range(100)), list(range(500, 600))
    held = Prefixes()
    held.leave(2, long)
    held.leave(0, other)
    assert held.take([0, 1, 2], [*long[:50], 7, 7], Whole()) == (2, 50)
    assert held.take([0, 1, 2], [*long[:50], 7, 7], Whole()) == (1, 0)  # it is not there any more
    assert held.take([0], [1, 2, 3], Whole()) == (0, 0)
    held.leave(1, long)
    held.leave(0, other)
    assert held.take([0, 1], [*long[:LEAST_SHARED], 7], Stuck()) == (1, 0)  # who left first
    held.leave(1, long)
    assert held.take([0, 1], [*long, 5], Stuck()) == (1, 100)
    held.leave(1, long)
    assert held.take([0, 1], long, Whole()) == (1, 99)  # the last token runs
    held.leave(1, long[: LEAST_SHARED - 1])
    assert held.take([1], long, Whole()) == (1, 0)


def test_shared_length_by_definition():
    """Guards the quick way."""
    random = np.random.default_rng(0)
    for _ in range(300):
        one, other = (random.integers(0, 2, int(n)).tolist() for n in random.integers(0, 7, 2))
        want = next(n for n in range(min(len(one), len(other)), -1, -1) if one[:n] == other[:n])
        assert shared_length(one, other) == want
