"""The controller: each round, the drafter and the draft length that are expected to give most tokens per second.

A draft adds E tokens to the one that a pass gives anyway, and t seconds to its time: those of the draft steps, and
those of its rows in the pass. It is worth E - λ t, where λ is what the texts get per second at present, and never
less than plain decoding gives: of repeated choices, the one with the largest E - λ t has the largest rate in the
long run (Dinkelbach 1967). γ = 0 is worth 0. With several texts in one pass λ is the rate of all of them, so a row
has to bring more the more texts share the pass.

E comes from discounted counts of what was right, per drafter and depth of the draft, or from what the drafter says
of its draft, times how honest it was (`evidence`); t from the clock of the loop. Decisions see tokens that have
been committed, drafts that have been judged and times that have passed, never a random number that is still to be
used, so the law of the text is that of plain decoding.

- Nothing is drafted by a drafter that was not seen to be right lately. What a look-up says is compared with what
  comes, at no cost. Of a draft that runs layers one token is drafted and left out, and the pass resumes from its
  states: such a *probe* costs the head. All probes take a hundredth of the time, some of it in advance, and grow
  rare where nothing comes of them; a dear one is saved up for.
- Verification after an exit at layer k is a partial pass, V = f + (1 - f) v(γ + 1).
- The price of rows is learned by the runtime (`PassCosts`), which forgets. It needs no term for the context: a text
  grows by a row per token, and the share of attention moves far more slowly than the fifty passes remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from selfspec import drafters
from selfspec.drafters.base import Drafter, DraftOptions, Extra, inherited, option, repeatable_option
from selfspec.drafters.evidence import Counts, Estimate, Knowledge, Mean, Rounds, promised
from selfspec.drafters.explain import Expected, Tally, explained
from selfspec.drafters.prior import read_prior
from selfspec.drafters.specs import Spec, parse_specs, with_commas
from selfspec.drafters.trained import shipped
from selfspec.drafters.turn import NOTHING, Choice, Memory, Seat, Turn
from selfspec.errors import OptionError
from selfspec.prefixes import shared_length

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selfspec.context import Context, Text
    from selfspec.drafters.base import Host
    from selfspec.model.config import ModelConfig
    from selfspec.rounds import Commit, Round
    from selfspec.runtime.costs import PassCosts
    from selfspec.types import Draft

CANDIDATES = "suffix,early_exit"
"""What brings no weights and no KV: a default must not take memory that nobody asked for. `quantized` and
`draft_model` are for those who name them. A trained head that comes with the package joins them (a few MB)."""
LOOK_AGAIN = 64
"""Rounds after which one without a draft shows again what plain decoding costs."""
_UNKNOWN_STEP = 0.5  # of a pass: a draft step of a drafter of which nothing is known
_FIRST_ROUNDS = 2.0  # that the rate of plain decoding counts for, when a request begins
_NONE = -1  # no token


@dataclass(frozen=True)
class AutoOptions(DraftOptions):
    """Options of `Auto`."""

    gamma: int = inherited(DraftOptions, "gamma", 7)
    adaptive: bool = option(True, "Always on: deciding anew in every round is what it does.")
    candidates: str | Sequence[str | Drafter] = option(
        CANDIDATES,
        "Drafters to choose from, with commas (or +), options after colons: suffix,quantized:draft_bits=4. "
        "What they bring, weights or KV, is held beside the model.",
        opens=True,
    )
    profile: str | None = option(
        None,
        "Begin with what `selfspec profile --out FILE` measured of this model on this machine: that FILE.",
        opens=True,
    )
    repeatable: bool = repeatable_option()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.adaptive:
            raise OptionError("adaptive is False, but auto always adapts; name a drafter instead, such as ngram")
        entries = [self.candidates] if isinstance(self.candidates, str) else self.candidates
        if not isinstance(entries, Sequence) or not all(isinstance(entry, str | Drafter) for entry in entries):
            raise OptionError(f"candidates is {self.candidates!r}; it must be names of drafters, with commas")
        if not any(not isinstance(entry, str) or entry.strip() for entry in entries):
            raise OptionError(f"candidates is {self.candidates!r}; name drafters to choose from, with commas")


@lru_cache(maxsize=64)  # to find their names reads the metadata of all packages, and every request asks
def _specs(entry: str) -> tuple[Spec, ...]:
    """The drafters that an entry names."""
    return tuple(parse_specs(with_commas(entry, drafters.available())))


class Auto(Drafter):
    """Chooses among drafters, early exits and plain decoding, for every text and round; see the module."""

    Options = AutoOptions
    name = "auto"
    summary = "chooses drafter, exit layer and γ anew in every round, none where none pays"
    paper = "the rule of choice is Dinkelbach's (1967)"
    pays = "the default: it drafts only while that is expected to pay, so the worst case is what looking costs"

    def __init__(self, options: AutoOptions, config: ModelConfig) -> None:
        super().__init__(options, config)
        self._settings = options
        self._labelled = list(_candidates(options, config))
        self._has_shipped = False  # whether heads that come with the package were looked for
        self.samples = any(part.samples for part in self.parts)
        self._knowledge = self._unknowing()
        self._choices = self._judged()
        self._memories: dict[Text, Memory] = {}
        self._rate = Mean(0.95)  # tokens of all texts in the time of a pass
        self._others = (0, 0)  # texts of other drafters in the last pass, and rows
        self._costs: PassCosts | None = None  # of the runtime that asked last; it is always the same

    @property
    def parts(self) -> tuple[Drafter, ...]:
        """The candidates."""
        return tuple(part for _, candidate in self._labelled for part in candidate.parts)

    @property
    def draws(self) -> bool:
        """Not where a seed must give one text, whatever is drafted."""
        return not self._settings.repeatable

    @property
    def extra_bytes(self) -> Extra:
        """What all candidates bring."""
        brought = [part.extra_bytes for part in self.parts]
        return Extra(sum(extra.weights for extra in brought), sum(extra.kv for extra in brought))

    @property
    def uses_prediction(self) -> bool:
        """Whether a candidate does."""
        return any(part.uses_prediction for part in self.parts)

    def bind(self, host: Host) -> None:
        """Candidates get what they need of the engine; what is learned is kept there.

        Trained heads that come with the package for this checkpoint are candidates by default.
        """
        if self._settings.candidates == CANDIDATES and not self._has_shipped:
            self._labelled += _shipped(host, self._settings, self.config)
            self._has_shipped = True
            self.samples = any(part.samples for part in self.parts)
        for _, candidate in self._labelled:
            candidate.bind(host)
        for part in self.parts:
            part.keeps_up = False
        key = ("auto", self._settings.profile, *(label for label, _ in self._labelled))
        self._knowledge = host.kept(key, lambda: self._informed(host))
        self._choices = self._judged()

    def begin(self, text: Text) -> None:
        """Start counting for a text."""
        text.samples_drafts = self.draws
        for choice in self._choices:
            choice.drafter.begin(text)
            choice.record.idle = 0  # another text, another chance
        rounds, count = Rounds(), len(self._choices)
        estimates = [
            Estimate(choice.record.counts, Counts(rounds), choice.drafter.usual_alpha) for choice in self._choices
        ]
        benefits = [choice.record.benefit for choice in self._choices]
        self._memories[text] = Memory(rounds, estimates, Tally.of(count), benefits)

    def end(self, text: Text) -> None:
        """Leave the explanation with the text, and drop all else."""
        memory = self._memories.pop(text)
        text.explanation = explained(
            [choice.label for choice in self._choices], memory.tally, self._expected(memory)
        )
        for choice in self._choices:
            choice.drafter.end(text)

    def _unknowing(self) -> Knowledge:
        return Knowledge.of(len(self._labelled))

    def _informed(self, host: Host) -> Knowledge:
        """What is known before anything was drafted: what heads say of themselves, and what a profile measured."""
        known, file = self._unknowing(), self._settings.profile
        for (_, candidate), record in zip(self._labelled, known.records, strict=True):
            record.expect(candidate.stated_alphas)
        prior = None if file is None else read_prior(file, host)
        if prior is None:
            return known
        costs = host.runtime.costs
        for rows, seconds in enumerate(() if costs.a_pass else prior.seconds, start=1):
            costs.observe(rows, seconds)
        for (_, candidate), record in zip(self._labelled, known.records, strict=True):
            plan = candidate.plan
            is_exit = plan is not None and plan.shared_prefix == plan.row_layers and candidate.step_share is None
            if is_exit and plan is not None and (found := prior.exits.get(plan.shared_prefix)):
                record.believe(found.c, found.alphas)
        return known

    def _judged(self) -> list[Choice]:
        """The candidates with what is known of them."""
        config = self.config
        head = config.head_parameters / max(config.pass_parameters, 1)  # its share of a pass
        made = []
        for (label, candidate), record in zip(self._labelled, self._knowledge.records, strict=True):
            c, f, plan = candidate.step_share or _UNKNOWN_STEP, 0.0, candidate.plan
            if plan is not None:
                if candidate.step_share is None:  # else it has a head of its own
                    c = head + (1.0 - head) * plan.row_layers / config.num_layers
                f = (1.0 - head) * plan.shared_prefix / config.num_layers
            readers = tuple(part for part in candidate.parts if part.taps)
            made.append(Choice(label, candidate, record, c, f, readers))
        return made

    # -- deciding ------------------------------------------------------------------------------------------

    def propose(self, context: Context, texts: Sequence[Text], gammas: Sequence[int]) -> list[Draft]:
        """For each text the draft that is worth most, if any is worth its time."""
        memories = [self._memories[text] for text in texts]
        for memory in memories:
            memory.forget()
        self._costs = context.runtime.costs
        if not self._costs.a_pass or self._looks_again():
            return [NOTHING] * len(texts)
        seats = [Seat(*seat) for seat in zip(texts, memories, gammas, strict=True) if seat[2] > 0]
        others, rows = self._others
        plain = (len(texts) + others) / self._costs.v(len(texts) + others)
        if not self._rate.weight:
            self._rate.learn(_FIRST_ROUNDS * max(self._knowledge.rate.value(plain), plain), _FIRST_ROUNDS)
        rate = max(self._rate.value(plain), plain)
        turn = Turn(context, self._choices, self._knowledge, len(texts) + rows, rate)
        turn.seats += seats
        for i, choice in enumerate(self._choices):
            if choice.drafter.is_free:
                turn.look_up(i)
        if seats and not turn.run_best():
            turn.probe()
        return [memory.draft for memory in memories]

    def _looks_again(self) -> bool:
        """Whether this round shows what plain decoding costs: drafts have hidden it for too long, or it changed."""
        if self._knowledge.stale < LOOK_AGAIN and not (self._costs and self._costs.is_in_doubt):
            return False
        lost = max(1.0 - 1.0 / self._rate.value(1.0), 0.0)
        if not self._knowledge.probes.allows(lost, debt=1.0):
            return False
        self._knowledge.probes.spend(lost)
        return True

    # -- learning ------------------------------------------------------------------------------------------

    def observe(self, text: Text, commit: Commit) -> None:
        """Compare everything that was proposed with what came."""
        memory = self._memories[text]
        for i, draft in memory.asked.items():
            self._compare(i, memory, text, draft, commit)
        memory.tally.committed(memory.by, memory.probed, commit)
        memory.rounds.now += 1

    def _compare(self, i: int, memory: Memory, text: Text, draft: Draft, commit: Commit) -> None:
        """What a candidate proposed, used or not."""
        choice, is_used = self._choices[i], memory.by == i
        if commit.widths and not is_used:
            choice.drafter.observe(text, replace(commit, widths=(), accepted=0))
        else:
            choice.drafter.observe(text, commit)
        chain, came = _chain(draft), commit.tokens
        if is_used and draft.laws is not None:  # held by chance: what holds is what was accepted
            came = (*chain[: commit.accepted], *((_NONE,) if commit.accepted < commit.depth else ()))
        if chain and came:
            choice.record.judged(is_right := chain[0] == came[0])
            if is_right and not choice.drafter.is_free:
                self._knowledge.think_at = 0
            if draft.chances:
                choice.record.said(promised(draft.chances[: len(came)]), shared_length(chain, came))
            else:
                memory.estimates[i].learn(chain, came)
        if choice.drafter.is_free:
            gained = memory.net if is_used else 0.0
            memory.benefit[i] += 0.05 * (gained - memory.benefit[i])
            choice.record.benefit += 0.02 * (gained - choice.record.benefit)

    def timed(self, texts: Sequence[Text], round_: Round) -> None:
        """Count the time: of all, of a pass, of a verification that resumed."""
        memories = [self._memories[text] for text in texts if text in self._memories]
        commits, seconds = round_.commits, round_.ended - round_.started
        tokens, rows, own = 0, len(commits), len(memories)
        for commit in commits:
            tokens += len(commit.tokens)
            rows += commit.drafted
        for memory in memories:
            own += len(memory.draft)
            memory.tally.took(memory.by, seconds / max(len(commits), 1))
        self._others = (max(len(commits) - len(memories), 0), max(rows - own, 0))
        if self._costs is not None and self._costs.a_pass:
            is_usual = True
            if self._others[0] == 0 and rows and round_.ended > round_.drafted_at:
                is_usual = self._learn_pass(self._costs, memories, rows, round_.ended - round_.drafted_at)
            passes = seconds / self._costs.a_pass
            self._knowledge.a_round(passes)
            if is_usual and not self._costs.is_in_doubt:  # else a pass is not the unit that it was
                self._rate.learn(tokens, passes)
                self._knowledge.rate.learn(tokens, passes)

    def _learn_pass(self, costs: PassCosts, memories: Sequence[Memory], rows: int, seconds: float) -> bool:
        """What a pass of ``rows`` rows took, if some of them resumed; of others the loop has told the runtime.

        Says whether it took what was expected.
        """
        resumed = {i for memory in memories if memory.kept and (i := memory.resumed_by) is not None}
        self._knowledge.stale = self._knowledge.stale + 1 if rows > len(memories) or resumed else 0
        if len(resumed) == 1:
            (i,) = resumed
            f, below = self._choices[i].f, rows - sum(memory.kept for memory in memories)
            parts = [(count, share) for count, share in ((below, f), (rows, 1.0 - f)) if count]
            return self._knowledge.partial_pass(self._choices[i].record, costs, parts, seconds)
        return True

    def _expected(self, memory: Memory) -> list[Expected]:
        """What each candidate is expected to do in this text alone, by what is known now; plain decoding first."""
        costs = self._costs
        if costs is None or not costs.a_pass:
            return []
        found = [Expected(0.0, [], 0, 1.0 / costs.a_pass)]
        for i, choice in enumerate(self._choices):
            record, f, is_free = choice.record, choice.f, choice.drafter.is_free
            step, unit = (0.0, 1.0) if is_free else (choice.c, record.unit.value(1.0))
            if is_free and not record.counts.seen(0)[1]:
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
        for spec in _specs(entry):
            yield from _variants(spec, options, config)


def _shipped(host: Host, options: AutoOptions, config: ModelConfig) -> Iterator[tuple[str, Drafter]]:
    """Trained heads that come with the package for this checkpoint, with their labels."""
    shared = {"gamma": options.gamma, "confidence": options.confidence}
    for kind, name in (("eagle", "eagle"), ("exit_head", "early_exit")):
        if (path := shipped(host, kind)) is not None:
            label = name if kind == "eagle" else f"{name}:head={path.stem}"
            yield label, drafters.create(drafters.drafter_class(name), config, {**shared, "head": str(path)})


def _variants(spec: Spec, options: AutoOptions, config: ModelConfig) -> Iterator[tuple[str, Drafter]]:
    """One candidate, or several where it has a choice of layers."""
    if spec.name in ("plain", "auto", "overlap"):
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
