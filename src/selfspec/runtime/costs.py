"""What a pass of T rows costs on a runtime, learned from the passes that it runs anyway."""

from __future__ import annotations

import numpy as np

PRIOR = 0.15
"""Share of a one-row pass that another row is taken to cost before anything is known."""
BEND = 8
"""Rows beyond which another row may cost more: there memory no longer hides arithmetic."""
MEMORY = 0.98
"""Weight of a pass among those since: costs drift with the length of the context and the load of the machine."""
_TRUST = 1.0  # how many passes the prior counts for, times the square of the rows that they are apart
_SPIKE = 2.0  # a pass that took longer than this many times what was expected was disturbed


class PassCosts:
    """The time of a pass as a line over its rows, with a bend: a + b (T - 1) + c max(0, T - 8).

    A least-squares fit over all passes seen, older ones counting less, that leans towards b = c = 0.15 a. What
    is asked of it is relative, so it does not matter which part of a round the seconds are of, as long as it is
    always the same. Generations that run at once may share it: a lost observation does no harm.
    """

    def __init__(self) -> None:
        lean = np.array([[-PRIOR, 1.0, 0.0], [-PRIOR, 0.0, 1.0]])
        self._prior = _TRUST * lean.T @ lean
        self._squares = np.zeros((3, 3))
        self._sums = np.zeros(3)
        self._line = (1.0, PRIOR, PRIOR)
        self._seen = 0

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from a pass of ``rows`` rows over all layers that took ``seconds``, with what belongs to it."""
        if seconds <= 0.0:
            return
        if self._seen:
            seconds = min(seconds, _SPIKE * self._line[0] * self.v(rows))
        self._seen += 1
        x = np.array([1.0, rows - 1.0, max(0.0, rows - BEND)])
        self._squares = MEMORY * self._squares + np.outer(x, x)
        self._sums = MEMORY * self._sums + seconds * x
        # the first pass settles a, since nothing leans towards a value of it
        a, b, c = np.linalg.solve(self._squares + self._prior, self._sums).tolist()
        self._line = (max(a, 1e-9), max(b, 0.0), max(c, 0.0))

    def v(self, rows: int) -> float:
        """v(T): the cost of a pass of ``rows`` rows ÷ that of one row; never less than 1."""
        a, b, c = self._line
        return 1.0 + (b * (rows - 1) + c * max(0, rows - BEND)) / a

    def price(self, rows: int, texts: int) -> float:
        """Tokens that a draft token must be expected to add to pay for its row, beside ``rows`` others.

        Without drafts a pass over ``texts`` texts adds a token to each: the row costs the tokens of that time.
        """
        return (self.v(rows + 1) - self.v(rows)) * texts / self.v(texts)
