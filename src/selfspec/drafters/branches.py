"""Branches beside a draft, one for each outcome of its verification that is drafted for, and their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec.drafters.ahead import Outcome, likeliest
from selfspec.drafters.steps import Growing, next_best
from selfspec.errors import SelfspecError
from selfspec.types import Draft, OneHot, Rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from selfspec.context import Text
    from selfspec.drafters.comb import CombOptions
    from selfspec.types import Array


class Branch(Growing):
    """A draft for one outcome of the verification of another, ``trunk``.

    Its tokens stand after those of the trunk that the outcome accepts, and the bonus token. It has cells of its
    own, from ``cell`` on: those after the trunk's belong to no position yet.
    """

    def __init__(self, options: CombOptions, trunk: Growing, outcome: Outcome, number: int) -> None:
        text, draft = trunk.text, trunk.before
        self.accepted, self.bonus = self.outcome = outcome
        self._before = (*draft.tokens[: self.accepted], self.bonus)
        super().__init__(options, text, min(options.gamma, text.room() - len(self._before)), Draft())
        self.cell = len(text.tokens) + len(draft) + number * options.gamma

    @property
    def so_far(self) -> Sequence[int]:
        """The tokens after the text."""
        return (*self._before, *self.comb.tokens)

    @property
    def last(self) -> int:
        """The token that the next step reads."""
        return self.so_far[-1]

    @property
    def lineage(self) -> list[int]:
        """The cells of the pending token, of what is accepted, and of the branch up to the row of the next step."""
        root = len(self.text.tokens) - 1
        return [*range(root, root + 1 + self.accepted), *range(self.cell, self.cell + self.depth + 1)]


def branches_of(options: CombOptions, trunk: Growing, logits: Array, fan: Sequence[int]) -> Iterator[Branch]:
    """A branch for each outcome: ``fan[k]`` tokens after k accepted ones, from the ``logits`` [γ + 1, V] there."""
    drafted, number = trunk.before.tokens, 0
    for k, (row, count) in enumerate(zip(logits, fan, strict=False)):
        but = drafted[k] if k < len(drafted) else None  # if it came, more would be accepted
        tokens = _likely(trunk.text, row, drafted[:k], count + 1) if count else []
        for token in [token for token in tokens if token != but][:count]:
            yield Branch(options, trunk, Outcome(k, token), number)
            number += 1


def rows_of(branches: Sequence[Branch]) -> Rows:
    """The next row of every branch, beside each other."""
    return Rows.along([branch.text.slot for branch in branches], [branch.lineage for branch in branches])


def _likely(text: Text, logits: Array, draft: Sequence[int], count: int) -> list[int]:
    """The tokens that most likely follow ``draft``, by what a drafter makes of its ``logits`` [V]."""
    try:
        law = text.draft_law(logits, draft)
    except SelfspecError:  # perhaps only past a token that will be rejected
        return []
    if isinstance(law, OneHot):
        return [law.token, *next_best(text, logits, draft, law.token, count - 1)]
    return [token for token in likeliest(law.probs, count) if law.probability(token) > 0.0]
