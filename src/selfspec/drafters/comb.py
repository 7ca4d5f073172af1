"""Comb trees (SWIFT, arXiv 2410.06916, section 3.3): a main chain, and at each depth leaves beside its token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec.drafters.base import DraftOptions, option
from selfspec.errors import OptionError
from selfspec.types import MAX_GAMMA, MAX_SIBLINGS, Draft

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.types import Array, Distribution


@dataclass(frozen=True)
class CombOptions(DraftOptions):
    """Options of drafters that can propose combs."""

    siblings: int = option(
        0, "At each depth also propose this many other likely tokens, as leaves; 0 drafts a chain."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.siblings <= MAX_SIBLINGS:
            raise OptionError(f"siblings is {self.siblings}; it must be 0 (a chain) to {MAX_SIBLINGS}")

    @property
    def most_tokens(self) -> int:
        """The most tokens that a draft can have: the chain and its leaves."""
        return self.gamma * (1 + self.siblings)


class Comb:
    """The draft of one text while it grows.

    Every row needs a cell of the cache, so leaves get what ``room`` leaves beside a chain of ``gamma``: near
    the end of a text the comb thins out, from its tip. Chain rows come before the leaves, where draft steps
    put them.
    """

    def __init__(self, options: CombOptions, room: int, gamma: int) -> None:
        self.tokens: list[int] = []
        self._siblings = options.siblings
        self._left = room - gamma
        self._leaves: list[int] = []
        self._parents: list[int] = []
        self._laws: list[Distribution] = []
        self._leaf_laws: list[Distribution] = []
        self._chances: list[float] = []

    @property
    def width(self) -> int:
        """How many leaves may stand beside the next token."""
        return min(self._siblings, self._left)

    def add(
        self,
        token: int,
        leaves: Sequence[int] = (),
        laws: Sequence[Distribution] = (),
        chance: float | None = None,
    ) -> None:
        """The next token of the chain, and its siblings; ``laws`` are those that it and they were drawn from.

        ``chance`` is how likely it is thought to hold: said of every token or of none.
        """
        self._left -= len(leaves)
        self._parents += [len(self.tokens) - 1] * len(leaves)
        self._leaves += leaves
        self.tokens.append(token)
        self._laws += laws[:1]
        self._leaf_laws += laws[1:]
        if chance is not None:
            self._chances.append(chance)

    def take_over(self, draft: Draft) -> None:
        """Begin with a chain that another drafter has proposed."""
        for i, token in enumerate(draft.tokens):
            chance = draft.chances[i] if draft.chances else None
            self.add(token, (), draft.laws[i : i + 1] if draft.laws else (), chance)

    def draft(self, hidden: Array | None = None, layer: int | tuple[int, ...] = 0) -> Draft:
        """The whole; ``hidden`` are states of the pending token and the chain after ``layer`` layers."""
        laws, chances = (*self._laws, *self._leaf_laws) or None, tuple(self._chances)
        if not self._leaves:
            return Draft(tuple(self.tokens), laws, hidden, layer, chances=chances)
        parents = (*range(-1, len(self.tokens) - 1), *self._parents)
        return Draft((*self.tokens, *self._leaves), laws, hidden, layer, parents, chances=chances)


def chain_of(draft: Draft, most: int = MAX_GAMMA) -> Draft:
    """The leading chain of a draft, of at most ``most`` tokens, with what is known of them."""
    follows = enumerate(draft.parents or ())
    count = min(most, next((i for i, parent in follows if parent != i - 1), len(draft)))
    if draft.parents is None and count == len(draft):
        return draft
    return Draft(
        draft.tokens[:count],
        None if draft.laws is None else draft.laws[:count],
        None if draft.hidden is None else draft.hidden[: count + 1],
        draft.layer if isinstance(draft.layer, int) else draft.layer[: count + 1],
        predicted=tuple(i for i in draft.predicted if i < count),
        chances=draft.chances[:count],
        watch=draft.watch,
    )


def after(draft: Draft, count: int) -> Draft:
    """What of a chain follows its first ``count`` tokens, if those are committed."""
    assert draft.parents is None
    predicted = tuple(i - count for i in draft.predicted if i >= count)
    laws = None if draft.laws is None else draft.laws[count:]
    return Draft(draft.tokens[count:], laws, predicted=predicted, chances=draft.chances[count:])
