"""One round of `auto` while it is decided: what drafts are worth, who is asked, what is tried."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from selfspec.drafters.comb import chain_of
from selfspec.types import Draft

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.context import Context, Text
    from selfspec.drafters.base import Drafter
    from selfspec.drafters.evidence import Counts, Estimate, Knowledge, Record
    from selfspec.drafters.explain import Tally

_LEAST_PROBE = 0.05  # passes, whatever the clock says
_EARLY = 64  # rounds of an engine in which a probe is always thought of
PLAIN = -1  # no candidate


@dataclass(frozen=True, eq=False)
class Choice:
    """A candidate: its name for people, and what is known of it.

    ``first_c`` is what a draft step is taken to cost before one was seen, ``f`` the share of a pass that
    verification does not repeat.
    """

    label: str
    drafter: Drafter
    record: Record
    first_c: float
    f: float

    @property
    def c(self) -> float:
        """What a draft step of one text takes, in passes of one row."""
        return self.record.step.value(self.first_c)


@dataclass(eq=False)
class Memory:
    """What is kept for one text, and what was decided for it in this round."""

    own: list[Counts]
    estimates: list[Estimate]
    tally: Tally
    benefit: list[float]  # tokens that one look-up brings
    asked: dict[int, Draft] = field(default_factory=dict)
    probed: int | None = None
    by: int = PLAIN
    draft: Draft = field(default_factory=Draft)
    net: float = 0.0
    kept: int = 0  # rows that resume

    def forget(self) -> None:
        """A new round begins."""
        self.asked, self.probed, self.by, self.draft, self.net, self.kept = {}, None, PLAIN, Draft(), 0.0, 0

    def take(self, candidate: int, draft: Draft, net: float) -> None:
        """Verify this draft."""
        self.by, self.draft, self.net = candidate, draft, net
        self._keep(draft)

    def resume(self, draft: Draft) -> None:
        """Verify no more than was decided, from the states that a probe has left."""
        if draft.hidden is not None:
            self.draft = replace(self.draft, hidden=draft.hidden[:1], layer=draft.starts[0])
            self._keep(self.draft)

    @property
    def resumed_by(self) -> int | None:
        """The candidate whose states are resumed from."""
        return self.probed if self.probed is not None else None if self.by == PLAIN else self.by

    def _keep(self, draft: Draft) -> None:
        self.kept = 0 if draft.hidden is None else min(draft.hidden.shape[0], len(draft) + 1)


@dataclass(eq=False)
class Seat:
    """A text in this round."""

    text: Text
    memory: Memory
    gamma: int


Offer: TypeAlias = tuple[float, int, list[Seat]]
"""Tokens that a draft is worth, less those of the time that it takes; its γ; the texts that take part."""


class Turn:
    """One round.

    Parameters
    ----------
    rows
        Rows of its pass without any draft.
    rate
        λ: tokens that all texts get in the time of a pass of one row.
    """

    def __init__(
        self, context: Context, choices: Sequence[Choice], knowledge: Knowledge, rows: int, rate: float
    ) -> None:
        self._context, self._costs = context, context.runtime.costs
        self._choices, self._knowledge = choices, knowledge
        self._rows, self._rate = rows, rate
        self.seats: list[Seat] = []

    @property
    def _dear(self) -> list[int]:
        return [i for i, choice in enumerate(self._choices) if not choice.drafter.is_free]

    def look_up(self, i: int) -> None:
        """Ask a free drafter, and take of its drafts what pays."""
        seats = [seat for seat in self.seats if self._is_worth_asking(i, seat.memory)]
        if not seats:
            return
        record = self._choices[i].record
        found, passes = self._ask(i, seats, [seat.gamma for seat in seats])
        record.step.learn(passes, len(seats))
        for seat, draft in zip(seats, found, strict=True):
            assert draft.laws is None, "a drafter that is_free must not draw its drafts"
            if record.is_proven and draft.tokens:
                count, net = self._best_length(seat.memory.estimates[i], draft)
                if net > seat.memory.net:
                    self._rows += count - len(seat.memory.draft)
                    seat.memory.take(i, draft if draft.parents else chain_of(draft, count), net)

    def _is_worth_asking(self, i: int, memory: Memory) -> bool:
        takes = self._choices[i].record.step.value(0.0)
        if memory.benefit[i] >= self._rate * takes:
            return True
        if not self._knowledge.asking.allows(takes):
            return False
        self._knowledge.asking.spend(takes)
        return True

    def _best_length(self, estimate: Estimate, draft: Draft) -> tuple[int, float]:
        """How many tokens of a draft are worth most, and how much; of a tree all."""
        gains = estimate.gains(len(draft.widths), draft.chances)
        plain = self._costs.v(self._rows)
        counts = [len(draft)] if draft.parents else range(1, len(draft) + 1)
        nets = [
            (gains[min(count, len(gains)) - 1] - self._rate * (self._costs.v(self._rows + count) - plain), count)
            for count in counts
        ]
        net, count = max(nets)
        return count, net

    def _offer(self, i: int, hopeful: bool = False) -> Offer:
        """What a draft that runs layers is worth at most, its γ, and the texts that take part."""
        most = self._choices[i].drafter.options.gamma
        gains = [
            (seat, seat.memory.estimates[i].gains(min(most, seat.gamma), hopeful=hopeful)) for seat in self.seats
        ]
        best: Offer = (0.0, 0, [])
        before = -math.inf
        for gamma in range(1, max(len(gain) for _, gain in gains) + 1):
            more = [(gain[min(gamma, len(gain)) - 1] - seat.memory.net, seat) for seat, gain in gains]
            more.sort(key=lambda pair: -pair[0])
            nets = [self._value(i, [gain for gain, _ in more[:count]], gamma) for count in range(1, len(more) + 1)]
            net = max(nets)
            if net > best[0]:
                best = (net, gamma, [seat for _, seat in more[: nets.index(net) + 1]])
            if net < before:  # gains shrink with γ and costs do not
                break
            before = net
        return best

    def _value(self, i: int, gains: Sequence[float], gamma: int) -> float:
        """Tokens that a draft of γ tokens for each of these texts adds, less those of the time that it takes."""
        choice, plain = self._choices[i], self._costs.v(self._rows)
        more = self._costs.v(self._rows + len(gains) * gamma)
        steps = gamma * choice.c * self._costs.v(len(gains))
        takes = steps + choice.record.unit.value(1.0) * (choice.f * plain + (1.0 - choice.f) * more) - plain
        return sum(gains) - self._rate * takes

    def run_best(self) -> bool:
        """Draft with the layers that are worth most, if any are; the other texts keep what they have."""
        offers = {i: self._offer(i) for i in self._dear if self._choices[i].record.is_proven}
        best = max(offers, key=lambda i: offers[i][0], default=None)
        if best is None or not offers[best][2]:
            return False
        chosen = self._rival(best, offers)
        net, gamma, seats = offers[chosen]
        found, passes = self._ask(chosen, seats, [min(gamma, seat.gamma) for seat in seats])
        self._learn_step(chosen, found, passes)
        for seat, draft in zip(seats, found, strict=True):
            seat.memory.take(chosen, draft, net)
        return True

    def _rival(self, best: int, offers: dict[int, Offer]) -> int:
        """Now and then another one drafts in place of the best: one that could be better, if it were always right.

        It drafts one token; what that is expected to lose is paid for like a probe.
        """
        most, seats = offers[best][0], offers[best][2]
        hopes = {i: self._offer(i, hopeful=True)[0] for i in self._dear if i != best}
        rival = max(hopes, key=hopes.__getitem__, default=best)
        if rival == best or hopes[rival] <= most:
            return best
        return rival if self._pays_for(rival, seats, offers, most) else best

    def _pays_for(self, i: int, seats: list[Seat], offers: dict[int, Offer], instead: float = 0.0) -> bool:
        """Draft one token for each of ``seats`` in any case, if what is lost against ``instead`` can be paid."""
        gains = [seat.memory.estimates[i].gains(1)[0] - seat.memory.net for seat in seats]
        net = self._value(i, gains, 1)
        lost = max((instead - net) / self._rate, 0.0)
        if not self._knowledge.probes.allows(lost):
            return False
        self._knowledge.probes.spend(lost)
        offers[i] = (net, 1, seats)
        return True

    def probe(self) -> None:
        """See what the most promising of the drafters that do not pay would have said, where time allows it."""
        worth: dict[int, float] = {}
        for i in self._dear:
            record = self._choices[i].record
            if not record.was_right and record.counts.now > _EARLY and record.counts.now % 2:
                continue  # thinking of it takes time too
            takes = max(self._choices[i].c - self._choices[i].f, _LEAST_PROBE)
            debt = 1.0 if record.was_right else 0.0
            if self._knowledge.probes.allows(takes, debt):
                worth[i] = self._offer(i, hopeful=True)[0] / takes
        i = max(worth, key=worth.__getitem__, default=PLAIN)
        if i == PLAIN or worth[i] <= 0.0:
            return
        seat = self.seats[self._choices[i].record.counts.now % len(self.seats)]
        (draft,), passes = self._ask(i, [seat], [1])
        self._learn_step(i, [draft], passes)
        saved = 0.0 if draft.hidden is None else self._choices[i].f
        self._knowledge.probes.spend(max(passes - saved, _LEAST_PROBE))
        seat.memory.probed = i
        seat.memory.resume(draft)

    def _ask(self, i: int, seats: list[Seat], gammas: list[int]) -> tuple[list[Draft], float]:
        """The drafts of a candidate, and how many passes they took."""
        gammas = [min(gamma, self._choices[i].drafter.options.gamma) for gamma in gammas]
        clock = self._context.clock
        started = clock()
        found = self._choices[i].drafter.propose(self._context, [seat.text for seat in seats], gammas)
        seconds = clock() - started
        for seat, draft in zip(seats, found, strict=True):
            seat.memory.asked[i] = draft
            seat.memory.tally.asked(i, seconds / len(seats))
        return found, seconds / self._costs.a_pass

    def _learn_step(self, i: int, found: Sequence[Draft], passes: float) -> None:
        """What a step takes, from a draft of texts that took steps together."""
        steps = [max(len(draft.widths), 0 if draft.hidden is None else draft.hidden.shape[0]) for draft in found]
        work = sum(self._costs.v(sum(count > depth for count in steps)) for depth in range(max(steps, default=0)))
        if work:
            self._choices[i].record.step.learn(passes, work)
