"""What a pass of T rows costs on a runtime, learned from the passes that it runs anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

PRIOR = 0.15
"""Share of a one-row pass that another row is taken to cost before anything is known."""
BEND = 8
"""Rows beyond which another row may cost more: there memory no longer hides arithmetic."""
MEMORY = 0.98
"""Weight of a pass among those since: costs drift with the length of the context and the load of the machine."""
_TRUST = 1.0  # how many passes the prior counts for, times the square of the rows that they are apart
JUMP = 1.3
"""How many times what was expected passes without drafts take, or the reverse, when the machine has changed."""
AGREEING = 3
"""How many of them in a row say so: one or two may have been disturbed."""
_SPIKE = 2.0  # a pass that took longer than this many times what was expected was disturbed


class PassCosts:
    """The time of a pass as a line over its rows, with a bend: a + b (T - 1) + c max(0, T - 8).

    A least-squares fit over all passes seen, older ones counting less, that leans towards b = 0.15 a and
    c = 0: a bend that is only feared would keep such passes from ever being run, and so from being known. What
    is asked of it is relative, so it does not matter which part of a round the seconds are of, as long as it is
    always the same. Generations that run at once may share it: a lost observation does no harm.

    Where passes without drafts suddenly take another time, the machine has changed: all that was seen is scaled to
    what they take now, and v stays what it was. Until a few of them agree, they are not learned from.
    """

    def __init__(self) -> None:
        self._doubted: list[tuple[int, float]] = []  # passes without drafts that took another time: rows, seconds
        self._line = (1.0, PRIOR, 0.0)
        # sums over the passes, with x = T - 1 and z = max(0, T - 8): of 1, x, z, xx, xz, zz, y, xy, zy
        self._sums = [0.0] * 9

    @property
    def a_pass(self) -> float:
        """What a pass of one row takes at present, in seconds; 0 before any was seen."""
        return self._line[0] if self._sums[0] else 0.0

    def observe(self, rows: int, seconds: float, has_drafts: bool = True) -> None:
        """Learn from a pass of ``rows`` rows over all layers that took ``seconds``, with what belongs to it."""
        if seconds <= 0.0:
            return
        if has_drafts or not self._is_doubted(rows, seconds):
            self.observe_parts([(rows, 1.0)], seconds)

    @property
    def is_in_doubt(self) -> bool:
        """Whether the last pass without drafts took another time than was expected: the next one will tell."""
        return bool(self._doubted)

    def _is_doubted(self, rows: int, seconds: float) -> bool:
        """Whether to wait for the next passes without drafts before this one is learned from."""
        ratio = self._ratio(rows, seconds)
        if not self.a_pass or 1.0 / JUMP < ratio < JUMP:
            self._doubted.clear()
            return False
        if self._doubted and (self._ratio(*self._doubted[-1]) > 1.0) != (ratio > 1.0):
            self._doubted.clear()
        self._doubted.append((rows, seconds))
        if len(self._doubted) < AGREEING:
            return True
        self.scale(sorted(self._ratio(*one) for one in self._doubted)[AGREEING // 2])
        self._doubted.clear()
        return False

    def _ratio(self, rows: int, seconds: float) -> float:
        """What a pass took ÷ what was expected."""
        return seconds / (self._line[0] * self.v(rows))

    def scale(self, ratio: float) -> None:
        """Passes take so many times what they took."""
        self._sums[6:] = [ratio * old for old in self._sums[6:]]
        self._line = (ratio * self._line[0], ratio * self._line[1], ratio * self._line[2])

    def observe_parts(self, parts: Sequence[tuple[int, float]], seconds: float) -> None:
        """Learn from a pass of parts that ran other rows each: (rows, share of the time of a pass of one row)."""
        if seconds <= 0.0:
            return
        if self.a_pass:
            seconds = min(seconds, _SPIKE * self.a_pass * sum(share * self.v(rows) for rows, share in parts))
        one = sum(share for _, share in parts)
        x = sum(share * (rows - 1.0) for rows, share in parts)
        z = sum(share * max(0, rows - BEND) for rows, share in parts)
        seen = (one * one, one * x, one * z, x * x, x * z, z * z, one * seconds, x * seconds, z * seconds)
        self._sums = [MEMORY * old + new for old, new in zip(self._sums, seen, strict=True)]
        n, sx, sz, xx, xz, zz, y, xy, zy = self._sums
        # normal equations; the leaning adds the squares of b - PRIOR a and of c
        lean = _TRUST * PRIOR
        n, sx, xx, zz = n + lean * PRIOR, sx - lean, xx + _TRUST, zz + _TRUST
        a, b, c = _solved((n, sx, sz), (sx, xx, xz), (sz, xz, zz), (y, xy, zy))
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


_Vector: TypeAlias = tuple[float, float, float]


def _solved(first: _Vector, second: _Vector, third: _Vector, right: _Vector) -> _Vector:
    """The solution of linear equations with the given columns, by Cramer's rule: no library call is as fast."""
    whole = _determinant(first, second, third)
    return (
        _determinant(right, second, third) / whole,
        _determinant(first, right, third) / whole,
        _determinant(first, second, right) / whole,
    )


def _determinant(a: _Vector, b: _Vector, c: _Vector) -> float:
    return (
        a[0] * (b[1] * c[2] - b[2] * c[1]) - a[1] * (b[0] * c[2] - b[2] * c[0]) + a[2] * (b[0] * c[1] - b[1] * c[0])
    )
