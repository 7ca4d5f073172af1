"""The utility gate: draft only while it is expected to pay, as many tokens as pay best (Cascade, arXiv 2506.20675).

In a mixture of experts the rows of a verification read experts of their own, so a wrong draft costs more than
nothing. The utility of γ tokens is what they add ÷ what they cost; where it is below 1 for every γ nothing is
drafted, and one token is tried now and then, ever more seldom while that does not change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MEMORY = 0.95
"""Weight of a judged token among those after it."""
PRIOR = (3.0, 1.0)
"""Right and wrong tokens that a text is taken to have seen: trust at first, or nothing would be learned."""
_WAITS = (4, 64)  # rounds without a draft before one is tried: at first, at most


class UtilityGate:
    """γ of one text, from discounted counts of its own judged draft tokens."""

    def __init__(self) -> None:
        self._right, self._wrong = PRIOR
        self._idle, self._wait = 0, _WAITS[0]

    @property
    def alpha(self) -> float:
        """α as it is believed to be."""
        return self._right / (self._right + self._wrong)

    def learn(self, drafted: int, accepted: int) -> None:
        """What became of a draft: tokens after the first wrong one were not judged."""
        for i in range(min(accepted + 1, drafted)):
            is_right = i < accepted
            self._right = MEMORY * self._right + is_right
            self._wrong = MEMORY * self._wrong + (not is_right)

    def choose(self, most: int, c: float, v: Sequence[float]) -> int:
        """The γ, of ``most`` at most, whose tokens per time are best, 0 included.

        ``c`` is the cost of a draft step, ``v`` that of passes of 1, 2, ... rows, in passes without a draft.
        """
        best, rate, tokens, holds = 0, 1.0, 1.0, 1.0
        for gamma in range(1, most + 1):
            holds *= self.alpha
            tokens += holds
            if tokens / (gamma * c + v[gamma]) > rate:
                best, rate = gamma, tokens / (gamma * c + v[gamma])
        if best:
            self._idle, self._wait = 0, _WAITS[0]
            return best
        self._idle += 1
        if self._idle < self._wait:
            return 0
        self._idle, self._wait = 0, min(2 * self._wait, _WAITS[1])
        return min(1, most)
