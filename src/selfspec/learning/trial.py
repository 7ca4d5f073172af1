"""How often a head's draft would be accepted, in rows that it was not trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from selfspec.learning.linear import normed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from numpy.typing import NDArray

    from selfspec.learning.linear import Weights
    from selfspec.learning.replay import Kept

    Floats = NDArray[np.float32]

BLOCK = 4096
"""Most tokens at a time: rows of the LM head are opened for these, and forgotten."""
WORK = 3e8
"""Floating-point operations of a piece of work, about: some milliseconds."""


def rows_of_piece(each: int) -> int:
    """How many rows of so many operations each run without a pause."""
    return max(1, int(WORK // each))


class Draft(NamedTuple):
    """Who drafts: weights, with the ε of their norm, over draft ``tokens`` [D], rising."""

    weights: Weights
    eps: float
    tokens: NDArray[np.int64]


class _Seen:
    """What a draft says of rows [R], as far as blocks of its tokens were looked at."""

    def __init__(self, rows: Kept) -> None:
        self.temperatures = np.maximum(rows.temperatures, 1e-6)[:, None]
        self.wanted = rows.laws.tokens
        self.top = np.full(len(self.wanted), -np.inf, dtype=np.float32)
        self.likeliest = np.full(len(self.wanted), -1, dtype=np.int64)
        self.totals = np.zeros(len(self.wanted))  # of exp((z - top) / T)
        self.found = np.full(
            self.wanted.shape, -np.inf, dtype=np.float32
        )  # logits of the target's likeliest tokens

    def look(self, part: slice, z: Floats, tokens: NDArray[np.int64]) -> None:
        """The logits [r, B] of some of the rows, for a block of tokens."""
        at = z.argmax(axis=1)
        here = z[np.arange(len(z)), at]
        before, temperatures = self.top[part], self.temperatures[part]
        self.likeliest[part] = np.where(here > before, tokens[at], self.likeliest[part])
        top = np.maximum(here, before)
        grown = np.exp((z - top[:, None]) / temperatures).sum(axis=1)
        self.totals[part] = self.totals[part] * np.exp((before - top) / temperatures[:, 0]) + grown
        self.top[part] = top
        places = np.minimum(np.searchsorted(tokens, self.wanted[part]), len(tokens) - 1)
        is_here = tokens[places] == self.wanted[part]
        self.found[part] = np.where(is_here, np.take_along_axis(z, places, axis=1), self.found[part])


def acceptance(
    draft: Draft, rows_of: Callable[[NDArray[np.int64]], Floats], rows: Kept
) -> Generator[None, None, float]:
    """The mean chance over ``rows`` that the target accepts what a draft says, a short piece of work at a time.

    Of greedy texts: whether the likeliest tokens are equal. Of sampled ones the mass that both laws share at the
    text's temperature, as far as the kept tokens of the target's law go. ``rows_of`` gives rows of the LM head.
    """
    if not len(draft.tokens):
        return 0.0
    d, seen = rows.states.shape[1], _Seen(rows)
    piece = rows_of_piece(2 * d * max(d, BLOCK))
    parts = [slice(start, start + piece) for start in range(0, len(rows.states), piece)]
    states = np.empty_like(rows.states)
    for part in parts:
        states[part] = normed(draft.weights, draft.eps, rows.states[part])
        yield
    for start in range(0, len(draft.tokens), BLOCK):
        tokens = draft.tokens[start : start + BLOCK]
        head = rows_of(tokens)
        for part in parts:
            seen.look(part, states[part] @ head.T, tokens)
            yield
    hits = seen.likeliest == seen.wanted[:, 0]
    p = np.exp(rows.laws.logs / seen.temperatures - (rows.laws.logs[:, :1] / seen.temperatures))
    p /= p.sum(axis=1, keepdims=True)
    q = np.exp((seen.found - seen.top[:, None]) / seen.temperatures) / seen.totals[:, None]
    shared = np.minimum(p, q).sum(axis=1)
    return float(np.where(rows.temperatures > 0, shared, hits).mean())
