"""How often a copied token is right: acceptance rates by kind of match, counted per text."""

from __future__ import annotations

from bisect import bisect_right
from enum import IntEnum
from typing import ClassVar, NamedTuple

LENGTHS = (1, 2, 3, 4, 6, 12)
"""Lengths of a match that are told apart; the last one stands for all that are longer."""


class Evidence(IntEnum):
    """What speaks for a token, beside the length of the match behind it."""

    ONLY = 0
    """The only place where the match stood before goes on with it."""
    ALL = 1
    """All places go on with it, and there are several."""
    MOST = 2
    """More than half of them do."""
    FEW = 3
    """Half of them or fewer do."""
    BACKED = 4
    """The only place; shorter matches stood elsewhere too, and all of their places agree."""
    DOUBTED = 5
    """The only place; shorter matches stood elsewhere too, and some of their places go on differently."""
    PREDICTED = 6
    """It comes from the prediction."""
    CORPUS_ONLY = 7
    CORPUS_ALL = 8
    CORPUS_MOST = 9
    CORPUS_FEW = 10
    """The first four, of places in a corpus."""
    FORCED = 11
    """A grammar allows nothing else."""


class Kind(NamedTuple):
    """What is counted together: evidence, and the index in `LENGTHS` of the length of the match."""

    evidence: Evidence
    length: int


def kind_of(evidence: Evidence, length: int) -> Kind:
    """The kind of a token with ``length`` matching tokens before it."""
    return Kind(evidence, bisect_right(LENGTHS, length) - 1)


def agreement(agreeing: int, places: int) -> Evidence:
    """The evidence of a token with which ``agreeing`` of the ``places`` of a match go on."""
    if places <= 1:
        return Evidence.ONLY
    if agreeing >= places:
        return Evidence.ALL
    return Evidence.MOST if 2 * agreeing > places else Evidence.FEW


class Trust:
    """How often a copied token is right, by the length of the match behind it and what other occurrences say.

    The acceptance rates to begin with count like ``WEIGHT`` tokens; they were measured on greedy answers of
    SmolLM2-135M to the six tasks of Spec-Bench. Older tokens count less.
    """

    RATES: ClassVar[dict[Evidence, tuple[float, ...]]] = {
        Evidence.ONLY: (0.29, 0.54, 0.68, 0.75, 0.85, 0.95),
        Evidence.ALL: (0.66, 0.78, 0.82, 0.88, 0.92, 0.97),
        Evidence.MOST: (0.35, 0.48, 0.45, 0.50, 0.60, 0.70),
        Evidence.FEW: (0.15, 0.20, 0.27, 0.30, 0.35, 0.40),
        Evidence.BACKED: (0.66, 0.86, 0.87, 0.93, 0.93, 0.98),
        Evidence.DOUBTED: (0.29, 0.41, 0.57, 0.61, 0.65, 0.91),
        Evidence.PREDICTED: (0.45, 0.60, 0.75, 0.80, 0.88, 0.95),
        Evidence.CORPUS_ONLY: (0.25, 0.25, 0.40, 0.45, 0.65, 0.92),
        Evidence.CORPUS_ALL: (0.45, 0.50, 0.70, 0.70, 0.90, 0.92),
        Evidence.CORPUS_MOST: (0.20, 0.45, 0.45, 0.45, 0.60, 0.70),
        Evidence.CORPUS_FEW: (0.15, 0.15, 0.25, 0.22, 0.25, 0.30),
        Evidence.FORCED: (1.0,) * len(LENGTHS),
    }
    WEIGHT = 8.0
    MEMORY = 0.98

    def __init__(self) -> None:
        self._counts = {
            Kind(evidence, i): (rate * self.WEIGHT, self.WEIGHT)
            for evidence, rates in self.RATES.items()
            for i, rate in enumerate(rates)
        }

    def rate(self, kind: Kind) -> float:
        """The share of tokens of this kind that were right."""
        right, seen = self._counts[kind]
        return right / seen

    def learn(self, kind: Kind, is_right: bool) -> None:
        """Count a token, drafted or not."""
        right, seen = self._counts[kind]
        self._counts[kind] = (self.MEMORY * right + is_right, self.MEMORY * seen + 1.0)
