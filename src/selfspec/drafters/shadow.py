"""Which exit to leave by, and how many tokens to draft: DEL's choice (arXiv 2504.05598), among ladders of exits.

A *shadow token* is what an exit would have said where the target has spoken. Rows of the last verification whose
prefix was committed give them for every candidate layer at once, for the price of the head. From discounted counts
of what was right comes, for every exit and draft length, the expected number of tokens per time; the best is taken,
drafting nothing included.

A *ladder* is one candidate layer, or two: then a token leaves at the first whose confidence clears its threshold
(as in CALM, arXiv 2207.07061). At the last one either every token leaves, or the draft ends before one that does
not clear it: whichever pays. The threshold of a layer lies half-way between the mean confidences of its right and
of its wrong shadow tokens (DEL). Nothing here sees a clock or a random number: choices follow from committed tokens
and judged drafts, so a seed gives one text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MEMORY = 0.97
"""Weight of a row among those after it; DEL discounts by 0.95 a verification, of one to four such rows."""
_PRIOR = 0.5
"""Rows of each kind, right and wrong, that a ladder is taken to have seen."""
_CONFIDENCES = (0.25, 0.75)  # of wrong and right tokens, before any was seen


class Ladder(NamedTuple):
    """Layers at which a token may leave, ascending; whether the draft ends before one that clears none of them."""

    layers: tuple[int, ...] = ()
    stops: bool = False


class Shadow(NamedTuple):
    """What one exit said in one row: its largest probability, and how likely the target takes what it drafts."""

    confidence: float
    right: float


class Choice(NamedTuple):
    """A ladder and a draft length, and the tokens per time that they promise, relative to plain decoding."""

    ladder: Ladder
    gamma: int
    rate: float


@dataclass(frozen=True)
class ExitCosts:
    """In layers of one row: those of the model, the head; and ``row``, v(T + 1) - v(T), as a share of a pass."""

    layers: int
    head: float
    row: float

    def rates(self, rungs: Sequence[tuple[int, float]], right: float, most: int) -> Iterator[float]:
        """Expected tokens of a round ÷ its expected time in passes of one row, for drafts of 1 to ``most`` tokens.

        ``rungs`` are the layers of a ladder with the chance that a draft step ends there, the draft going on; what
        is left to 1 ends the draft at the last one. ``right``: the chance that a step ends with a token that holds.
        """
        whole = self.layers + self.head
        goes_on = sum(chance for _, chance in rungs)
        reached = rungs[-1][0] * (1.0 - goes_on) + sum(layer * chance for layer, chance in rungs)
        heads = len(rungs) * (1.0 - goes_on) + sum(i * chance for i, (_, chance) in enumerate(rungs, start=1))
        step, shared = (reached + self.head * heads) / whole, reached / whole
        tokens, steps, rows, holds, stays = 1.0, 0.0, 0.0, 1.0, 1.0
        for _ in range(most):
            steps += stays
            holds, stays = holds * right, stays * goes_on
            tokens, rows = tokens + holds, rows + stays
            yield tokens / (steps * step + shared + (1.0 - shared) * (1.0 + self.row * rows))


@dataclass
class _Tally:
    """Discounted rows of a ladder: those that left at each rung, what of them was right, and those that did not."""

    left: list[float]
    right: float = _PRIOR
    stopped: float = 0.0

    def learn(self, rung: int | None, right: float) -> None:
        """One row; None: no rung was cleared."""
        self.left = [MEMORY * old + (i == rung) for i, old in enumerate(self.left)]
        self.right = MEMORY * self.right + (0.0 if rung is None else right)
        self.stopped = MEMORY * self.stopped + (rung is None)


@dataclass
class _Threshold:
    """Discounted confidences at a layer where it was wrong, and where it was right, with their weights."""

    sums: list[float] = field(default_factory=lambda: list(_CONFIDENCES))
    weights: list[float] = field(default_factory=lambda: [1.0, 1.0])

    @property
    def value(self) -> float:
        """Half-way between the two means."""
        return sum(s / w for s, w in zip(self.sums, self.weights, strict=True)) / 2.0

    def learn(self, shadow: Shadow) -> None:
        """One row; a weight is never discounted to nothing, or a mean would be of nothing."""
        for i, share in enumerate((1.0 - shadow.right, shadow.right)):
            if share > 0.0:
                self.sums[i] = MEMORY * self.sums[i] + share * shadow.confidence
                self.weights[i] = MEMORY * self.weights[i] + share


class ExitControl:
    """What is known of the exits of one text, and what follows from it.

    Parameters
    ----------
    candidates
        Layers at which a draft may leave, ascending.
    costs
        What they cost.
    """

    def __init__(self, candidates: Sequence[int], costs: ExitCosts) -> None:
        self._costs = costs
        self._thresholds = {layer: _Threshold() for layer in candidates}
        climbs = [layers for size in (1, 2) for layers in combinations(candidates, size)]
        # a prior of one row that was right and one that was wrong, wherever they left
        self._tallies = {
            Ladder(layers, stops): _Tally([2.0 * _PRIOR / len(layers)] * len(layers))
            for layers in climbs
            for stops in (False, True)
        }

    def threshold(self, layer: int) -> float:
        """The confidence at which a token leaves there."""
        return self._thresholds[layer].value

    def learn(self, row: Mapping[int, Shadow], climbed: tuple[int, ...] = ()) -> None:
        """One row: what candidates said in it.

        Where a draft ``climbed`` some layers and nobody looked at the other exits, the row says something of these
        and of the first of them only: rows in which a later exit was looked at are no fair sample of it.
        """
        for ladder, tally in self._tallies.items():
            if not climbed or ladder.layers in (climbed, climbed[:1]):
                rung = self._left_by(ladder, row)
                tally.learn(rung, 0.0 if rung is None else row[ladder.layers[rung]].right)
        for layer, shadow in row.items():
            if not climbed or layer == climbed[0]:
                self._thresholds[layer].learn(shadow)

    def _left_by(self, ladder: Ladder, row: Mapping[int, Shadow]) -> int | None:
        """The rung at which a row leaves; where the draft did not look further, the last that it looked at."""
        seen = [layer for layer in ladder.layers if layer in row]
        cleared = (i for i, layer in enumerate(seen) if row[layer].confidence >= self.threshold(layer))
        is_over = ladder.stops and len(seen) == len(ladder.layers)
        return next(cleared, None if is_over else len(seen) - 1)

    def choose(self, most: int) -> Choice:
        """The best ladder and draft length, of ``most`` tokens at most; no ladder where plain decoding is best."""
        best = Choice(Ladder(), 0, 1.0)
        for ladder, tally in self._tallies.items():
            total = sum(tally.left) + tally.stopped
            rungs = [(layer, left / total) for layer, left in zip(ladder.layers, tally.left, strict=True)]
            for gamma, rate in enumerate(self._costs.rates(rungs, tally.right / total, most), start=1):
                if rate > best.rate:
                    best = Choice(ladder, gamma, rate)
        return best
