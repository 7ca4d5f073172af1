"""What is kept of verifications: states, and the target's likeliest tokens; so much memory and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from selfspec.learning.linear import Lessons

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEPT = 16
"""Tokens that are kept of a law."""
HELD_OUT = 512
"""Most rows that are held out."""
LEAST = 256
"""Rows of which something can be learned."""
_TAIL = 12.0  # nats below the likeliest token: what is less likely is not looked at


class Laws(NamedTuple):
    """Of laws of the target [R]: the likeliest ``tokens`` [R, K] in falling order, and their log probabilities."""

    tokens: NDArray[np.int32]
    logs: NDArray[np.float32]


def digest(logits: NDArray[np.floating[Any]]) -> Laws:
    """The law of each row of ``logits`` [R, V] at temperature 1: its `KEPT` likeliest tokens, in order.

    Of equals the first comes first. Where there are fewer, or the rest has next to no mass, others have -inf.
    """
    tokens = np.zeros((len(logits), KEPT), dtype=np.int32)
    logs = np.full((len(logits), KEPT), -np.inf, dtype=np.float32)
    for i, row in enumerate(logits):
        top = row.max()
        found = np.flatnonzero(row > top - row.dtype.type(_TAIL))
        if len(found) > 64 * KEPT:  # sorting them all would take long
            found = np.sort(found[np.argpartition(-row[found], KEPT)[:KEPT]])
        order = found[np.argsort(-row[found], kind="stable")][:KEPT]
        tokens[i, : len(order)] = order
        total = np.exp(row - top).sum()
        logs[i, : len(order)] = row[order] - top - np.log(total)
    return Laws(tokens, logs)


class Kept(NamedTuple):
    """Rows of a `Replay`: states [R, d], laws, and the temperature of their texts [R], 0 for greedy ones."""

    states: NDArray[np.float32]
    laws: Laws
    temperatures: NDArray[np.float32]


class Replay:
    """The latest rows of verifications: a ring of ``size`` bytes.

    The newest of them are held out: a row is learned from when `HELD_OUT` newer ones have come, so what is judged
    by held-out rows has not seen them.
    """

    def __init__(self, width: int, size: int) -> None:
        self.row_bytes = row_bytes(width)
        self.capacity = size // self.row_bytes
        self.states = np.empty((self.capacity, width), dtype=np.float32)
        self.tokens = np.empty((self.capacity, KEPT), dtype=np.int32)
        self.logs = np.empty((self.capacity, KEPT), dtype=np.float32)
        self.temperatures = np.empty(self.capacity, dtype=np.float32)
        self.count = 0  # of all that have come

    @property
    def nbytes(self) -> int:
        """Bytes of all rows that it can hold."""
        return self.states.nbytes + self.tokens.nbytes + self.logs.nbytes + self.temperatures.nbytes

    def __len__(self) -> int:
        return min(self.count, self.capacity)

    @property
    def held_out(self) -> int:
        """How many of the newest are held out: a quarter of what there is, at most `HELD_OUT`."""
        return min(len(self) // 4, HELD_OUT)

    def add(self, states: NDArray[np.float32], laws: Laws, temperature: float) -> None:
        """Rows [R, d] with their laws; those that are no numbers are left out."""
        is_good = np.isfinite(states).all(axis=1) & np.isfinite(laws.logs[:, 0])
        for state, tokens, logs in zip(states[is_good], laws.tokens[is_good], laws.logs[is_good], strict=True):
            at = self.count % self.capacity
            self.states[at], self.tokens[at], self.logs[at] = state, tokens, logs
            self.temperatures[at] = temperature
            self.count += 1

    def judges(self) -> Kept:
        """The rows that are held out."""
        return self._rows(np.arange(self.count - self.held_out, self.count))

    def drawn(self, rows: int, random: np.random.Generator) -> Kept:
        """So many rows that are not held out, drawn with replacement."""
        first = self.count - len(self)
        return self._rows(random.integers(first, self.count - self.held_out, size=rows))

    def _rows(self, numbers: NDArray[np.int64]) -> Kept:
        at = numbers % self.capacity
        return Kept(self.states[at], Laws(self.tokens[at], self.logs[at]), self.temperatures[at])


def row_bytes(width: int) -> int:
    """What a row with a state of this width takes."""
    return 4 * (width + 2 * KEPT + 1)


def lessons(kept: Kept, places: NDArray[np.int64]) -> Lessons:
    """Rows as the draft vocabulary has them: ``places`` [V] of its tokens, -1 for others, which have no mass."""
    at = places[kept.laws.tokens]
    masses = np.where(at >= 0, np.exp(kept.laws.logs), np.float32(0))
    totals = masses.sum(axis=1, keepdims=True)
    masses = np.divide(masses, totals, out=np.zeros_like(masses), where=totals > 0)
    return Lessons(kept.states, np.maximum(at, 0), masses)
