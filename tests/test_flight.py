"""Generations that share a loop: prompts in pieces, slots, and who is let go of."""

from __future__ import annotations

import pytest

import selfspec
from selfspec.context import Context
from selfspec.errors import OutOfMemoryError
from selfspec.flight import Flight
from selfspec.loading import has_native

LONG = [i % 200 for i in range(1300)]  # three passes of a prefill
ASKED = {"temperature": 1.0, "seed": 3, "max_new_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine(tiny):
    return selfspec.load(
        tiny, draft="ngram", adaptive=False, **({"threads": 1} if has_native() else {"dtype": "float64"})
    )


def test_a_long_prompt_runs_in_pieces_between_the_rounds_of_others(engine):
    """Guards the others' waiting time, the text, and what the pieces cost: as alone, in the same passes."""
    flight = Flight(engine.runtime, 2, 40)
    flight.board(0, engine.prepare("hello", **ASKED))
    (first,) = flight.fill(512)
    flight.board(1, engine.prepare(LONG, **ASKED))
    found, pieces = {0: list(first.chunks), 1: []}, 0
    while flight.aboard:
        filled = flight.fill(512)
        pieces += not filled and not found[1]
        turned = flight.turn()
        if pieces < 2:
            assert [progress.index for progress in turned] == [0]  # it moves on meanwhile
        for progress in filled + turned:
            found[progress.index] += progress.chunks
            if progress.end is not None:
                want = engine.generate("hello" if progress.index == 0 else LONG, **ASKED)
                assert progress.end.token_ids == want.token_ids
                assert progress.end.stats.prefill_row_layers == want.stats.prefill_row_layers
                assert "".join(chunk.text for chunk in found[progress.index]) == want.text
    assert pieces == 2


def test_who_is_let_go_of_leaves_a_slot_wherever_it_stands(engine):
    """Guards slots: of a prompt half-way and of a text in its rounds; the one beside them goes on as alone."""
    flight = Flight(engine.runtime, 3, 40)
    for index, prompt in enumerate([LONG, "hello", "there"]):
        flight.board(index, engine.prepare(prompt, **ASKED))
    assert flight.free_slots == 0
    assert flight.fill(512) == []
    flight.drop(0)
    assert [progress.index for progress in flight.fill()] == [1, 2]
    flight.turn()
    flight.drop(1)
    assert (flight.aboard, flight.free_slots) == ((2,), 2)
    flight.board(3, engine.prepare("new", **ASKED))
    ends = {}
    while flight.aboard:
        ends |= {progress.index: progress.end for progress in [*flight.fill(), *flight.turn()] if progress.end}
    for index, prompt in ((2, "there"), (3, "new")):
        assert ends[index].token_ids == engine.generate(prompt, **ASKED).token_ids


def test_a_prompt_that_fails_half_way_fails_alone(engine, monkeypatch):
    """Guards the neighbours of a prefill that raises; memory that runs out is everybody's."""
    write = Context.write

    def failing(context, slot, tokens, first=0, *rest):
        if len(tokens) > 600:
            raise error
        return write(context, slot, tokens, first, *rest)

    monkeypatch.setattr(Context, "write", failing)
    flight = Flight(engine.runtime, 2, 1400)
    for index, prompt in enumerate([LONG, "hello"]):
        flight.board(index, engine.prepare(prompt, **ASKED))
    error = LookupError("a bug")
    failed, first = flight.fill()
    assert (failed.index, failed.end, first.index, flight.free_slots) == (0, error, 1, 1)
    flight.board(2, engine.prepare(LONG, **ASKED))
    error = OutOfMemoryError("full")
    with pytest.raises(OutOfMemoryError):
        flight.fill()
