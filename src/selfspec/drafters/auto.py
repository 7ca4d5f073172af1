"""The controller: each round, the drafter and the draft length that are expected to give most tokens per second.

A draft adds E tokens to the one that a pass gives anyway, and t seconds to its time: those of the draft steps, and
those of its rows in the pass. It is worth E - λ t, where λ is what the texts get per second at present, and never
less than plain decoding gives: of repeated choices, the one with the largest E - λ t has the largest rate in the
long run (Dinkelbach 1967). γ = 0 is worth 0. With several texts in one pass λ is the rate of all of them, so a row
has to bring more the more texts share the pass.

E comes from discounted counts of what was right, per drafter and depth of the draft, or per chance where the
drafter states it (`evidence`); t from the clock of the loop. Decisions see tokens that have been committed, drafts
that have been judged and times that have passed, never a random number that is still to be used, so the law of the
text is that of plain decoding.

- Nothing is drafted by a drafter that was not seen to be right lately. What a look-up says is compared with what
  comes, at no cost. Of a draft that runs layers one token is drafted and left out, and the pass resumes from its
  states: such a *probe* costs the head, and all probes a hundredth of the time, some of it in advance.
- Verification after an exit at layer k is a partial pass, V = f + (1 - f) v(γ + 1).
- The price of rows is learned by the runtime (`PassCosts`), which forgets. It needs no term for the context: a text
  grows by a row per token, and the share of attention moves far more slowly than the fifty passes remembered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from selfspec import drafters
from selfspec.drafters.base import Drafter, DraftOptions, option
from selfspec.drafters.evidence import Counts, Estimate, Knowledge, Mean, Record
from selfspec.drafters.explain import Expected, Tally, explained
from selfspec.drafters.specs import Spec, parse_specs
from selfspec.errors import OptionError
from selfspec.types import Draft

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selfspec.context import Context, Text
    from selfspec.drafters.base import Host
    from selfspec.model.config import ModelConfig
    from selfspec.rounds import Commit, Round
    from selfspec.runtime.costs import PassCosts

CANDIDATES = "ngram,early_exit"
LOOK_AGAIN = 64
"""Rounds after which one without a draft shows again what plain decoding costs."""
_UNKNOWN_STEP = 0.5  # of a pass: a draft step of a drafter of which nothing is known
_LEAST_PROBE = 0.05  # passes, whatever the clock says
_FIRST_BENEFIT = 0.05  # tokens that asking a look-up is taken to bring a new text
_EARLY = 64  # rounds of an engine in which a probe is always thought of
_PLAIN = -1
_NONE = -1  # no token


@dataclass(frozen=True)
class AutoOptions(DraftOptions):
    """Options of `Auto`."""

    gamma: int = option(7, "Most tokens to draft per round (γ); 0 drafts nothing.")
    adaptive: bool = option(True, "Always on: deciding anew in every round is what it does.")
    candidates: str | Sequence[str | Drafter] = option(
        CANDIDATES,
        "Drafters to choose from, with commas (or +), options after colons: ngram,early_exit:exit_layer=8.",
    )
    repeatable: bool = option(
        True,
        "Sampled drafts are the likeliest tokens, so that a seed gives one text whatever the clock says; off draws "
        "them, which accepts more where the temperature is high.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.adaptive:
            raise OptionError("adaptive is False, but auto always adapts; name a drafter instead, such as ngram")
        entries = [self.candidates] if isinstance(self.candidates, str) else self.candidates
        if not isinstance(entries, Sequence) or not all(isinstance(entry, str | Drafter) for entry in entries):
            raise OptionError(f"candidates is {self.candidates!r}; it must be names of drafters, with commas")


@dataclass(eq=False)
class _Memory:
    """What is kept for one text, and what was decided for it in this round."""

    own: list[Counts]
    estimates: list[Estimate]
    tally: Tally
    benefit: list[float]  # tokens that one look-up brings
    asked: dict[int, Draft] = field(default_factory=dict)
    probed: int | None = None
    by: int = _PLAIN
    draft: Draft = field(default_factory=Draft)
    net: float = 0.0
    kept: int = 0  # rows that resume

    def forget(self) -> None:
        """A new round begins."""
        self.asked, self.probed, self.by, self.draft, self.net, self.kept = {}, None, _PLAIN, Draft(), 0.0, 0

    def take(self, candidate: int, draft: Draft, net: float) -> None:
        """Verify this draft."""
        self.by, self.draft, self.net = candidate, draft, net
        self._keep(draft)

    def resume(self, draft: Draft) -> None:
        """Verify no more than was decided, from the states that a probe has left."""
        if draft.hidden is not None:
            self.draft = replace(self.draft, hidden=draft.hidden[:1], layer=draft.layer)
            self._keep(self.draft)

    @property
    def resumed_by(self) -> int | None:
        """The candidate whose states are resumed from."""
        return self.probed if self.probed is not None else None if self.by == _PLAIN else self.by

    def _keep(self, draft: Draft) -> None:
        self.kept = 0 if draft.hidden is None else min(draft.hidden.shape[0], len(draft) + 1)


@dataclass(eq=False)
class _Seat:
    """A text in this round."""

    text: Text
    memory: _Memory
    gamma: int


@dataclass(eq=False)
class _Turn:
    """One round while it is decided: its texts, the rows of its pass so far, and what the time of a pass is worth."""

    context: Context
    seats: list[_Seat]
    rows: int
    rate: float

    def v(self, rows: int) -> float:
        """What a pass of so many rows takes, in passes of one row."""
        return self.context.runtime.costs.v(rows)


class Auto(Drafter):
    """Chooses among drafters, early exits and plain decoding, for every text and round; see the module."""

    Options = AutoOptions
    name = "auto"
    summary = "chooses drafter, exit layer and γ anew in every round, none where none pays; the default"

    def __init__(self, options: AutoOptions, config: ModelConfig) -> None:
        super().__init__(options, config)
        self._settings = options
        made = list(_candidates(options, config))
        self._labels = [label for label, _ in made]
        self._candidates = [candidate for _, candidate in made]
        self._free = [i for i, candidate in enumerate(self._candidates) if candidate.is_free]
        self._dear = [i for i, candidate in enumerate(self._candidates) if not candidate.is_free]
        layers = config.num_layers * config.active_layer_parameters
        self._head = config.head_parameters / max(layers + config.head_parameters, 1)
        self._knowledge = self._unknowing()
        self._memories: dict[Text, _Memory] = {}
        self._rate = Mean(0.95)  # tokens of all texts in the time of a pass
        self._others = (0, 0)  # texts of other drafters in the last pass, and rows
        self._costs: PassCosts | None = None  # of the runtime that asked last; it is always the same

    @property
    def parts(self) -> tuple[Drafter, ...]:
        """The candidates."""
        return tuple(part for candidate in self._candidates for part in candidate.parts)

    @property
    def draws(self) -> bool:
        """Not where a seed must give one text, whatever is drafted."""
        return not self._settings.repeatable

    def bind(self, host: Host) -> None:
        """Candidates get what they need of the engine; what is learned is kept there."""
        for candidate in self._candidates:
            candidate.bind(host)
        self._knowledge = host.kept(("auto", *self._labels), self._unknowing)

    def begin(self, text: Text) -> None:
        """Start counting for a text."""
        text.samples_drafts = self.draws
        for candidate in self._candidates:
            candidate.begin(text)
        own = [Counts() for _ in self._candidates]
        estimates = [
            Estimate(record.counts, counts) for record, counts in zip(self._knowledge.records, own, strict=True)
        ]
        tally = Tally.of(len(self._candidates))
        self._memories[text] = _Memory(own, estimates, tally, [_FIRST_BENEFIT] * len(own))

    def end(self, text: Text) -> None:
        """Leave the explanation with the text, and drop all else."""
        memory = self._memories.pop(text)
        text.explanation = explained(self._labels, memory.tally, self._expected(memory))
        for candidate in self._candidates:
            candidate.end(text)

    def _unknowing(self) -> Knowledge:
        return Knowledge([Record() for _ in self._candidates])

    # -- deciding ------------------------------------------------------------------------------------------

    def propose(self, context: Context, texts: Sequence[Text], gammas: Sequence[int]) -> list[Draft]:
        """For each text the draft that is worth most, if any is worth its time."""
        memories = [self._memories[text] for text in texts]
        for memory in memories:
            memory.forget()
        self._costs = context.runtime.costs
        if not self._costs.a_pass or self._looks_again():
            return [Draft() for _ in texts]
        seats = [_Seat(*seat) for seat in zip(texts, memories, gammas, strict=True) if seat[2] > 0]
        others, rows = self._others
        plain = (len(texts) + others) / self._costs.v(len(texts) + others)
        turn = _Turn(context, seats, len(texts) + rows, max(self._rate.value(plain), plain))
        for i in self._free:
            self._look_up(turn, i)
        if seats and not self._run_best(turn):
            self._probe(turn)
        return [memory.draft for memory in memories]

    def _looks_again(self) -> bool:
        """Whether this round shows what plain decoding costs: drafts have hidden it for too long."""
        if self._knowledge.stale < LOOK_AGAIN:
            return False
        lost = max(1.0 - 1.0 / self._rate.value(1.0), 0.0)
        if not self._knowledge.probes.allows(lost, debt=1.0):
            return False
        self._knowledge.probes.spend(lost)
        return True

    def _look_up(self, turn: _Turn, i: int) -> None:
        """Ask a free drafter, and take of its drafts what pays."""
        seats = [seat for seat in turn.seats if self._is_worth_asking(turn, i, seat.memory)]
        if not seats:
            return
        record = self._knowledge.records[i]
        found, passes = self._ask(turn, i, seats, [seat.gamma for seat in seats])
        record.step.learn(passes, len(seats))
        for seat, draft in zip(seats, found, strict=True):
            assert draft.laws is None, "a drafter that is_free must not draw its drafts"
            if record.is_proven and draft.tokens:
                count, net = self._best_length(turn, seat.memory.estimates[i], draft)
                if net > seat.memory.net:
                    turn.rows += count - len(seat.memory.draft)
                    cut = draft if draft.parents else Draft(draft.tokens[:count], chances=draft.chances[:count])
                    seat.memory.take(i, cut, net)

    def _is_worth_asking(self, turn: _Turn, i: int, memory: _Memory) -> bool:
        takes = self._knowledge.records[i].step.value(0.0)
        if memory.benefit[i] >= turn.rate * takes:
            return True
        if not self._knowledge.asking.allows(takes):
            return False
        self._knowledge.asking.spend(takes)
        return True

    def _best_length(self, turn: _Turn, estimate: Estimate, draft: Draft) -> tuple[int, float]:
        """How many tokens of a draft are worth most, and how much; of a tree all."""
        gains = estimate.gains(len(draft.widths), draft.chances)
        plain = turn.v(turn.rows)
        counts = [len(draft)] if draft.parents else range(1, len(draft) + 1)
        nets = [
            (gains[min(count, len(gains)) - 1] - turn.rate * (turn.v(turn.rows + count) - plain), count)
            for count in counts
        ]
        net, count = max(nets)
        return count, net

    def _offer(self, turn: _Turn, i: int, hopeful: bool = False) -> tuple[float, int, list[_Seat]]:
        """What a draft that runs layers is worth at most, its γ, and the texts that take part."""
        most = self._candidates[i].options.gamma
        gains = [
            (seat, seat.memory.estimates[i].gains(min(most, seat.gamma), hopeful=hopeful)) for seat in turn.seats
        ]
        best: tuple[float, int, list[_Seat]] = (0.0, 0, [])
        before = -math.inf
        for gamma in range(1, max(len(gain) for _, gain in gains) + 1):
            more = [(gain[min(gamma, len(gain)) - 1] - seat.memory.net, seat) for seat, gain in gains]
            more.sort(key=lambda pair: -pair[0])
            nets = [
                self._value(turn, i, [gain for gain, _ in more[:count]], gamma) for count in range(1, len(more) + 1)
            ]
            net = max(nets)
            if net > best[0]:
                best = (net, gamma, [seat for _, seat in more[: nets.index(net) + 1]])
            if net < before:  # gains shrink with γ and costs do not
                break
            before = net
        return best

    def _value(self, turn: _Turn, i: int, gains: Sequence[float], gamma: int) -> float:
        """Tokens that a draft of γ tokens for each of these texts adds, less those of the time that it takes."""
        record, rows, f = self._knowledge.records[i], turn.rows, self._shared(i)
        verify = f * turn.v(rows) + (1.0 - f) * turn.v(rows + len(gains) * gamma)
        takes = gamma * self._step(i) * turn.v(len(gains)) + record.unit.value(1.0) * verify - turn.v(rows)
        return sum(gains) - turn.rate * takes

    def _run_best(self, turn: _Turn) -> bool:
        """Draft with the layers that are worth most, if any are; the other texts keep what they have."""
        offers = {i: self._offer(turn, i) for i in self._dear if self._knowledge.records[i].is_proven}
        best = max(offers, key=lambda i: offers[i][0], default=None)
        if best is None or not offers[best][2]:
            return False
        chosen = self._rival(turn, best, offers)
        net, gamma, seats = offers[chosen]
        found, passes = self._ask(turn, chosen, seats, [min(gamma, seat.gamma) for seat in seats])
        self._learn_step(turn, chosen, found, passes)
        for seat, draft in zip(seats, found, strict=True):
            seat.memory.take(chosen, draft, net)
        return True

    def _rival(self, turn: _Turn, best: int, offers: dict[int, tuple[float, int, list[_Seat]]]) -> int:
        """Now and then another one drafts in place of the best: one that could be better, if it were always right.

        It drafts one token; what that is expected to lose is paid for like a probe.
        """
        most, seats = offers[best][0], offers[best][2]
        hopes = {i: self._offer(turn, i, hopeful=True)[0] for i in self._dear if i != best}
        rival = max(hopes, key=hopes.__getitem__, default=best)
        if rival == best or hopes[rival] <= most:
            return best
        one = self._value(turn, rival, [s.memory.estimates[rival].gains(1)[0] - s.memory.net for s in seats], 1)
        lost = max((most - one) / turn.rate, 0.0)
        if not self._knowledge.probes.allows(lost):
            return best
        self._knowledge.probes.spend(lost)
        offers[rival] = (one, 1, seats)
        return rival

    def _probe(self, turn: _Turn) -> None:
        """See what the most promising of the drafters that do not pay would have said, where time allows it."""
        worth: dict[int, float] = {}
        for i in self._dear:
            record = self._knowledge.records[i]
            if not record.was_right and record.counts.now > _EARLY and record.counts.now % 2:
                continue  # thinking of it takes time too
            takes = max(self._step(i) - self._shared(i), _LEAST_PROBE)
            debt = 1.0 if record.was_right else 0.0
            if self._knowledge.probes.allows(takes, debt):
                worth[i] = self._offer(turn, i, hopeful=True)[0] / takes
        i = max(worth, key=worth.__getitem__, default=_PLAIN)
        if i == _PLAIN or worth[i] <= 0.0:
            return
        seat = turn.seats[self._knowledge.records[i].counts.now % len(turn.seats)]
        (draft,), passes = self._ask(turn, i, [seat], [1])
        self._learn_step(turn, i, [draft], passes)
        saved = 0.0 if draft.hidden is None else self._shared(i)
        self._knowledge.probes.spend(max(passes - saved, _LEAST_PROBE))
        seat.memory.probed = i
        seat.memory.resume(draft)

    def _ask(self, turn: _Turn, i: int, seats: list[_Seat], gammas: list[int]) -> tuple[list[Draft], float]:
        """The drafts of a candidate, and how many passes they took."""
        gammas = [min(gamma, self._candidates[i].options.gamma) for gamma in gammas]
        clock = turn.context.clock
        started = clock()
        found = self._candidates[i].propose(turn.context, [seat.text for seat in seats], gammas)
        seconds = clock() - started
        for seat, draft in zip(seats, found, strict=True):
            seat.memory.asked[i] = draft
            seat.memory.tally.asked(i, seconds / len(seats))
        return found, seconds / turn.context.runtime.costs.a_pass

    def _learn_step(self, turn: _Turn, i: int, found: Sequence[Draft], passes: float) -> None:
        """What a step takes, from a draft of texts that took steps together."""
        steps = [max(len(draft.widths), 0 if draft.hidden is None else draft.hidden.shape[0]) for draft in found]
        work = sum(turn.v(sum(count > depth for count in steps)) for depth in range(max(steps, default=0)))
        if work:
            self._knowledge.records[i].step.learn(passes, work)

    def _step(self, i: int) -> float:
        """c: what a draft step of one text takes."""
        plan = self._candidates[i].plan
        c = _UNKNOWN_STEP
        if plan is not None:
            c = self._head + (1.0 - self._head) * plan.row_layers / self.config.num_layers
        return self._knowledge.records[i].step.value(c)

    def _shared(self, i: int) -> float:
        """f: the share of a pass that verification does not repeat."""
        plan = self._candidates[i].plan
        return 0.0 if plan is None else (1.0 - self._head) * plan.shared_prefix / self.config.num_layers

    # -- learning ------------------------------------------------------------------------------------------

    def observe(self, text: Text, commit: Commit) -> None:
        """Compare everything that was proposed with what came."""
        memory = self._memories[text]
        unused = replace(commit, widths=(), accepted=0)
        for i, draft in memory.asked.items():
            is_used = memory.by == i
            self._candidates[i].observe(text, commit if is_used else unused)
            chain, came = _chain(draft), commit.tokens
            if is_used and draft.laws is not None:  # held by chance: what holds is what was accepted
                came = (*chain[: commit.accepted], *((_NONE,) if commit.accepted < commit.depth else ()))
            if (is_right := memory.estimates[i].learn(chain, draft.chances, came)) is not None:
                self._knowledge.records[i].judged(is_right)
            if self._candidates[i].is_free:
                gained = memory.net if is_used else 0.0
                memory.benefit[i] += 0.05 * (gained - memory.benefit[i])
        memory.tally.committed(memory.by, memory.probed, commit)
        for counts in memory.own:
            counts.now += 1

    def timed(self, texts: Sequence[Text], round_: Round) -> None:
        """Count the time: of all, of a pass, of a verification that resumed."""
        memories = [self._memories[text] for text in texts if text in self._memories]
        tokens = sum(len(commit.tokens) for commit in round_.commits)
        rows = sum(commit.drafted + 1 for commit in round_.commits)
        own = sum(len(memory.draft) + 1 for memory in memories)
        self._others = (max(len(round_.commits) - len(memories), 0), max(rows - own, 0))
        seconds = round_.ended - round_.started
        for memory in memories:
            memory.tally.took(memory.by, seconds / max(len(round_.commits), 1))
        if self._costs is not None and self._costs.a_pass:
            if self._others[0] == 0 and rows and round_.ended > round_.drafted_at:
                self._learn_pass(self._costs, memories, rows, round_.ended - round_.drafted_at)
            passes = seconds / self._costs.a_pass
            self._knowledge.a_round(passes)
            self._rate.learn(tokens, passes)

    def _learn_pass(self, costs: PassCosts, memories: Sequence[_Memory], rows: int, seconds: float) -> None:
        """What a pass of ``rows`` rows took, if some of them resumed; of others the loop has told the runtime."""
        resumed = {i for memory in memories if memory.kept and (i := memory.resumed_by) is not None}
        self._knowledge.stale = self._knowledge.stale + 1 if rows > len(memories) or resumed else 0
        if len(resumed) == 1:
            (i,) = resumed
            f, below = self._shared(i), rows - sum(memory.kept for memory in memories)
            parts = [(count, share) for count, share in ((below, f), (rows, 1.0 - f)) if count]
            self._knowledge.partial_pass(self._knowledge.records[i], costs, parts, seconds)

    def _expected(self, memory: _Memory) -> list[Expected]:
        """What each candidate is expected to do in this text alone, by what is known now; plain decoding first."""
        costs, known = self._costs, self._knowledge
        if costs is None or not costs.a_pass:
            return []
        found = [Expected(0.0, [], 0, 1.0 / costs.a_pass)]
        for i, record in enumerate(known.records):
            step, f, unit = self._step(i), self._shared(i), record.unit.value(1.0)
            if self._candidates[i].is_free:
                step, f, unit = 0.0, 0.0, 1.0
            if self._candidates[i].is_free and not record.counts.seen(("depth", 0))[1]:
                found.append(Expected(record.step.value(0.0), [], 0, 0.0))  # it judges its drafts one by one
                continue
            gains = memory.estimates[i].gains(self.options.gamma)
            rates = [
                (1.0 + gain) / (gamma * step + unit * (f + (1.0 - f) * costs.v(gamma + 1)))
                for gamma, gain in enumerate(gains, start=1)
            ]
            best = max(range(len(rates)), key=rates.__getitem__, default=None)
            alphas = [b / a for a, b in pairwise([1.0, *_steps(gains)])]
            rate = 0.0 if best is None else rates[best] / costs.a_pass
            found.append(Expected(record.step.value(step), alphas, 0 if best is None else best + 1, rate))
        return found


def _steps(sums: Sequence[float]) -> list[float]:
    """The differences of sums that begin at 0."""
    return [b - a for a, b in pairwise([0.0, *sums])]


def _chain(draft: Draft) -> tuple[int, ...]:
    """The tokens of a draft's chain: of a comb those before its leaves."""
    return draft.tokens[: len(draft.widths)]


