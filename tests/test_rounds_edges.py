"""The loop and its context where nothing else comes: rows aside, memory that runs out, texts that have gone."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import tiny_hybrid, tiny_runtime

from selfspec import drafters
from selfspec.context import Context, Text
from selfspec.decode import Loop, _errors_of
from selfspec.errors import OptionError
from selfspec.sampling import Chance
from selfspec.types import Sampling


def text_of(slot=0):
    return Text(slot, slot, [1, 2, 3], 12, Sampling(), Chance(0), lambda _: False)


def test_rows_aside_are_refused_where_layers_are_recurrent():
    """Guards searches over skip sets: such a row is found from the rows before it, and not from cells."""
    runtime = tiny_hybrid("delta")
    context = Context(runtime, runtime.new_cache(1, 64))
    with pytest.raises(OptionError, match="has recurrent layers, whose rows cannot run aside"):
        context.replay(context.full, text_of(), None, np.asarray([1]))


def test_memory_concerns_all_texts_and_everything_else_its_own():
    """Guards what a text's error is: the first one stays, and running out of memory is none of a single text."""
    text = text_of()
    with pytest.raises(MemoryError), _errors_of([text]):
        raise MemoryError
    assert text.error is None
    for error in (KeyError("first"), ValueError("second")):
        with _errors_of([text]):
            raise error
    assert isinstance(text.error, KeyError)


def test_a_text_that_is_not_there_is_let_go_of_all_the_same():
    """Guards cancelling: a text may end in the round in which its client leaves."""
    runtime = tiny_runtime()
    loop = Loop(Context(runtime, runtime.new_cache(2, 64)))
    plain, texts = drafters.create("plain", runtime.config, {}), [text_of(0), text_of(1)]
    loop.add(texts[:1], plain)
    loop.remove(texts[1])
    assert loop.texts == (texts[0],)
    loop.remove(texts[0])
    loop.remove(texts[0])
    assert loop.texts == ()
    assert loop.free_slots == [0, 1]
