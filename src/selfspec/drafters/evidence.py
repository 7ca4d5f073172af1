"""What `auto` knows of its candidates: how often they were right, what they take, and what may be spent on asking.

Everything is counted with a discount, so that nothing is believed for ever. One process may share it between
generations that run at once: a lost count does no harm.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from selfspec.runtime.costs import PassCosts

MEMORY = 0.96
"""Weight of a token that was judged among those judged since."""
AGING = 0.99
"""The same per round: what was not tried for a long time is known no more."""
PRIOR = 0.25
"""How often an unknown draft is taken to be right: most exits of models that were not trained for it seldom are."""
PRIOR_WEIGHT = 2.0
TEXT_WEIGHT = 4.0
"""How many tokens of a text what was seen in others counts for."""
STATED_WEIGHT = 8.0
"""How many tokens what a drafter says of its own chances counts for."""
HOPE_WEIGHT = 4.0
"""How many tokens a doubt needs: judging what is worth a probe, the unknown is taken to be right."""
SURPRISE = 16
"""Rounds that a verification of unexpected length counts for, until plain decoding is looked at."""
_NOTHING = 0.02
_EDGES = (0.3, 0.5, 0.7, 0.85)

Cell: TypeAlias = tuple[str, int]


def cell_at(depth: int, chances: Sequence[float]) -> Cell:
    """What is counted together: tokens of like chance where the drafter says it, else of one depth."""
    if not chances:
        return ("depth", min(depth, 7))
    return ("chance", sum(chances[depth] >= edge for edge in _EDGES))


class Counts:
    """Right and judged tokens by cell, with a discount for what came since; ``now`` counts rounds."""

    def __init__(self, memory: float = MEMORY) -> None:
        self._memory = memory
        self.now = 0
        self._cells: dict[Hashable, tuple[float, float, int]] = {}

    def seen(self, cell: Hashable) -> tuple[float, float]:
        """How many were right, and judged, in today's weight."""
        right, judged, when = self._cells.get(cell, (0.0, 0.0, self.now))
        weight = AGING ** (self.now - when)
        return right * weight, judged * weight

    def rate(self, cell: Hashable, prior: float, weight: float) -> float:
        """The mean of a Beta law that began at ``prior`` with the weight of so many tokens."""
        right, judged = self.seen(cell)
        return (right + weight * prior) / (judged + weight)

    def learn(self, cell: Hashable, is_right: bool) -> None:
        """Count a token."""
        right, judged = self.seen(cell)
        self._cells[cell] = (self._memory * right + is_right, self._memory * judged + 1.0, self.now)


class Mean:
    """A discounted ratio of sums: what something took to the work that it was."""

    SPIKE = 3.0  # what is further above the ratio was disturbed

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._above = 0.0
        self.weight = 0.0  # of what was seen, in units of work

    def learn(self, above: float, below: float) -> None:
        """Add one observation."""
        if self.weight > 0.0:
            above = min(above, self.SPIKE * below * self._above / self.weight)
        self._above = self._memory * self._above + above
        self.weight = self._memory * self.weight + below

    def value(self, unknown: float) -> float:
        """The ratio; ``unknown`` before anything was seen."""
        return self._above / self.weight if self.weight > 0.0 else unknown


@dataclass
class Record:
    """What is known of one candidate, over all texts.

    Times are in passes of one row. ``step`` is what a draft step takes, steps of several rows weighted with v; for
    free drafts what asking takes per text. ``unit`` is what verifying its drafts takes ÷ what the rows should.
    """

    counts: Counts = field(default_factory=Counts)
    step: Mean = field(default_factory=lambda: Mean(0.9))
    unit: Mean = field(default_factory=lambda: Mean(0.9))
    was_right: bool = False  # the last time
    proof: float = 0.0  # how often lately

    @property
    def is_proven(self) -> bool:
        """Whether it was right lately: before, its drafts are compared with what comes, and cost no row."""
        return self.proof >= 0.5

    def judged(self, is_right: bool) -> None:
        """Its next token was right, or not."""
        self.was_right, self.proof = is_right, MEMORY * self.proof + is_right


