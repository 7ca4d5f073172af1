"""The suffix automaton against brute force, its memory, and how much it does for a token."""

from __future__ import annotations

import random
import tracemalloc
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfspec.drafters.automaton import NESTED, ROOT, SuffixAutomaton

TEXTS = st.one_of(
    st.lists(st.integers(0, 1), max_size=40),
    st.lists(st.integers(-1, 3), max_size=40),
    st.lists(st.integers(0, 2**31 - 1), max_size=12),
)


def made(tokens, nested=NESTED):
    automaton = SuffixAutomaton(nested)
    automaton.extend(tokens)
    return automaton


def ends(text, part):
    """Where ``part`` stands in ``text``: the indices of what follows it."""
    return [i for i in range(len(part), len(text) + 1) if text[i - len(part) : i] == part]


def longest(text):
    """The longest suffix that stood before, by trying them all."""
    return next((n for n in range(len(text) - 1, 0, -1) if len(ends(text, text[-n:])) > 1), 0)


def check(text, nested=NESTED):
    """Match, counts, latest places and continuations are those of brute force, for every string of the text."""
    automaton = made(text, nested)
    assert automaton.size == len(text)
    state, length = automaton.match()
    assert length == longest(text)
    assert (state == ROOT) == (length == 0)
    for start in range(len(text)):
        state = ROOT
        for stop in range(start + 1, len(text) + 1):
            part, state = text[start:stop], automaton.step(state, text[stop - 1])
            places = ends(text, part)
            assert state != ROOT
            assert (automaton.count(state), automaton.latest(state)) == (len(places), places[-1])
            following = {text[place] for place in places if place < len(text)}
            found = automaton.continuations(state, len(text))
            assert {token for token, _ in found} == following
            assert len(found) == len(following)
            assert all(after == automaton.step(state, token) for token, after in found)
            # the next shorter suffix that stands elsewhere too
            elsewhere = [n for n in range(1, len(part)) if ends(text, part[-n:]) != places]
            assert automaton.length(automaton.shorter(state)) == max(elsewhere, default=0)


@settings(max_examples=150, deadline=None)
@given(TEXTS)
def test_it_is_brute_force(text):
    """Guards the whole structure: what stood before, where, how often, and what came next."""
    check(text, nested=99)


@pytest.mark.parametrize("text", ["abcabxabcabx", "aabbaabb" * 3, "abcbc", "mississippi" * 2])
def test_some_texts_with_the_real_limit(text):
    """Guards the limit itself: texts that repeat themselves as often as people do are counted exactly."""
    check([ord(letter) for letter in text])


def test_endless_repetition_is_counted_too_low_but_never_too_high():
    """Guards the bound on the work of a token, and that the longest match is exact all the same."""
    automaton = made([7] * 200)
    assert automaton.match()[1] == 199
    state = automaton.step(ROOT, 7)
    assert 2 < automaton.count(state) < 200
    for n in range(2, 200):
        state = automaton.step(state, 7)
        assert automaton.count(state) <= 201 - n
    assert automaton.count(automaton.match()[0]) == 2


@settings(max_examples=30, deadline=None)
@given(TEXTS, st.integers(0, 40))
def test_it_does_not_matter_how_it_grew(text, cut):
    """Guards growth in steps, as in rounds."""
    whole, grown = made(text), SuffixAutomaton()
    grown.extend(text[:cut])
    grown.extend(text[cut:])
    assert vars(whole) == vars(grown)


def test_a_fault_in_a_split_is_seen(monkeypatch):
    """The negative control: states that are split must take the transitions along."""
    monkeypatch.setattr(SuffixAutomaton, "_add_other", lambda *_: None)
    with pytest.raises(AssertionError):
        check([1, 2, 1, 3, 1, 2, 1, 4, 2, 3])


def worst_texts(size):
    """Most states, most transitions, both, most distinct tokens, deepest repetition."""
    draw = random.Random(0)
    return {
        "two tokens": [draw.randrange(2) for _ in range(size)],
        "all different": [300 + i for i in range(size)],
        "a b..b c": [300, *[1000] * (size - 2), 2000],
        "large vocabulary": [draw.randrange(150_000) for _ in range(size)],
        "a period": [300 + i % 37 for i in range(size)],
    }


@pytest.mark.parametrize("size", [1400, 2800])
@pytest.mark.parametrize("kind", list(worst_texts(2)))
def test_memory(kind, size):
    """Guards the claim: under 200 bytes a token, all Python objects counted, whatever the text."""
    text = worst_texts(size)[kind]
    tracemalloc.start()
    automaton = made(text)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used / size < 200
    assert 0.98 * used - 2000 < automaton.nbytes < 200 * size  # an integer that is stored twice counts twice


class Counted(array):
    """An array that counts its reads."""

    reads = 0

    def __getitem__(self, index):
        Counted.reads += 1
        return super().__getitem__(index)


def reads_per_token(text):
    automaton = SuffixAutomaton()
    for name, value in vars(automaton).items():
        if isinstance(value, array):
            setattr(automaton, name, Counted(value.typecode, value))
    Counted.reads = 0
    automaton.extend(text)
    return Counted.reads / len(text)


def test_work_for_a_token_does_not_grow_with_the_text():
    """Guards amortised constant time, by count of array reads, in texts that are hard for it."""
    for kind in worst_texts(2):
        short, long = (reads_per_token(worst_texts(size)[kind]) for size in (500, 2000))
        assert long < 2 * short, kind
        assert long < 90, kind
