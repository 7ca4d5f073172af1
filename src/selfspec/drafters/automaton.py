"""An online suffix automaton: which suffix of a growing text stood before, and what it went on with.

The automaton of Blumer et al. (1985) grows by one token in amortised constant time and has at most 2 states and 3
transitions a token. Here it also counts: how often the string of a state occurred, and where it ended last.
It runs between two passes of a model, when the caches are cold: it is made of a few flat arrays and one dictionary,
and takes about a dozen array reads a token. A state has one transition in place, as most have no other; no more
transitions than there are tokens are left for the dictionary.
"""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = 0
NESTED = 16
"""How many of the suffixes that stood before are counted with a token, the longest first.

In ordinary text there are 2 to 4. In a text that repeats itself without end there are as many as repetitions; then
the shorter suffixes are counted too low, which matters little beside so long a match, and a token stays cheap.
"""
_NONE = -2  # no token; -1 is left for separators
_INTEGER = 32  # bytes of an integer object of Python


class SuffixAutomaton:
    """All substrings of a text of tokens (-1 to 2^31 - 1); those that end at the same places share a state.

    ``size`` is the number of tokens so far, ``nested`` how many suffixes are counted with a token (`NESTED`).
    """

    def __init__(self, nested: int = NESTED) -> None:
        self.size = 0
        self._nested = nested
        self._last = ROOT  # the state of the whole text
        self._length, self._link = array("i", [0]), array("i", [-1])
        self._count, self._latest = array("i", [0]), array("i", [0])
        # the first transition of each state, and the newest of its others
        self._token, self._target, self._newest = array("i", [_NONE]), array("i", [ROOT]), array("i", [-1])
        # the others: (state, token) -> target; for listing them a token and the one before it of the same state
        self._others: dict[int, int] = {}
        self._other, self._older = array("i"), array("i")

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens."""
        for token in tokens:
            self._append(token)

    def match(self, ahead: Iterable[int] = ()) -> tuple[int, int]:
        """The longest suffix of the text that stood in it before: its state and its length.

        With ``ahead``, that of the text with these tokens after it, which are not appended.
        """
        state = self._link[self._last] if self.size else ROOT
        length = self._length[state]
        for token in ahead:
            while (following := self.step(state, token)) == ROOT and state != ROOT:
                state = self._link[state]
                length = self._length[state]
            state, length = following, length + 1 if following != ROOT else 0
        return state, length

    def step(self, state: int, token: int) -> int:
        """The state of the string of ``state`` with ``token`` after it; `ROOT` if that never stood in the text."""
        if self._token[state] == token:
            return self._target[state]
        return self._others.get(state << 32 | (token + 1), ROOT) if self._newest[state] >= 0 else ROOT

    def continuations(self, state: int, most: int) -> list[tuple[int, int]]:
        """What followed the string of ``state``, as (token, state with it): the one seen first, then the newest."""
        if self._token[state] == _NONE:
            return []
        found = [(self._token[state], self._target[state])]
        edge = self._newest[state]
        while edge >= 0 and len(found) < most:
            token = self._other[edge]
            found.append((token, self._others[state << 32 | (token + 1)]))
            edge = self._older[edge]
        return found

    def shorter(self, state: int) -> int:
        """The state of the longest suffix of the string of ``state`` that ended elsewhere too."""
        return self._link[state]

    def length(self, state: int) -> int:
        """The length of the longest string of ``state``."""
        return self._length[state]

    def count(self, state: int) -> int:
        """How often the string of ``state`` occurred (see `NESTED`), overlapping ones too."""
        return self._count[state]

    def latest(self, state: int) -> int:
        """Where it ended last: the index of the token that followed."""
        return self._latest[state]

    @property
    def nbytes(self) -> int:
        """Bytes of memory, all objects counted: at most 200 a token, 130 in ordinary text."""
        arrays = (self._length, self._link, self._count, self._latest, self._token, self._target, self._newest)
        others = 2 * _INTEGER * len(self._others)
        return sum(map(sys.getsizeof, (*arrays, self._other, self._older, self._others))) + others

    def _append(self, token: int) -> None:
        first, target, link, others, newest = self._token, self._target, self._link, self._others, self._newest
        self.size += 1
        new = self._new_state(self.size)
        state, found = self._last, ROOT
        while state >= 0:
            if first[state] == token:
                found = target[state]
                break
            if first[state] == _NONE:
                first[state], target[state] = token, new
            else:
                if newest[state] >= 0 and (found := others.get(state << 32 | (token + 1), ROOT)):
                    break
                self._add_other(state, token, new)
            state = link[state]
        if state < 0:
            link[new] = ROOT
        elif self._length[state] + 1 == self._length[found]:
            link[new] = found
        else:
            link[new] = link[found] = self._split(found, state, token)
        self._last = new
        self._count_suffixes(link[new])

    def _new_state(self, length: int) -> int:
        self._length.append(length)
        self._link.append(ROOT)
        self._count.append(1)
        self._latest.append(self.size)
        self._token.append(_NONE)
        self._target.append(ROOT)
        self._newest.append(-1)
        return len(self._length) - 1

    def _split(self, found: int, state: int, token: int) -> int:
        """Give the shorter strings of ``found``, up to that of ``state`` with ``token``, a state of their own."""
        new = self._new_state(self._length[state] + 1)
        self._count[new], self._latest[new] = self._count[found], self._latest[found]
        self._link[new] = self._link[found]
        first, *rest = self.continuations(found, self.size) or [(_NONE, ROOT)]
        self._token[new], self._target[new] = first
        for other, after in reversed(rest):
            self._add_other(new, other, after)
        while state >= 0 and self.step(state, token) == found:
            if self._token[state] == token:
                self._target[state] = new
            else:
                self._others[state << 32 | (token + 1)] = new
            state = self._link[state]
        return new

    def _add_other(self, state: int, token: int, target: int) -> None:
        self._others[state << 32 | (token + 1)] = target
        self._other.append(token)
        self._older.append(self._newest[state])
        self._newest[state] = len(self._other) - 1

    def _count_suffixes(self, state: int) -> None:
        """Count what ends here, from the longest suffix that stood before."""
        for _ in range(self._nested):
            if state == ROOT:
                return
            self._count[state] += 1
            self._latest[state] = self.size
            state = self._link[state]
