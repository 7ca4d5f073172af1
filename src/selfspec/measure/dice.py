"""Dice that explore every outcome, and dice that accept too much: what decides in a proof, and in its control."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from selfspec.sampling import Chance
from selfspec.types import Distribution, OneHot

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def support(law: Distribution) -> list[int]:
    """The tokens that ``law`` can give."""
    if isinstance(law, OneHot):
        return [law.token]
    found: list[int] = np.flatnonzero(np.asarray(law.probs)).tolist()
    return found


class AllOutcomes(Chance):
    """Chance that replays every path of decisions once; iterate, and weigh each path by ``weight``."""

    def __init__(self) -> None:
        super().__init__(0)
        self._path: list[int] = []
        self._widths: list[int] = []

    def __iter__(self) -> Iterator[AllOutcomes]:
        while True:
            self._at, self.weight = 0, 1.0
            self._widths = self._widths[: len(self._path)]
            yield self
            while self._path and self._path[-1] + 1 == self._widths[len(self._path) - 1]:
                self._path.pop()
            if not self._path:
                return
            self._path[-1] += 1

    def _choose(self, masses: Sequence[float]) -> int:
        possible = [i for i, mass in enumerate(masses) if mass > 0.0]
        if self._at == len(self._path):
            self._path.append(0)
            self._widths = [*self._widths[: self._at], len(possible)]
        choice = possible[self._path[self._at]]
        self._at += 1
        self.weight *= masses[choice]
        return choice

    def accept(self, probability: float) -> bool:
        """Both answers, one after the other, unless one of them is certain."""
        assert probability >= 0.0
        return self._choose([min(probability, 1.0), 1.0 - min(probability, 1.0)]) == 0

    def pick(self, law: Distribution) -> int:
        """Every token that ``law`` can give."""
        tokens = support(law)
        return tokens[self._choose([law.probability(token) for token in tokens])]


def _too_kind(probability: float) -> float:
    """Half of what must be rejected is accepted."""
    return (1.0 + min(probability, 1.0)) / 2


class KindOutcomes(AllOutcomes):
    """The negative control of an enumeration: a verifier with these dice is broken."""

    def accept(self, probability: float) -> bool:
        """More than it may."""
        return super().accept(_too_kind(probability))


class KindChance(Chance):
    """The negative control of a statistical test: a verifier with this chance is broken."""

    def accept(self, probability: float) -> bool:
        """More than it may."""
        return super().accept(_too_kind(probability))
