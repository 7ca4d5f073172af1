"""What `auto` knows of its candidates: how often they were right, what they take, and what may be spent on asking.

Everything is counted with a discount, so that nothing is believed for ever. One process may share it between
generations that run at once: a lost count does no harm.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.runtime.costs import PassCosts

MEMORY = 0.98
"""Weight of a token that was judged among those judged since."""
AGING = 0.995
"""The same per round: what was not tried for a long time is known no more."""
PRIOR_WEIGHT = 2.0
"""How many tokens it counts for what such drafters usually do."""
TEXT_WEIGHT = 4.0
"""How many tokens of a text what was seen in others counts for."""
STATED_WEIGHT = 4.0
"""How many tokens what a drafter says of its own drafts counts for."""
HOPE_WEIGHT = 4.0
"""How many tokens a doubt needs: judging what is worth a probe, the unknown is taken to be right."""
SURPRISE = 16
"""Rounds that a verification of unexpected length counts for, until plain decoding is looked at."""
MEASURED_WEIGHT = 8.0
"""How many tokens, or steps, what `selfspec profile` measured counts for."""
UNLIKELY = 0.002
"""How unlikely a run of right or wrong tokens is that says that the text has changed."""
KEPT_AT_CHANGE = 2.0
"""How many tokens all that was before such a change counts for."""
LONGEST_PAUSE = 512
"""Rounds after which even what was never worth it is tried again."""
FOLLOW = 0.25
"""How far what passes take follows one of unexpected length: the power of its ratio."""
_NOTHING = 0.02  # tokens that are not worth looking further
_DEPTHS = 8  # that are told apart; the last one stands for all below it


@dataclass
class Rounds:
    """How many went by: one count for all that is counted with it."""

    now: int = 0


class Counts:
    """Right and judged tokens by depth, with a discount for the ``rounds`` that went by since.

    A run of rounds whose tokens are all right, or all wrong, and that is too unlikely by what was counted, says
    that the text has changed: what was before it then counts for little.
    """

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._runs = [0] * _DEPTHS  # tokens that were right one after the other; below 0: wrong
        self._cells: list[tuple[float, float, int]] = [(0.0, 0.0, 0)] * _DEPTHS

    def seen(self, depth: int) -> tuple[float, float]:
        """How many were right, and judged, in today's weight."""
        right, judged, when = self._cells[depth if depth < _DEPTHS else _DEPTHS - 1]
        if not judged or (passed := self._rounds.now - when) == 0:
            return right, judged
        weight = AGING**passed
        return right * weight, judged * weight

    def rate(self, depth: int, prior: float, weight: float) -> float:
        """The mean of a Beta law that began at ``prior`` with the weight of so many tokens."""
        right, judged = self.seen(depth)
        return (right + weight * prior) / (judged + weight)

    def learn(self, depth: int, is_right: bool) -> None:
        """Count a token."""
        depth = min(depth, _DEPTHS - 1)
        right, judged = self.seen(depth)
        self._runs[depth] = run = self._run(depth, is_right)
        if judged > KEPT_AT_CHANGE:
            so_far = (right + 0.5) / (judged + 1.0)
            if (so_far if is_right else 1.0 - so_far) ** abs(run) < UNLIKELY:
                right, judged = right * KEPT_AT_CHANGE / judged, KEPT_AT_CHANGE
        self._cells[depth] = (MEMORY * right + is_right, MEMORY * judged + 1.0, self._rounds.now)

    def believe(self, depth: int, rate: float, weight: float) -> None:
        """Begin with a rate that was measured elsewhere, as with so many tokens."""
        self._cells[min(depth, _DEPTHS - 1)] = (rate * weight, weight, self._rounds.now)

    def _run(self, depth: int, is_right: bool) -> int:
        """The run with this token; texts of one round, which may be alike, make it no longer."""
        run = self._runs[depth]
        if run and self._cells[depth][2] == self._rounds.now:
            return run if is_right == (run > 0) else 0
        return max(run, 0) + 1 if is_right else min(run, 0) - 1


