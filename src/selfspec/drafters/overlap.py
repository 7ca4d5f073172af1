"""Overlap (Saguaro, speculative speculative decoding, arXiv 2603.03251): drafts are made while others are verified.

While the target verifies a draft, another device, or idle cores, draft for what may come of it: for likely
outcomes (how many tokens hold, and which token the target adds). When the outcome is one of them, the next draft
is there; else it is made as usual. A thread does it: native core and torch let go of the interpreter as they run.

- The wrapped drafter says which bonus tokens are likely, and drafts for them (`Drafter.ahead`). One that runs on
  the target's own weights or cache cannot: they are busy.
- How many outcomes each number of accepted tokens gets is `fan_out`: geometric, more at the end.
- A draft that was made ahead has the wrapped drafter's law, given what it follows, and was made before the
  verification. Whether there is one decides when a draft is made, not what it is: verification is told the same q.
- With ``withhold`` below 1, tokens that will be drafted for are drawn less often, which makes them likelier as
  bonus tokens: more hits, fewer accepted. q is the law after that.
- A round waits for what is drafted ahead. On one saturated device that costs more than it brings: rounds with and
  without it are timed, and it pauses while they are slower (``adaptive``).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from selfspec import drafters
from selfspec.drafters.ahead import Ahead, Outcome, fan_out, withheld
from selfspec.drafters.base import Drafter, DraftOptions, Extra, option, repeatable_option
from selfspec.drafters.comb import chain_of
from selfspec.drafters.evidence import Mean
from selfspec.drafters.specs import parse_specs
from selfspec.drafters.steps import StepDrafter
from selfspec.errors import OptionError
from selfspec.types import MAX_SIBLINGS, Draft

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from selfspec.context import Context, Text
    from selfspec.drafters.base import Host
    from selfspec.model.config import ModelConfig
    from selfspec.rounds import Commit, Round
    from selfspec.runtime.costs import PassCosts
    from selfspec.types import Distribution

FIRST_ACCEPTANCE = 0.7
_PRIOR_WEIGHT = 4.0  # of that, in tokens
_TRIAL = 8  # rounds after which both ways are compared
_PAUSE = 64  # rounds without, after a comparison that was lost; doubled every time
_LONGEST_PAUSE = 4096
_WARM_UP = 2  # rounds of a drafter that are not timed


@dataclass(frozen=True)
class OverlapOptions(DraftOptions):
    """Options of `Overlap`."""

    adaptive: bool = option(True, "Draft ahead only while rounds with it are faster than rounds without.")
    wraps: str | Drafter = option(  # noqa: RUF009 (it makes a field)
        "", "The drafter, with its options: draft_model:draft_model=NAME, suffix.", opens=True
    )
    outcomes: int = option(8, f"Outcomes of a verification to draft for, 1 to {MAX_SIBLINGS}.")
    withhold: float = option(
        1.0, "Draw what is drafted for less often, by this factor: more hits, fewer accepted. 1 is off."
    )
    repeatable: bool = repeatable_option()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.wraps, str | Drafter) or not self.wraps:
            raise OptionError(
                f"wraps is {self.wraps!r}; it must be a drafter that can draft ahead, such as "
                "draft_model:draft_model=NAME, or suffix"
            )
        if not 1 <= self.outcomes <= MAX_SIBLINGS:
            raise OptionError(f"outcomes is {self.outcomes}; it must be 1 to {MAX_SIBLINGS}")
        if not 0.0 <= self.withhold <= 1.0:
            raise OptionError(f"withhold is {self.withhold}; it must be 0 (never draw them) to 1 (off)")
        if self.withhold < 1.0 and self.repeatable:
            raise OptionError(
                f"withhold is {self.withhold}, but repeatable drafts are not drawn; turn repeatable off"
            )


class Waiting(Protocol):
    """Work that was begun."""

    def result(self) -> list[Ahead]:
        """Wait for it."""


class _Pace:
    """Whether drafting ahead pays, by what drafts and verifications take with it and without, per pass.

    Some rounds without it, some with it: then what is faster goes on. Of the rounds with it every ``_PAUSE``-th is
    one without, so that both stay known; after a comparison that was lost it pauses for twice as long as before.
    """

    def __init__(self) -> None:
        self._draft = {False: Mean(0.9), True: Mean(0.9)}
        self._verify = {False: Mean(0.9), True: Mean(0.9)}
        self._left = _TRIAL  # rounds until it is decided again
        self._pause = _PAUSE
        self._drafts_ahead = False

    @property
    def is_on(self) -> bool:
        """Whether to draft ahead in this round."""
        return self._drafts_ahead and self._left != 1

    def learn(self, was_made_ahead: bool, seconds: tuple[float, float], passes: float) -> None:
        """A round of so many passes took so long: drafting, verifying."""
        self._draft[was_made_ahead].learn(seconds[0], passes)
        self._verify[self.is_on].learn(seconds[1], passes)
        self._left -= 1
        if self._left > 0:
            return
        if not self._drafts_ahead:
            self._drafts_ahead, self._left = True, _TRIAL
            self._draft[True], self._verify[True] = Mean(0.9), Mean(0.9)  # what it took long ago says nothing
        elif self._takes(ahead=True) < self._takes(ahead=False):
            self._left = self._pause = _PAUSE
        else:
            self._drafts_ahead, self._left = False, self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _takes(self, ahead: bool) -> float:
        return self._draft[ahead].value(0.0) + self._verify[ahead].value(0.0)


@dataclass(eq=False)
class _Memory:
    """What is kept for a text: ``drafts`` that were made ahead, and the ``outcome`` that came."""

    drafts: dict[Outcome, Draft] = field(default_factory=dict)
    outcome: Outcome | None = None
    right: float = FIRST_ACCEPTANCE * _PRIOR_WEIGHT  # draft tokens, older ones counting less
    judged: float = _PRIOR_WEIGHT
    ahead: int = 0  # rounds for which drafts were made ahead
    hits: int = 0

    def learn(self, is_right: bool) -> None:
        """Count a draft token."""
        self.right, self.judged = 0.99 * self.right + is_right, 0.99 * self.judged + 1.0


class Overlap(Drafter):
    """Wraps a drafter, and drafts with it while its drafts are verified; see the module."""

    Options = OverlapOptions
    name = "overlap"
    summary = (
        "drafts ahead while the target verifies, on another device or idle cores; wraps draft_model and look-ups"
    )
    paper = "Saguaro: speculative speculative decoding (arXiv 2603.03251)"
    pays = "with a second device or idle cores; on one busy device it loses, and pauses"

    def __init__(self, options: OverlapOptions, config: ModelConfig) -> None:
        self._settings = options
        self._inner = inner = _wrapped(options, config)
        super().__init__(replace(options, gamma=inner.options.gamma), config)
        self.samples = inner.samples
        self._draws_less(inner)
        self.begin_work: Callable[[Callable[[], list[Ahead]]], Waiting] = self._submit
        self._pool: ThreadPoolExecutor | None = None
        self._pace = _Pace()
        self._costs: PassCosts | None = None
        self._rounds = 0
        self._was_on = (False, False)  # in the last round and the one before
        self._memories: dict[Text, _Memory] = {}

    def _draws_less(self, inner: Drafter) -> None:
        if self._settings.withhold == 1.0:
            return
        if not isinstance(inner, StepDrafter):
            raise OptionError(
                f"withhold is {self._settings.withhold}, but {inner.name} draws nothing; leave it out"
            )
        inner.reshape = self._withhold

    @property
    def parts(self) -> tuple[Drafter, ...]:
        """The wrapped drafter."""
        return self._inner.parts

    @property
    def runs(self) -> str:
        """What that runs."""
        return self._inner.runs

    @property
    def extra_bytes(self) -> Extra:
        """What that brings, room for drafts made ahead included."""
        return self._inner.extra_bytes

    @property
    def uses_prediction(self) -> bool:
        """Whether that does."""
        return self._inner.uses_prediction

    @property
    def draws(self) -> bool:
        """Not where a seed must give one text, whatever was drafted ahead."""
        return not self._settings.repeatable

    def bind(self, host: Host) -> None:
        """The wrapped drafter gets what it needs; what rounds take is kept by the engine."""
        self._inner.bind(host)
        self._inner.look_ahead_with(self._settings.outcomes)
        self._pace = host.kept(("overlap", str(self._settings.wraps), self._settings.outcomes), _Pace)

    def begin(self, text: Text) -> None:
        """Nothing is drafted ahead yet."""
        text.samples_drafts = self.draws
        self._memories[text] = _Memory()
        self._inner.begin(text)

    def end(self, text: Text) -> None:
        """Say how often drafts were there, and drop all else."""
        memory = self._memories.pop(text)
        text.explanation = {"rounds_drafted_ahead": memory.ahead, "hits": memory.hits}
        self._inner.end(text)

    def propose(self, context: Context, texts: Sequence[Text], gammas: Sequence[int]) -> list[Draft]:
        """What was drafted ahead for the outcome that came; where it was not, what the wrapped drafter says now."""
        self._costs = context.runtime.costs
        found: dict[Text, Draft] = {}
        for text, gamma in zip(texts, gammas, strict=True):
            memory = self._memories[text]
            if memory.outcome is not None and memory.outcome in memory.drafts:
                found[text] = chain_of(memory.drafts[memory.outcome], gamma)
                memory.hits += 1
                self._inner.adopt(text, memory.outcome)
            memory.drafts, memory.outcome = {}, None
        missing = [(text, gamma) for text, gamma in zip(texts, gammas, strict=True) if text not in found]
        if missing:
            late, most = zip(*missing, strict=True)
            found |= zip(late, self._inner.propose(context, late, most), strict=True)
        return [found[text] for text in texts]

    def during(self, context: Context, texts: Sequence[Text], drafts: Sequence[Draft]) -> Callable[[], None] | None:
        """Draft ahead in a thread, where that pays."""
        self._was_on = (not self._settings.adaptive or self._pace.is_on, self._was_on[0])
        if not self._was_on[0]:
            return None
        fans = [self._fan(text, len(draft)) for text, draft in zip(texts, drafts, strict=True)]
        work = self.begin_work(partial(self._inner.ahead, context, texts, drafts, fans))

        def wait() -> None:
            for text, ahead in zip(texts, work.result(), strict=True):
                memory = self._memories[text]
                memory.drafts, memory.ahead = ahead.drafts, memory.ahead + 1
                context.count([text.slot], ahead.row_layers)

        return wait

    def observe(self, text: Text, commit: Commit) -> None:
        """Note the outcome."""
        memory = self._memories[text]
        if len(commit.tokens) == commit.accepted + 1:
            memory.outcome = Outcome(commit.accepted, commit.tokens[-1])
        for depth in range(min(commit.accepted + 1, commit.depth)):
            memory.learn(depth < commit.accepted)
        self._inner.observe(text, commit)

    def timed(self, texts: Sequence[Text], round_: Round) -> None:
        """Compare rounds; the first ones read prompts, and say nothing."""
        self._inner.timed(texts, round_)
        self._rounds += 1
        rows = sum(commit.drafted + 1 for commit in round_.commits)
        if self._settings.adaptive and self._rounds > _WARM_UP and rows and self._costs is not None:
            seconds = (round_.drafted_at - round_.started, round_.ended - round_.drafted_at)
            self._pace.learn(self._was_on[1], seconds, self._costs.v(rows))

    def _fan(self, text: Text, gamma: int) -> list[int]:
        memory = self._memories[text]
        return fan_out(self._settings.outcomes, gamma, memory.right / memory.judged)

    def _withhold(self, text: Text, law: Distribution, depth: int) -> Distribution:
        """The law of a draft token, less often one that will be drafted for."""
        fan = self._fan(text, self.options.gamma)
        return withheld(law, fan[depth], self._settings.withhold)

    def _submit(self, work: Callable[[], list[Ahead]]) -> Waiting:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="selfspec-overlap")
        return self._pool.submit(work)


def _wrapped(options: OverlapOptions, config: ModelConfig) -> Drafter:
    """The drafter that is asked to draft ahead. Raises OptionError for one that cannot."""
    if isinstance(options.wraps, Drafter):
        made = drafters.create(options.wraps, config, {})
    else:
        specs = parse_specs(options.wraps)
        if len(specs) != 1:
            raise OptionError(f"wraps is {options.wraps!r}; it must be one drafter")
        cls = drafters.drafter_class(specs[0].name)
        shared = {"gamma": options.gamma, "confidence": options.confidence}
        made = drafters.create(cls, config, shared | specs[0].options(cls.Options))
    if not made.looks_ahead:
        raise OptionError(
            f"{made.name} cannot draft ahead: that takes a drafter that needs neither the target's layers nor its "
            "cache, which are busy then; use draft_model, ngram or suffix"
        )
    if made.options.most_tokens > made.options.gamma:
        raise OptionError(f"{made.name} would draft siblings; overlap drafts chains: leave siblings at 0")
    return made
