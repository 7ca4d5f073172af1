"""Drafting for what may come of a verification while it runs (Saguaro, arXiv 2603.03251): what drafters share.

An outcome is how many draft tokens hold, and the token that the target adds. Drafts for likely outcomes are made
ahead; when the outcome is one of them, its draft is there at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from selfspec.types import Dense, Distribution, Draft, OneHot, namespace

if TYPE_CHECKING:
    from selfspec.types import Array

SPREAD = 0.7
"""r: the target's token is none of the F likeliest of a draft in a share of cases that falls as F^-r."""


class Outcome(NamedTuple):
    """``accepted`` tokens hold, and ``bonus`` follows."""

    accepted: int
    bonus: int


@dataclass
class Ahead:
    """Drafts by the outcome that they follow, and what making them has cost, in row-layers of the target."""

    drafts: dict[Outcome, Draft] = field(default_factory=dict)
    row_layers: float = 0.0


def fan_out(most: int, gamma: int, acceptance: float, spread: float = SPREAD) -> list[int]:
    """For how many bonus tokens to draft after each number of accepted tokens, 0 to γ; ``most`` in all.

    With acceptance rate a, k < γ tokens are all that hold with probability a^k (1 - a), and γ with a^γ. If F bonus
    tokens miss with a probability that falls as F^-r, misses are fewest where F_k is proportional to
    P(k)^(1 / (1 + r)): geometric in k, and more at the end (section 4 of the paper).
    """
    a = min(max(acceptance, 0.02), 0.98)
    chances = [a**k * (1.0 - a) for k in range(gamma)] + [a**gamma]
    weights = [chance ** (1.0 / (1.0 + spread)) for chance in chances]
    shares = [most * weight / math.fsum(weights) for weight in weights]
    counts = [int(share) for share in shares]
    rest = sorted(range(gamma + 1), key=lambda k: counts[k] - shares[k])  # the largest remainders first
    for k in rest[: most - sum(counts)]:
        counts[k] += 1
    return counts


def withheld(law: Distribution, tokens: int, factor: float) -> Distribution:
    """``law`` with its likeliest ``tokens`` made less likely by ``factor``, 0 to 1 (Saguaro sampling).

    Where such a draft token is rejected, the bonus is more often one of those, which are drafted for. It is a law
    like any other: verification must be told this one. One token, and a law with no other tokens, stay.
    """
    if isinstance(law, OneHot) or not tokens or factor == 1.0:
        return law
    xp = namespace(law.probs)
    masses = xp.asarray(law.probs, copy=True)
    for token in likeliest(law.probs, tokens):
        masses[token] = masses[token] * factor
    return Dense.of(masses) if float(xp.sum(masses)) > 0.0 else law


def likeliest(values: Array, count: int) -> list[int]:
    """The indices of the ``count`` largest of ``values`` [V], the largest first."""
    xp = namespace(values)
    return [int(token) for token in xp.flip(xp.argsort(values))[:count]]
