"""A corpus that drafts are copied from: its tokens, and places ordered by what stands before them, mapped files.

Where a text goes on is found by one binary search: places are sorted by the tokens before them, read backwards (a
suffix array of the reversed corpus), so the places that share the longest context with the text are neighbours.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from selfspec.prefixes import shared_length

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray

DEPTH = 32
"""How many tokens before a place are told apart: longer matches are no better."""
MOST_PLACES = 64
"""How many places of a match are looked at, evenly spread over all of them."""
TOKENS, ORDER = "tokens.npy", "order.npy"


class Found(NamedTuple):
    """The longest match of a text: its length, and places that go on from it, at most `MOST_PLACES`."""

    length: int
    places: list[int]


class Corpus:
    """Token ids [n] as uint32, texts apart by ``separator``, and places in the order of their contexts.

    A place is the index of a token that follows another one of its text.
    """

    def __init__(self, tokens: NDArray[Any], order: NDArray[Any], separator: int) -> None:
        self.separator = separator
        # plain integers from a buffer: a cold NumPy call costs more than the whole search
        self.tokens = tokens.data
        self._order = order.data

    @classmethod
    def open(cls, folder: Path, separator: int) -> Corpus:
        """Map what `save` wrote."""
        tokens, order = (np.load(folder / name, mmap_mode="r") for name in (TOKENS, ORDER))
        return cls(tokens, order, separator)

    def __len__(self) -> int:
        return len(self.tokens)

    def find(self, text: Sequence[int]) -> Found:
        """Where the longest suffix of ``text`` that is in the corpus goes on."""
        wanted = list(text[-DEPTH:])[::-1]
        at = bisect_left(self._order, wanted, key=lambda place: self._before(place, DEPTH))
        beside = [self._order[i] for i in (at - 1, at) if 0 <= i < len(self._order)]
        length = max((shared_length(self._before(place, DEPTH), wanted) for place in beside), default=0)
        if length == 0:
            return Found(0, [])
        start, stop = self._alike(at, wanted[:length])
        step = -(-(stop - start) // MOST_PLACES)
        return Found(length, [self._order[i] for i in range(start, stop, step)])

    def _alike(self, at: int, wanted: list[int]) -> tuple[int, int]:
        """The range of the order, around ``at``, whose contexts begin with ``wanted``; mostly it is short."""

        def key(place: int) -> list[int]:
            return self._before(place, len(wanted))

        below = above = 1
        while at - below >= 0 and key(self._order[at - below]) == wanted:
            below *= 2
        while at + above < len(self._order) and key(self._order[at + above]) == wanted:
            above *= 2
        start = bisect_left(self._order, wanted, max(0, at - below), at, key=key)
        return start, bisect_right(self._order, wanted, start, min(at + above + 1, len(self._order)), key=key)

    def _before(self, place: int, length: int) -> list[int]:
        """The last ``length`` tokens before a place, the nearest first."""
        return self.tokens[max(0, place - length) : place][::-1].tolist()


def save(tokens: NDArray[np.uint32], separator: int, folder: Path) -> None:
    """Write the tokens of a corpus and the order of its places."""
    np.save(folder / TOKENS, tokens)
    np.save(folder / ORDER, ordered(tokens, separator))


def ordered(tokens: NDArray[np.uint32], separator: int) -> NDArray[np.uint32]:
    """The places of a corpus, sorted by the `DEPTH` tokens before each, read backwards.

    Prefix doubling (Manber and Myers), begun with as many tokens as fit into a 64-bit key; after that, only places
    that are still alike are sorted again, as Larsson and Sadakane do.
    """
    order, rank, is_first, known = _by_first_tokens(tokens[::-1].astype(np.uint64) + 1, separator + 1)
    while known < DEPTH:
        is_alone = is_first & np.append(is_first[1:], True)
        slots = np.flatnonzero(~is_alone)
        if not len(slots):
            break
        alike = order[slots]
        following = np.zeros(len(alike), dtype=np.int64)
        is_inside = alike + known < len(rank)
        following[is_inside] = rank[alike[is_inside] + known] + 1
        key = rank[alike] * (len(rank) + 1) + following
        by_key = np.argsort(key, kind="stable")
        order[slots] = alike[by_key]
        is_first[slots] = _starts(key[by_key])
        rank[order[slots]] = np.maximum.accumulate(np.where(is_first[slots], slots, 0))
        known *= 2
    places = len(tokens) - order  # what follows suffix s of the reversed corpus is token n - s
    places = places[places < len(tokens)]
    is_place = (tokens[places] != separator) & (tokens[places - 1] != separator)
    found: NDArray[np.uint32] = places[is_place].astype(np.uint32)
    return found


def _by_first_tokens(
    reverse: NDArray[np.uint64], most: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_], int]:
    """Suffixes by their first few tokens: order, rank (the slot of the first one alike), firsts, how many."""
    bits = most.bit_length()
    width = 1 << ((64 // bits).bit_length() - 1)  # a power of two: ranks double from it
    key = np.zeros(len(reverse), dtype=np.uint64)
    for i in range(width):
        key <<= np.uint64(bits)
        key[: max(0, len(reverse) - i)] |= reverse[i:]
    order = np.argsort(key, kind="stable")
    is_first = _starts(key[order])
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))
    return order, rank, is_first, width


def _starts(key: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a sorted array has a new value."""
    return np.concatenate([[True], key[1:] != key[:-1]])
