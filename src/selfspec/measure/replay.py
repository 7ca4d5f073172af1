"""How many rounds an answer would have taken, from how its tokens agree with a draft: no model is run.

Given the tokens x that the target says, how many of them a round accepts is a matter of the ratios r = q(x) / p(x)
alone. From a round that begins at token s, the first i drafts hold with probability min(1, R_1, ..., R_i), where
R_j = r_s ... r_{s+j-1}: that is block verification (`selfspec.verify.verify_block`; Sun et al., arXiv 2403.10444)
seen along a text that was drawn from p. In greedy decoding ratios are 0 or 1, and what follows is the very
sequence of rounds that the loop would run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Replay:
    """Expected numbers of rounds for K exits; all answers after the first token, which the prefill gives.

    ``rounds`` [K, γ+1] by the length of their drafts, ``reached`` [K, γ] that drafted an i-th token with all
    before it accepted, ``accepted`` [K, γ] that accepted it too.
    """

    rounds: Floats
    reached: Floats
    accepted: Floats


def survival(ratios: Floats) -> Floats:
    """P(the first i drafts hold) [K, g+1] for i = 0 to g, from the ratios [K, g] at the tokens of the text."""
    leading = np.cumprod(np.concatenate([np.ones((len(ratios), 1)), ratios], axis=1), axis=1)
    return np.minimum.accumulate(leading, axis=1)


def replay(ratios: Floats, gamma: int, has_ended: bool) -> Replay:
    """The rounds of an answer of n tokens with drafts of ``gamma`` tokens, from its ``ratios`` [K, n].

    ``has_ended``: its last token ended the text; an answer that was cut at its length leaves the last place to the
    bonus token, so that drafts get shorter towards it.
    """
    count, n = ratios.shape
    found = Replay(*(np.zeros((count, width)) for width in (gamma + 1, gamma, gamma)))
    begins = np.zeros((count, n + gamma + 2))  # P(a round begins at token s); beyond n nothing is looked at
    begins[:, min(1, n)] = 1.0
    for s in range(1, n):
        room = n - s if has_ended else n - s - 1
        length = min(gamma, room)
        drafted = gamma if has_ended else length
        here = begins[:, s : s + 1]
        holds = here * survival(ratios[:, s : s + length])
        found.rounds[:, drafted] += here[:, 0]
        found.reached[:, :length] += holds[:, :-1]
        found.accepted[:, :length] += holds[:, 1:]
        exact = holds - np.concatenate([holds[:, 1:], np.zeros((count, 1))], axis=1)
        begins[:, s + 1 : s + length + 2] += exact
    return found