class Mean:
    """A discounted ratio of sums: what something took to the work that it was.

    ``only_delayed`` is for times, which a disturbance makes longer and never shorter: one that is far below the
    ratio says that what was seen before was disturbed, perhaps the very first one, and the ratio follows it.
    """

    SPIKE = 3.0  # what is further above the ratio was disturbed

    def __init__(self, memory: float, only_delayed: bool = False) -> None:
        self._memory, self._only_delayed = memory, only_delayed
        self._above = 0.0
        self.weight = 0.0  # of what was seen, in units of work

    def learn(self, above: float, below: float) -> None:
        """Add one observation."""
        if self.weight > 0.0:
            above = min(above, self.SPIKE * below * self._above / self.weight)
            if self._only_delayed and below > 0.0:
                self._above = min(self._above, self.SPIKE * above / below * self.weight)
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
    ``behind`` is what a row takes that a head reads because it has not drafted for a while.
    ``benefit`` is how many tokens asking a free one is taken to bring a new text: at first more than it takes in a
    batch too, else it would never be found out.
    """

    counts: Counts
    step: Mean = field(default_factory=lambda: Mean(0.9, only_delayed=True))
    unit: Mean = field(default_factory=lambda: Mean(0.9))
    behind: Mean = field(default_factory=lambda: Mean(0.9, only_delayed=True))
    was_right: bool = False  # the last time
    proof: float = 0.0  # how often lately
    right: float = 0.0  # tokens that held, of drafts that said how many would
    stated: float = 0.0  # how many they said
    misses: int = 0  # how often it was tried since it was last worth drafting with
    due: int = 0  # the round in which it may be tried again
    idle: int = 0  # the round until which it need not be thought of
    benefit: float = 0.2

    @property
    def is_proven(self) -> bool:
        """Whether it was right lately: before, its drafts are compared with what comes, and cost no row."""
        return self.proof >= 0.5

    @property
    def honesty(self) -> float:
        """Tokens that held ÷ those that the drafter said would; 1 before anything is known."""
        return (self.right + STATED_WEIGHT) / (self.stated + STATED_WEIGHT)

    def believe(self, c: float, alphas: Sequence[float]) -> None:
        """Begin with what was measured elsewhere: of a draft step, and by depth of the draft."""
        self.step.learn(c * MEASURED_WEIGHT, MEASURED_WEIGHT)
        self.expect(alphas)

    def expect(self, alphas: Sequence[float]) -> None:
        """Begin with what was measured elsewhere by depth of the draft, if anything was."""
        for depth, alpha in enumerate(alphas):
            self.counts.believe(depth, alpha, MEASURED_WEIGHT)
        self.proof = alphas[0] / (1.0 - MEMORY) if alphas else 0.0

    def judged(self, is_right: bool) -> None:
        """Its next token was right, or not."""
        self.was_right, self.proof, self.idle = is_right, MEMORY * self.proof + is_right, 0

    def said(self, expected: float, held: int) -> None:
        """It expected so many tokens of a draft to hold, and so many did."""
        self.right = MEMORY * self.right + held
        self.stated = MEMORY * self.stated + expected

    def tried(self, now: int) -> None:
        """It was tried in spite of what is known: the less comes of it, the longer until the next time."""
        self.misses += 1
        self.due = now + min(self.misses * self.misses // 2, LONGEST_PAUSE)

    def paid(self) -> None:
        """It is worth drafting with."""
        self.misses = 0


class Estimate:
    """How likely the tokens of a candidate's draft are to hold in one text."""

    def __init__(self, known: Counts, own: Counts, usual: float) -> None:
        self._known, self._own, self._usual = known, own, usual

    def chance(self, depth: int, before: float, hopeful: bool = False) -> float:
        """Of the token at ``depth`` if those before it hold; ``before`` is the estimate one depth higher up."""
        if hopeful:
            prior, weight = 1.0, HOPE_WEIGHT
        else:
            prior, weight = before if depth else self._usual, PRIOR_WEIGHT
        return self._own.rate(depth, self._known.rate(depth, prior, weight), TEXT_WEIGHT)

    def gains(self, depths: int, hopeful: bool = False) -> list[float]:
        """Tokens that drafts of 1, 2, ..., ``depths`` tokens are expected to add; none that add next to nothing."""
        found, total, holds, chance = [], 0.0, 1.0, self._usual
        for depth in range(depths):
            chance = self.chance(depth, chance, hopeful)
            holds *= chance
            total += holds
            found.append(total)
            if holds < _NOTHING:
                break
        return found

    def learn(self, draft: Sequence[int], came: Sequence[int]) -> None:
        """Compare a draft with the tokens that came."""
        for depth, (guess, token) in enumerate(zip(draft, came, strict=False)):
            self._known.learn(depth, guess == token)
            self._own.learn(depth, guess == token)
            if guess != token:
                break