def _candidates(options: AutoOptions, config: ModelConfig) -> Iterator[tuple[str, Drafter]]:
    """Drafters and their labels. Raises OptionError for one that cannot draft for this model, if it was named."""
    entries = [options.candidates] if isinstance(options.candidates, str) else options.candidates
    for entry in entries:
        if isinstance(entry, Drafter):
            yield entry.name, drafters.create(entry, config, {})
            continue
        for spec in parse_specs(entry.replace("+", ",")):
            yield from _variants(spec, options, config)


def _variants(spec: Spec, options: AutoOptions, config: ModelConfig) -> Iterator[tuple[str, Drafter]]:
    """One candidate, or several where it has a choice of layers."""
    if spec.name in ("plain", "auto"):
        raise OptionError(f"candidates has {spec.name}, which does not belong there; name drafters to choose from")
    cls = drafters.drafter_class(spec.name)
    shared = {"gamma": options.gamma, "confidence": options.confidence} | spec.options(cls.Options)
    variants = cls.variants(config, shared)
    if not variants and options.candidates != CANDIDATES:
        raise OptionError(f"candidates has {spec.name}, which cannot draft for this model")
    for variant in variants:
        more = {name: value for name, value in variant.items() if name not in shared}
        label = Spec(spec.name, (*spec.given, *((name, f"{value}") for name, value in more.items()))).label
        yield label, drafters.create(cls, config, variant)
