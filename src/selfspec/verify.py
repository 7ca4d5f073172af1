"""Verification: probabilities and a draft in, a verdict out. Pure: no model, cache, clock or hidden state.

A sampled draft goes through the ratio test of Leviathan et al. (2211.17192) and Chen et al. (2302.01318):
token x is accepted with probability min(1, p(x) / q(x)), and a rejection is replaced by a token from
norm((p - q)+). A deterministic draft (greedy, look-up) needs no q: draw y from p, accept x if y is x, else
emit y. That is the same law, and it spends exactly the random numbers of plain decoding: with one seed, a
text that was drafted deterministically is the plain text, token for token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from selfspec.types import Distribution, Draft, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable


class Dice(Protocol):
    """What decides; ``sampling.Chance`` in production, an enumerator of all outcomes in tests."""

    def accept(self, probability: float) -> bool:
        """True with the given probability."""
        ...

    def pick(self, law: Distribution) -> int:
        """A token from ``law``."""
        ...


def _never(_token: int) -> bool:
    return False


def verify_chain(
    draft: Draft,
    target: Callable[[int], Distribution],
    dice: Dice,
    ends: Callable[[int], bool] = _never,
) -> Verdict:
    """How much of ``draft`` holds, and the bonus token.

    ``target(i)`` is the target's distribution after the first i draft tokens. It is asked from left to
    right, and only while the draft is accepted; ``ends(token)`` is asked once for every accepted token, and
    nothing follows one that ends the text. So the calls of both are exactly those of plain decoding.
    """
    for i, token in enumerate(draft.tokens):
        law = target(i)
        if draft.laws is None:
            choice = dice.pick(law)
            if choice != token:
                return Verdict(i, choice)
        else:
            drafted_from = draft.laws[i]
            assert drafted_from.probability(token) > 0.0, "a draft token that its law cannot give"
            if not dice.accept(law.probability(token) / drafted_from.probability(token)):
                return Verdict(i, dice.pick(law.minus(drafted_from)))
        if ends(token):
            return Verdict(i + 1, None)
    return Verdict(len(draft), dice.pick(target(len(draft))))
