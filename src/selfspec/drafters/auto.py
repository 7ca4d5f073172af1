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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from selfspec import drafters
from selfspec.drafters.base import Drafter, DraftOptions, Extra, option
from selfspec.drafters.evidence import Counts, Estimate, Knowledge, Mean, Record
from selfspec.drafters.explain import Expected, Tally, explained
from selfspec.drafters.specs import Spec, parse_specs
from selfspec.drafters.turn import Choice, Memory, Seat, Turn
from selfspec.errors import OptionError
from selfspec.types import Draft

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selfspec.context import Context, Text
    from selfspec.drafters.base import Host
    from selfspec.model.config import ModelConfig
    from selfspec.rounds import Commit, Round
    from selfspec.runtime.costs import PassCosts

CANDIDATES = "suffix,early_exit"
LOOK_AGAIN = 64
"""Rounds after which one without a draft shows again what plain decoding costs."""
_UNKNOWN_STEP = 0.5  # of a pass: a draft step of a drafter of which nothing is known
_FIRST_BENEFIT = 0.05  # tokens that asking a look-up is taken to bring a new text
_NONE = -1  # no token


@dataclass(frozen=True)
class AutoOptions(DraftOptions):
    """Options of `Auto`."""

    gamma: int = option(7, "Most tokens to draft per round (γ); 0 drafts nothing.")
    adaptive: bool = option(True, "Always on: deciding anew in every round is what it does.")
    candidates: str | Sequence[str | Drafter] = option(
        CANDIDATES,
        "Drafters to choose from, with commas (or +), options after colons: suffix,early_exit:exit_layer=8.",
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


_kind = cache(drafters.drafter_class)  # finding one reads the metadata of all packages


class Auto(Drafter):
    """Chooses among drafters, early exits and plain decoding, for every text and round; see the module."""

    Options = AutoOptions
    name = "auto"
    summary = "chooses drafter, exit layer and γ anew in every round, none where none pays"

    def __init__(self, options: AutoOptions, config: ModelConfig) -> None:
        super().__init__(options, config)
        self._settings = options
        self._labelled = list(_candidates(options, config))
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
        """Candidates get what they need of the engine; what is learned is kept there."""
        for _, candidate in self._labelled:
            candidate.bind(host)
        self._knowledge = host.kept(("auto", *(label for label, _ in self._labelled)), self._unknowing)
        self._choices = self._judged()

    def begin(self, text: Text) -> None:
        """Start counting for a text."""
        text.samples_drafts = self.draws
        for choice in self._choices:
            choice.drafter.begin(text)
        own = [Counts() for _ in self._choices]
        estimates = [
            Estimate(choice.record.counts, counts) for choice, counts in zip(self._choices, own, strict=True)
        ]
        self._memories[text] = Memory(own, estimates, Tally.of(len(own)), [_FIRST_BENEFIT] * len(own))

    def end(self, text: Text) -> None:
        """Leave the explanation with the text, and drop all else."""
        memory = self._memories.pop(text)
        text.explanation = explained(
            [choice.label for choice in self._choices], memory.tally, self._expected(memory)
        )
        for choice in self._choices:
            choice.drafter.end(text)

    def _unknowing(self) -> Knowledge:
        return Knowledge([Record() for _ in self._labelled])

    def _judged(self) -> list[Choice]:
        """The candidates with what is known of them."""
        config = self.config
        layers = config.num_layers * config.active_layer_parameters
        head = config.head_parameters / max(layers + config.head_parameters, 1)  # its share of a pass
        made = []
        for (label, candidate), record in zip(self._labelled, self._knowledge.records, strict=True):
            c, f, plan = _UNKNOWN_STEP, 0.0, candidate.plan
            if plan is not None:
                c = head + (1.0 - head) * plan.row_layers / config.num_layers
                f = (1.0 - head) * plan.shared_prefix / config.num_layers
            made.append(Choice(label, candidate, record, c, f))
        return made

    # -- deciding ------------------------------------------------------------------------------------------

    def propose(self, context: Context, texts: Sequence[Text], gammas: Sequence[int]) -> list[Draft]:
        """For each text the draft that is worth most, if any is worth its time."""
        memories = [self._memories[text] for text in texts]
        for memory in memories:
            memory.forget()
        self._costs = context.runtime.costs
        if not self._costs.a_pass or self._looks_again():
            return [Draft() for _ in texts]
        seats = [Seat(*seat) for seat in zip(texts, memories, gammas, strict=True) if seat[2] > 0]
        others, rows = self._others
        plain = (len(texts) + others) / self._costs.v(len(texts) + others)
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
        """Whether this round shows what plain decoding costs: drafts have hidden it for too long."""
        if self._knowledge.stale < LOOK_AGAIN:
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
        unused = replace(commit, widths=(), accepted=0)
        for i, draft in memory.asked.items():
            is_used = memory.by == i
            choice = self._choices[i]
            choice.drafter.observe(text, commit if is_used else unused)
            chain, came = _chain(draft), commit.tokens
            if is_used and draft.laws is not None:  # held by chance: what holds is what was accepted
                came = (*chain[: commit.accepted], *((_NONE,) if commit.accepted < commit.depth else ()))
            if (is_right := memory.estimates[i].learn(chain, draft.chances, came)) is not None:
                choice.record.judged(is_right)
            if choice.drafter.is_free:
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

    def _learn_pass(self, costs: PassCosts, memories: Sequence[Memory], rows: int, seconds: float) -> None:
        """What a pass of ``rows`` rows took, if some of them resumed; of others the loop has told the runtime."""
        resumed = {i for memory in memories if memory.kept and (i := memory.resumed_by) is not None}
        self._knowledge.stale = self._knowledge.stale + 1 if rows > len(memories) or resumed else 0
        if len(resumed) == 1:
            (i,) = resumed
            f, below = self._choices[i].f, rows - sum(memory.kept for memory in memories)
            parts = [(count, share) for count, share in ((below, f), (rows, 1.0 - f)) if count]
            self._knowledge.partial_pass(self._choices[i].record, costs, parts, seconds)

    def _expected(self, memory: Memory) -> list[Expected]:
        """What each candidate is expected to do in this text alone, by what is known now; plain decoding first."""
        costs = self._costs
        if costs is None or not costs.a_pass:
            return []
        found = [Expected(0.0, [], 0, 1.0 / costs.a_pass)]
        for i, choice in enumerate(self._choices):
            record, f, is_free = choice.record, choice.f, choice.drafter.is_free
            step, unit = (0.0, 1.0) if is_free else (choice.c, record.unit.value(1.0))
            if is_free and not record.counts.seen(("depth", 0))[1]:
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
    if spec.name in ("plain", "auto", "overlap"):
        raise OptionError(f"candidates has {spec.name}, which does not belong there; name drafters to choose from")
    cls = _kind(spec.name)
    shared = {"gamma": options.gamma, "confidence": options.confidence} | spec.options(cls.Options)
    variants = cls.variants(config, shared)
    if not variants and options.candidates != CANDIDATES:
        raise OptionError(f"candidates has {spec.name}, which cannot draft for this model")
    for variant in variants:
        more = {name: value for name, value in variant.items() if name not in shared}
        label = Spec(spec.name, (*spec.given, *((name, f"{value}") for name, value in more.items()))).label
        yield label, drafters.create(cls, config, variant)
