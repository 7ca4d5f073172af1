"""Predicted speedups of every (exit layer, γ): replayed acceptance times measured costs."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec import control
from selfspec.measure.replay import replay

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from selfspec.measure.replay import Replay
    from selfspec.measure.round_costs import RoundCosts

_STEPS = 50  # of the bisection: far below any noise
_SELDOM = 1e-9  # rounds; fewer are rounding


@dataclass(frozen=True, eq=False)
class Answered:
    """How the K = L - 1 exits agree with the target along one of its answers of n tokens.

    ``ratios`` [K, n] are q(x) / p(x) at its tokens; ``overlaps`` [K] the means of 1 - total variation over the
    tokens after the first, which no draft proposes; ``has_ended`` says that its last token ended the text.
    """

    ratios: NDArray[np.float64]
    overlaps: NDArray[np.float64]
    has_ended: bool

    @property
    def drafted(self) -> int:
        """Tokens that a draft may propose: all but the first."""
        return int(self.ratios.shape[1]) - 1


@dataclass(frozen=True)
class Point:
    """What is expected of an exit layer and a γ.

    ``tokens_per_round`` is E[τ]; ``speedup`` the median over the answers, decoding only; ``formula`` the closed
    formula with c, v and f (`selfspec.control.speedup`), None where v is not known; ``break_even_alpha`` the
    acceptance rate at which S is 1 by the cost of a round, None where none would do.
    """

    exit_layer: int
    gamma: int
    tokens_per_round: float
    speedup: float
    formula: float | None
    break_even_alpha: float | None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


class Forecast:
    """The predictions at one temperature.

    Parameters
    ----------
    answers
        At least one, each of two tokens or more, by the name of its question.
    v
        v(1), v(2), ... as far as they were measured.
    """

    def __init__(self, answers: Mapping[str, Answered], costs: RoundCosts, gamma: int, v: Sequence[float]) -> None:
        assert answers
        self._answers, self._costs, self._gamma, self._v = answers, costs, gamma, v
        self.exits = range(1, costs.num_layers)
        self._replays: dict[int, dict[str, Replay]] = {}
        self._ratios: dict[int, dict[str, NDArray[np.float64]]] = {}

    @property
    def questions(self) -> frozenset[str]:
        """The names of what was answered."""
        return frozenset(self._answers)

    @cached_property
    def alphas(self) -> list[float]:
        """Of each exit: the mean of 1 - total variation over all tokens after the first of an answer."""
        found = self._answers.values()
        weights = [answer.drafted for answer in found]
        return [float(a) for a in np.average([answer.overlaps for answer in found], axis=0, weights=weights)]

    @cached_property
    def by_position(self) -> list[list[float | None]]:
        """Of each exit: the share of drafts accepted at each position, of those whose tokens before it all were.

        The rounds are those of the longest γ, begun where the loop would begin them.
        """
        found = self._replay(self._gamma).values()
        accepted, reached = (sum(getattr(r, name) for r in found) for name in ("accepted", "reached"))
        return [
            [float(a / r) if r > _SELDOM else None for a, r in zip(*rows, strict=True)]
            for rows in zip(accepted, reached, strict=True)
        ]

    @cached_property
    def points(self) -> list[Point]:
        """Every exit and every γ from 1 on."""
        return [self._point(k, gamma) for k in self.exits for gamma in range(1, self._gamma + 1)]

    def best(self, count: int) -> list[tuple[int, int]]:
        """(exit layer, γ) of the largest predicted speedups, the largest first."""
        ranked = sorted(self.points, key=lambda point: -point.speedup)
        return [(point.exit_layer, point.gamma) for point in ranked[:count]]

    def speedup(self, exit_layer: int, gamma: int, questions: Sequence[str]) -> float:
        """The median over the answers to ``questions``, as often as they are named."""
        return statistics.median(float(self._speedups(gamma)[name][exit_layer - 1]) for name in questions)

    def _point(self, exit_layer: int, gamma: int) -> Point:
        rounds = sum(found.rounds[exit_layer - 1].sum() for found in self._replay(gamma).values())
        tokens = sum(found.drafted for found in self._answers.values())
        return Point(
            exit_layer=exit_layer,
            gamma=gamma,
            tokens_per_round=float(tokens / rounds),
            speedup=self.speedup(exit_layer, gamma, list(self._answers)),
            formula=self.formula(exit_layer, gamma),
            break_even_alpha=alpha_for(float(self._costs.rounds[exit_layer - 1, gamma]), gamma),
        )

    def formula(self, exit_layer: int, gamma: int) -> float | None:
        """S by the closed formula, from α, c, v and f; None where v(γ+1) is not known."""
        if len(self._v) <= gamma:
            return None
        alpha, c = self.alphas[exit_layer - 1], self._costs.c(exit_layer)
        return control.speedup(min(alpha, 1.0), gamma, c, self._v, self._costs.f(exit_layer))

    def _speedups(self, gamma: int) -> dict[str, NDArray[np.float64]]:
        """By answer, for every exit [L - 1]: plain rounds for all tokens after the first ÷ rounds expected."""
        if gamma not in self._ratios:
            costs = self._costs.rounds[:, : gamma + 1]
            self._ratios[gamma] = {
                name: self._answers[name].drafted / (found.rounds * costs).sum(axis=1)
                for name, found in self._replay(gamma).items()
            }
        return self._ratios[gamma]

    def _replay(self, gamma: int) -> dict[str, Replay]:
        if gamma not in self._replays:
            self._replays[gamma] = {
                name: replay(found.ratios, gamma, found.has_ended) for name, found in self._answers.items()
            }
        return self._replays[gamma]


def alpha_for(cost: float, gamma: int) -> float | None:
    """The acceptance rate whose expected tokens per round are ``cost``; None where that is more than γ + 1."""
    if cost > gamma + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if control.expected_tokens(middle, gamma) < cost else (low, middle)
    return high
