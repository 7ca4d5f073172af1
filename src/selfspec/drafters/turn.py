"""One round of `auto` while it is decided: what drafts are worth, who is asked, what is tried."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from selfspec.drafters.comb import chain_of
from selfspec.drafters.evidence import promised
from selfspec.types import Draft

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.context import Context, Text
    from selfspec.drafters.base import Drafter
    from selfspec.drafters.evidence import Estimate, Knowledge, Record, Rounds
    from selfspec.drafters.explain import Tally

_LEAST_PROBE = 0.05  # passes, whatever the clock says
_ENOUGH = 6.0  # tokens at a depth that tell whether drafts should be longer
_IDLE = 8  # rounds for which an offer that does not pay is not thought of again
_AHEAD = 8.0  # rounds that what a head reads once in a text must have paid in
_THINK = 8  # the most rounds until a probe is thought of again
PLAIN = -1  # no candidate
NOTHING = Draft()


@dataclass(frozen=True, eq=False)
class Choice:
    """A candidate: its name for people, and what is known of it.

    ``first_c`` is what a draft step is taken to cost before one was seen, ``f`` the share of a pass that
    verification does not repeat. ``readers`` are those of its parts that read states of rows.
    """

    label: str
    drafter: Drafter
    record: Record
    first_c: float
    f: float
    readers: tuple[Drafter, ...] = ()

    @property
    def c(self) -> float:
        """What a draft step of one text takes, in passes of one row."""
        return self.record.step.value(self.first_c)


@dataclass(eq=False)
class Memory:
    """What is kept for one text, and what was decided for it in this round."""

    rounds: Rounds
    estimates: list[Estimate]
    tally: Tally
    benefit: list[float]  # tokens that one look-up brings
    asked: dict[int, Draft] = field(default_factory=dict)
    probed: int | None = None
    by: int = PLAIN
    draft: Draft = NOTHING
    net: float = 0.0
    kept: int = 0  # rows that resume

    def forget(self) -> None:
        """A new round begins."""
        self.asked, self.probed, self.by, self.draft, self.net, self.kept = {}, None, PLAIN, NOTHING, 0.0, 0

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
        self._dear = [i for i, choice in enumerate(choices) if not choice.drafter.is_free]
        self.seats: list[Seat] = []

    def look_up(self, i: int) -> None:
        """Ask a free drafter, and take of its drafts what pays."""
        seats = [seat for seat in self.seats if self._is_worth_asking(i, seat.memory)]
        if not seats:
            return
        record = self._choices[i].record
        found, passes = self._ask(i, seats, [seat.gamma for seat in seats])
        record.step.learn(passes, len(seats))
        if not record.is_proven:
            return
        for seat, draft in zip(seats, found, strict=True):
            assert draft.laws is None, "a drafter that is_free must not draw its drafts"
            if draft.tokens:
                count, net = self._worth(i, seat.memory, draft)
                if net > seat.memory.net:
                    self._rows += count - len(seat.memory.draft)
                    whole = count == len(draft)
                    seat.memory.take(i, draft if whole else chain_of(draft, count), net)

    def _is_worth_asking(self, i: int, memory: Memory) -> bool:
        takes = self._choices[i].record.step.value(0.0)
        return memory.benefit[i] >= self._rate * takes or self._knowledge.asking.saved_for(takes)

    def _worth(self, i: int, memory: Memory, draft: Draft) -> tuple[int, float]:
        """How many tokens of a draft are worth most, and how much.

        A tree, and a draft whose length its drafter has judged, by rates of its own, are taken whole or not at all.
        """
        gains = None if draft.chances else memory.estimates[i].gains(len(draft.widths))
        rows, rate, v = self._rows, self._rate, self._costs.v
        plain = v(rows)
        if gains is None or draft.parents:
            honest = self._choices[i].record.honesty * promised(draft.chances) if gains is None else gains[-1]
            return len(draft), honest - rate * (v(rows + len(draft)) - plain)
        count = 1 + max(range(len(gains)), key=lambda depth: gains[depth] - rate * (v(rows + depth + 1) - plain))
        return count, gains[count - 1] - rate * (v(rows + count) - plain)

    def _offer(self, i: int, hopeful: bool = False, beside_none: bool = False) -> Offer:
        """What a draft that runs layers is worth at most, its γ, and the texts that take part.

        It is compared with what the texts have already, or with no draft.
        """
        most = self._choices[i].drafter.options.gamma
        a_row = self._rate * self._row_behind(i) / _AHEAD
        gains = [
            (seat, seat.memory.estimates[i].gains(min(most, seat.gamma), hopeful), a_row * self._behind(i, seat))
            for seat in self.seats
        ]
        best: Offer = (0.0, 0, [])
        before = -math.inf
        for gamma in range(1, max(len(gain) for _, gain, _ in gains) + 1):
            more = [
                (gain[min(gamma, len(gain)) - 1] - late - (0.0 if beside_none else seat.memory.net), seat)
                for seat, gain, late in gains
            ]
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
        offers = {i: self._offer(i) for i in self._dear if self._may_pay(i)}
        best = max(offers, key=lambda i: offers[i][0], default=None)
        if best is None or not offers[best][2]:
            return False
        chosen = self._rival(best, offers)
        net, gamma, seats = offers[chosen]
        behind = sum(self._behind(chosen, seat) for seat in seats)
        found, passes = self._ask(chosen, seats, [min(gamma, seat.gamma) for seat in seats])
        self._learn_step(chosen, found, passes, behind)
        self._choices[best].record.paid()
        for seat, draft in zip(seats, found, strict=True):
            seat.memory.take(chosen, draft, net)
        return True

    def _may_pay(self, i: int) -> bool:
        """Whether a draft is worth more than none: where it is not, that is not asked again for some rounds."""
        record = self._choices[i].record
        if not record.is_proven or record.idle > self._knowledge.now:
            return False
        if self._offer(i, beside_none=True)[2]:
            return True
        record.idle = self._knowledge.now + _IDLE
        return False

    def _rival(self, best: int, offers: dict[int, Offer]) -> int:
        """Now and then another one drafts in place of the best: one that could be better, if it were always right.

        Or the best one drafts a token more, if that could be better. What is expected to be lost is paid for like a
        probe.
        """
        most, gamma, seats = offers[best]
        hopes = {i: self._offer(i, hopeful=True) for i in {best, *self._due}}
        rival = max(hopes, key=lambda i: hopes[i][0])
        if rival != best and hopes[rival][0] > most and self._pays_for(rival, seats, offers, most):
            self._choices[rival].record.tried(self._knowledge.now)
            return rival
        if hopes[best][1] > gamma and self._choices[best].record.counts.seen(gamma)[1] < _ENOUGH:
            self._lengthen(best, offers)
        return best

    def _lengthen(self, i: int, offers: dict[int, Offer]) -> None:
        """Draft a token more than is best, if what is expected to be lost can be paid."""
        most, gamma, seats = offers[i]
        gains = [(seat.memory.estimates[i].gains(gamma + 1), seat.memory.net) for seat in seats]
        net = self._value(i, [gain[min(gamma, len(gain) - 1)] - net for gain, net in gains], gamma + 1)
        lost = max((most - net) / self._rate, 0.0)
        if self._knowledge.probes.allows(lost):
            self._knowledge.probes.spend(lost)
            offers[i] = (net, gamma + 1, seats)

    def _pays_for(self, i: int, seats: list[Seat], offers: dict[int, Offer], instead: float) -> bool:
        """Draft for ``seats`` in any case, if what is expected to be lost against ``instead`` can be paid."""
        most = min(self._choices[i].drafter.options.gamma, *(seat.gamma for seat in seats))
        gains = [(seat.memory.estimates[i].gains(most), seat.memory.net) for seat in seats]
        net, gamma = max(
            (self._value(i, [gain[min(gamma, len(gain)) - 1] - net for gain, net in gains], gamma), gamma)
            for gamma in range(1, most + 1)
        )
        lost = max((instead - net) / self._rate, 0.0)
        if not self._knowledge.probes.allows(lost):
            return False
        self._knowledge.probes.spend(lost)
        offers[i] = (net, gamma, seats)
        return True

    def probe(self) -> None:
        """See what the most promising of the drafters that do not pay would have said, where time allows it.

        Where the time that is saved up does not allow it, nobody else is asked meanwhile: a dear drafter would
        never have its turn beside cheap ones.
        """
        known = self._knowledge
        if known.now < known.think_at:  # thinking of it takes time too
            return
        seats = [seat for seat in self.seats if seat.memory.by == PLAIN]
        if not seats and not known.probes.is_full:  # rows of a look-up begin at layer 0: nothing would be saved
            return
        worth = {i: self._hope(i) / self._probe_takes(i) for i in self._due}
        i = max(worth, key=worth.__getitem__, default=PLAIN)
        if i == PLAIN or worth[i] <= 0.0:
            known.think_at = known.now + _THINK
            return
        record, takes = self._choices[i].record, self._probe_takes(i)
        if not known.probes.allows(takes, debt=1.0 if record.was_right else 0.0):
            known.think_at = known.now + min(known.probes.wait(takes), _THINK)
            return
        seats = seats or self.seats
        seat = seats[known.now % len(seats)]
        behind = self._behind(i, seat)
        (draft,), passes = self._ask(i, [seat], [1])
        self._learn_step(i, [draft], passes, behind)
        saved = 0.0 if draft.hidden is None or self._rows > 1 else self._choices[i].f
        known.probes.spend(max(passes - saved, _LEAST_PROBE))
        record.tried(self._knowledge.now)
        seat.memory.probed = i
        seat.memory.resume(draft)

    @property
    def _due(self) -> list[int]:
        """Those that may be tried in spite of what is known."""
        records = {i: self._choices[i].record for i in self._dear}
        return [i for i, record in records.items() if record.was_right or record.due <= self._knowledge.now]

    def _hope(self, i: int) -> float:
        """What a draft would be worth if it were right, times how likely the first token is."""
        hoped = self._offer(i, hopeful=True)[0]
        return hoped * max(seat.memory.estimates[i].chance(0, 0.0) for seat in self.seats) if hoped else 0.0

    def _probe_takes(self, i: int) -> float:
        return max(self._choices[i].c - self._choices[i].f, _LEAST_PROBE)

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

    def _behind(self, i: int, seat: Seat) -> int:
        """Rows that a head must read before it drafts, beyond those of a round: a prompt, or others' rounds."""
        choice, feeds = self._choices[i], self._context.feeds
        waiting = [len(feeds.of(seat.text.slot, reader)) for reader in choice.readers]
        return max(max(waiting, default=0) - choice.drafter.options.gamma - 1, 0)

    def _row_behind(self, i: int) -> float:
        """What one of these takes, in passes; at first by the share of a head, as a row of a longer pass."""
        choice = self._choices[i]
        return choice.record.behind.value(choice.first_c * (self._costs.v(2) - 1.0))

    def _learn_step(self, i: int, found: Sequence[Draft], passes: float, behind: int) -> None:
        """What a step takes, from a draft of texts that took steps together; else a row that was ``behind``."""
        steps = [max(len(draft.widths), 0 if draft.hidden is None else draft.hidden.shape[0]) for draft in found]
        work = sum(self._costs.v(sum(count > depth for count in steps)) for depth in range(max(steps, default=0)))
        if work and behind:
            self._choices[i].record.behind.learn(max(passes - self._choices[i].c * work, 0.0), behind)
        elif work:
            self._choices[i].record.step.learn(passes, work)