class Estimate:
    """How likely the tokens of a candidate's draft are to hold in one text."""

    def __init__(self, known: Counts, own: Counts) -> None:
        self._known, self._own = known, own

    def chance(self, depth: int, chances: Sequence[float], before: float, hopeful: bool = False) -> float:
        """Of the token at ``depth`` if those before it hold; ``before`` is the estimate one depth higher up."""
        cell = cell_at(depth, chances)
        if hopeful:
            prior, weight = 1.0, HOPE_WEIGHT
        elif chances:
            prior, weight = chances[depth], STATED_WEIGHT
        else:
            prior, weight = before if depth else PRIOR, PRIOR_WEIGHT
        return self._own.rate(cell, self._known.rate(cell, prior, weight), TEXT_WEIGHT)

    def gains(self, depths: int, chances: Sequence[float] = (), hopeful: bool = False) -> list[float]:
        """Tokens that drafts of 1, 2, ..., ``depths`` tokens are expected to add; none that add next to nothing."""
        found, total, holds, chance = [], 0.0, 1.0, PRIOR
        for depth in range(depths):
            chance = self.chance(depth, chances, chance, hopeful)
            holds *= chance
            total += holds
            found.append(total)
            if holds < _NOTHING:
                break
        return found

    def learn(self, draft: Sequence[int], chances: Sequence[float], came: Sequence[int]) -> bool | None:
        """Compare a draft with the tokens that came; whether its first one was right, None without one."""
        first = None
        for depth, (guess, token) in enumerate(zip(draft, came, strict=False)):
            is_right = guess == token
            first = is_right if first is None else first
            for counts in (self._known, self._own):
                counts.learn(cell_at(depth, chances), is_right)
            if not is_right:
                break
        return first


class Account:
    """Time that may be spent on something that may not pay, in passes: a share of all time, saved up to a few."""

    def __init__(self, share: float, credit: float, most: float) -> None:
        self._share, self._most = share, most
        self.balance = credit

    def earn(self, passes: float) -> None:
        """So much time went by."""
        self.balance = min(self.balance + self._share * passes, self._most)

    def allows(self, passes: float, debt: float = 0.0) -> bool:
        """Whether so much may be spent now, with a balance of ``-debt`` in the end."""
        return self.balance - passes >= -debt

    def spend(self, passes: float) -> None:
        """Take it."""
        self.balance -= max(passes, 0.0)


@dataclass
class Knowledge:
    """What outlives a request: one for an engine and a list of candidates.

    All times are in passes of one row, whose seconds the runtime knows (`PassCosts.a_pass`).
    """

    records: list[Record]
    probes: Account = field(default_factory=lambda: Account(0.01, credit=0.5, most=1.0))
    asking: Account = field(default_factory=lambda: Account(0.005, credit=0.25, most=0.5))
    stale: int = 0  # rounds since one without drafts showed what a pass takes

    def a_round(self, passes: float) -> None:
        """A round went by."""
        for record in self.records:
            record.counts.now += 1
        self.probes.earn(passes)
        self.asking.earn(passes)

    def partial_pass(
        self, record: Record, costs: PassCosts, parts: Sequence[tuple[int, float]], seconds: float
    ) -> None:
        """A pass that went on from states of a draft: (rows, share) of its parts, and what it took.

        Where it took another time than such passes did, either drafter or machine has changed: both are followed,
        and plain decoding is soon looked at.
        """
        passes = sum(share * costs.v(rows) for rows, share in parts)
        ratio = seconds / (record.unit.value(1.0) * passes * costs.a_pass)
        if record.unit.weight > 4.0 and not 0.8 < ratio < 1.25:
            costs.scale(min(max(ratio, 0.25), 4.0) ** 0.25)
            self.stale += SURPRISE
        costs.observe_parts(parts, seconds)
        record.unit.learn(seconds / costs.a_pass, passes)
