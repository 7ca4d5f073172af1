"""What drafting ahead (`selfspec.drafters.overlap`) is worth, from what the devices take: a model of its rounds.

Times are in target passes of one row. A round without it drafts, then verifies: γ c + v(γ + 1). With it, the draft
is there in a share h of the rounds, the hit rate, and the verification runs beside the drafts for its outcomes, so
a round takes (1 - h) γ c + max(s v(γ + 1), a). Here s is by how much drafting beside it slows a verification (1 on
another device), and a is what the drafts ahead take: one pass of the drafter over the γ + 1 tokens of the draft,
then γ passes of a row for each outcome.

The target's token is taken to be none of the F likeliest of the drafter with probability (1 - α) F^-r. So where
k < γ tokens hold, F_k bonus tokens miss with probability (F_k + 1)^-r, since the drafter's own is not among them;
where all hold, with (1 - α) F_γ^-r (Saguaro, arXiv 2603.03251, section 4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec.control import expected_tokens, row_cost
from selfspec.drafters.ahead import SPREAD, fan_out
from selfspec.errors import OptionError
from selfspec.types import MAX_SIBLINGS

if TYPE_CHECKING:
    from selfspec.control import RowCosts


@dataclass(frozen=True)
class Setting:
    """Acceptance rate α, draft length γ, and what passes take.

    ``c`` is a draft step of one row ÷ a target pass of one row, ``v`` and ``draft_row`` what rows cost: v(T) of the
    target, and the share of a draft step that each further row of the drafter costs. Raises OptionError for values
    outside their ranges.
    """

    alpha: float
    gamma: int = 4
    c: float = 0.1
    outcomes: int = 8
    spread: float = SPREAD
    v: RowCosts = 1.0
    draft_row: float = 0.0
    slowdown: float = 1.0

    def __post_init__(self) -> None:
        expected_tokens(self.alpha, self.gamma)
        row_cost(self.v, self.gamma + 1)
        if self.gamma < 1:
            raise OptionError(f"gamma is {self.gamma}; it must be at least 1: nothing is drafted ahead of no draft")
        if not 1 <= self.outcomes <= MAX_SIBLINGS:
            raise OptionError(f"outcomes is {self.outcomes}; it must be 1 to {MAX_SIBLINGS}")
        for name, least in (("c", 0.0), ("spread", 0.0), ("draft_row", 0.0), ("slowdown", 1.0)):
            if not least <= getattr(self, name) < math.inf:
                raise OptionError(f"{name} is {getattr(self, name)}; it must be {least:g} or more")

    @property
    def fan(self) -> list[int]:
        """For how many bonus tokens drafts are made after each number of accepted tokens, 0 to γ."""
        return fan_out(self.outcomes, self.gamma, self.alpha, self.spread)


@dataclass(frozen=True)
class Predicted:
    """What a setting gives: times in target passes, speedups over plain decoding."""

    hit_rate: float
    tokens: float
    ahead: float
    round_with: float
    round_without: float

    @property
    def speedup(self) -> float:
        """With drafts made ahead."""
        return self.tokens / self.round_with

    @property
    def speedup_without(self) -> float:
        """Of the same drafter, drafting when it is its turn."""
        return self.tokens / self.round_without

    @property
    def gain(self) -> float:
        """Of drafting ahead."""
        return self.round_without / self.round_with


def hit_rate(setting: Setting) -> float:
    """How often the outcome of a verification is one that was drafted for."""
    alpha, gamma, spread = setting.alpha, setting.gamma, setting.spread
    *early, last = setting.fan
    hits = [alpha**k * (1.0 - alpha) * (1.0 - (fan + 1) ** -spread) for k, fan in enumerate(early)]
    return math.fsum(hits) + (alpha**gamma * (1.0 - (1.0 - alpha) * last**-spread) if last else 0.0)


def predict(setting: Setting) -> Predicted:
    """What drafting ahead gives in this setting."""
    gamma, c, hits = setting.gamma, setting.c, hit_rate(setting)
    verifying = row_cost(setting.v, gamma + 1)
    reading = c * (1.0 + setting.draft_row * gamma)
    branching = gamma * c * (1.0 + setting.draft_row * (setting.outcomes - 1))
    return Predicted(
        hit_rate=hits,
        tokens=expected_tokens(setting.alpha, gamma),
        ahead=reading + branching,
        round_with=(1.0 - hits) * gamma * c + max(setting.slowdown * verifying, reading + branching),
        round_without=gamma * c + verifying,
    )