def promised(chances: Sequence[float]) -> float:
    """How many tokens of a chain should hold, by the chance of each if those before it do."""
    total, holds = 0.0, 1.0
    for chance in chances:
        holds *= chance
        total += holds
    return total


class Account:
    """Time that may be spent on something that may not pay, in passes: a share of all time, saved up to a few."""

    def __init__(self, share: float, credit: float, most: float) -> None:
        self._share, self._most = share, most
        self.balance = credit

    def earn(self, passes: float) -> None:
        """So much time went by."""
        self.balance = min(self.balance + self._share * passes, self._most)

    @property
    def is_full(self) -> bool:
        """Whether no more can be saved up."""
        return self.balance >= self._most

    def allows(self, passes: float, debt: float = 0.0) -> bool:
        """Whether so much may be spent now, with a balance of ``-debt`` in the end."""
        return self.balance - passes >= -debt

    def wait(self, passes: float) -> int:
        """In how many passes so much can be saved up, about."""
        return 1 + int((passes - self.balance) / self._share)

    def saved_for(self, passes: float) -> bool:
        """Take so much, or all that can be saved up for what is dearer than that; whether it was there."""
        if not self.allows(passes) and not self.is_full:
            return False
        self.spend(min(passes, self.balance))
        return True

    def spend(self, passes: float) -> None:
        """Take it."""
        self.balance -= max(passes, 0.0)


@dataclass
class Knowledge:
    """What outlives a request: one for an engine and a list of candidates.

    All times are in passes of one row, whose seconds the runtime knows (`PassCosts.a_pass`).
    """

    records: list[Record]
    rounds: Rounds
    think_at: int = 0  # the round in which a probe is thought of next
    probes: Account = field(default_factory=lambda: Account(0.01, credit=1.0, most=2.0))
    asking: Account = field(default_factory=lambda: Account(0.005, credit=0.25, most=0.5))
    rate: Mean = field(default_factory=lambda: Mean(0.99))  # tokens of all texts in the time of a pass
    stale: int = 0  # rounds since one without drafts showed what a pass takes

    @classmethod
    def of(cls, candidates: int) -> Knowledge:
        """Nothing is known of so many candidates."""
        rounds = Rounds()
        return cls([Record(Counts(rounds)) for _ in range(candidates)], rounds)

    @property
    def now(self) -> int:
        """How many rounds went by."""
        return self.rounds.now

    def a_round(self, passes: float) -> None:
        """A round went by."""
        self.rounds.now += 1
        self.probes.earn(passes)
        self.asking.earn(passes)

    def partial_pass(
        self, record: Record, costs: PassCosts, parts: Sequence[tuple[int, float]], seconds: float
    ) -> bool:
        """A pass that went on from states of a draft: (rows, share) of its parts, and what it took.

        Where it took another time than such passes did, either drafter or machine has changed: both are followed,
        and plain decoding is soon looked at. Says whether it took what was expected.
        """
        passes = sum([share * costs.v(rows) for rows, share in parts])
        ratio = seconds / (record.unit.value(1.0) * passes * costs.a_pass)
        is_usual = record.unit.weight <= 4.0 or 0.8 < ratio < 1.25
        if not is_usual:
            costs.scale(min(max(ratio, 0.25), 4.0) ** FOLLOW)
            self.stale += SURPRISE
        costs.observe_parts(parts, seconds)
        record.unit.learn(seconds / costs.a_pass, passes)
        return is_usual
