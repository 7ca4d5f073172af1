"""`selfspec tune`: from prompts and a budget of time to the draft that is fastest here, in stages that are kept.

1. A profile (`selfspec.measure.profile`): costs of passes and rounds, plain decoding's answers, and which exits
   agree.
2. Voices (`selfspec.measure.listening`): how sure the best exits are along these answers, and which skip sets are
   worth looking at.
3. Replay: every contender over the recorded answers on the modelled clock, first over some, then the better ones
   over all. No clock is read.
4. Race: the best of them and plain decoding in turn, the worse half leaving after every heat.
5. Held out: the winner, the default drafter and plain decoding on prompts that nothing was chosen on.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from selfspec.drafters.buffers import draft_buffers
from selfspec.engine import DEFAULT_DRAFT
from selfspec.errors import OptionError, SelfspecError
from selfspec.measure import contenders
from selfspec.measure.contenders import Space
from selfspec.measure.listening import Listener, chosen
from selfspec.measure.ours import BASELINE
from selfspec.measure.pairs import MIN_PAIRS
from selfspec.measure.profile import Profile, Question, Section, questions_of
from selfspec.measure.race import Track, heats, least_runs, ranked, ratio_of
from selfspec.measure.recorded import Prices, replayed
from selfspec.measure.round_costs import Probe
from selfspec.measure.settings import ProfileOptions
from selfspec.types import Sampling

if TYPE_CHECKING:
    from selfspec.engine import Engine
    from selfspec.measure.profile_report import ProfileReport
    from selfspec.measure.recorded import Tape
    from selfspec.measure.settings import TuneOptions
    from selfspec.measure.tasks import Prompt

    Units = dict[str, dict[str, Any]]

# of the whole budget, when each stage should be over
_ENDS = {"profile": 0.4, "exits": 0.46, "skips": 0.52, "screen": 0.6, "replay": 0.65, "race": 0.85, "held out": 1.0}
_MANY = 12  # answers, of which some are enough for a first replay
_LEAST = 0.05  # of the budget, for a stage that begins late
_EVERY = 3  # of the answers one is in the first replay, and of the prompts one is held out
_WARM = 3  # probes of what a look-up takes
_LOOK_UP, _DECISION = "suffix", "auto:candidates=(suffix)"  # drafts that run no layers


def split(prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[Prompt]]:
    """Prompts to tune on, and prompts to hold out: every third, tasks being together; no text is in both.

    Raises OptionError for fewer than two different ones.
    """
    different = list({prompt.turns[0].strip(): prompt for prompt in reversed(prompts)}.values())[::-1]
    if len(different) < 2:
        raise OptionError("tuning needs at least two different prompts: one to tune on, and one to hold out")
    held = different[1::_EVERY]
    return [prompt for prompt in different if prompt not in held], held


class Workload(NamedTuple):
    """What is asked: questions to tune on, and questions that are held out; at least one of each."""

    tuning: list[Question]
    held: list[Question]

    @classmethod
    def of(cls, engine: Engine, prompts: Sequence[Prompt], options: TuneOptions) -> Workload:
        """From the user's prompts. Raises OptionError for fewer than two different ones that fit."""
        return cls(*(questions_of(engine, part, options) for part in split(prompts)))


@dataclass(frozen=True)
class Stage:
    """A part of the work, meant to take so many ``seconds``; ``run`` gives the name of each unit once done."""

    name: str
    seconds: float
    run: Callable[[], Iterator[str]]


class Tuner:
    """The search for one engine.

    Parameters
    ----------
    units
        What an earlier run has measured; it grows, and is JSON-ready.
    clock
        That of all times here.

    Raises OptionError for drafters or options that there are not.
    """

    def __init__(
        self,
        engine: Engine,
        workload: Workload,
        options: TuneOptions,
        units: Units,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.space = Space.of(options.drafts)
        self.engine, self.options, self.units, self._clock = engine, options, units, clock
        self.questions, self.held = workload
        self._left_out: dict[str, str] = {}
        if not any(map(self.space.searches, contenders.SEARCHED)):
            self._possible(self.space.contenders([]))
        self.sampling = Sampling(temperature=options.temperatures[0])
        self._began = clock()
        self._profile = Profile(engine, self.questions, self._profile_options(), units, clock)
        self.listener = Listener(engine, self.questions, options, self.space, units, self.report, clock)
        self.race = Track(engine, self.questions, options, units.setdefault("race", {}), clock)
        self.final = Track(engine, self.held, options, units.setdefault("held out", {}), clock)

    def stages(self) -> Iterator[Stage]:
        """To be run one after the other: each depends on what those before it have found."""
        for section in self._profile.sections():
            if section.work:
                yield Stage(section.name, max(section.ends - self._clock(), 0.0), section.run)
        parts: dict[str, Callable[[], Mapping[str, Callable[[], Any]]]] = {
            "exits": self.listener.exit_voices,
            "skips": lambda: self.listener.skip_voices(self._ends("skips")),
            "screen": partial(self._replays, _EVERY),
            "replay": partial(self._replays, 1),
        }
        for name, plan in parts.items():
            work, ends = plan(), self._ends(name)
            section = Section(name, work, self.units.setdefault(name, {}), ends, self._clock)
            if section.missing:
                yield Stage(name, max(ends - self._clock(), 0.0), section.run)
            if section.missing and work:
                self._left_out[name] = f"{section.num_done} of {len(section.work)} within the budget"
        ends = self._ends("race")
        yield Stage("race", max(ends - self._clock(), 0.0), partial(heats, self.race, self.finalists, ends))
        ends = self._ends("held out")
        # the default drafter is what a user has now
        columns = list(dict.fromkeys([self.winner, DEFAULT_DRAFT]))
        yield Stage(
            "held out", max(ends - self._clock(), 0.0), partial(self.final.run, "final", columns, ends, MIN_PAIRS)
        )

    @property
    def left_out(self) -> dict[str, str]:
        """By stage or draft, what the budget or this model did not allow."""
        return self._profile.left_out | self._left_out

    def report(self) -> ProfileReport:
        """The profile."""
        return self._profile.report()

    def _ends(self, stage: str) -> float:
        """When a stage should be over that begins now; one that begins late has some time all the same."""
        budget = self.options.budget_seconds
        return max(self._began + budget * _ENDS[stage], self._clock() + _LEAST * budget)

    def _profile_options(self) -> ProfileOptions:
        options = self.options
        longest = self.engine.config.context_length - options.gamma - 1
        context = statistics.median_low(len(question.prompt) for question in self.questions)
        return ProfileOptions(
            temperature=options.temperature,
            max_new_tokens=options.max_new_tokens,
            ignore_eos=options.ignore_eos,
            seed=options.seed,
            gamma=options.gamma,
            contexts=str(max(min(context + options.max_new_tokens // 2, longest), 0)),
            check=0,
            budget=f"{max(options.budget_seconds * _ENDS['profile'], 0.001):.3f}s",
        )

    # -- replay ----------------------------------------------------------------------------------------------

    @cached_property
    def contenders(self) -> list[str]:
        """Those that this model and this machine can have."""
        return self._possible(self.space.contenders(self.listener.points))

    def _possible(self, drafts: Sequence[str]) -> list[str]:
        """Those that can be made here. Raises OptionError where none can."""
        possible, why = [], ""
        for draft in drafts:
            try:
                contenders.made(draft, self.engine)
                possible.append(draft)
            except SelfspecError as error:
                self._left_out[draft] = why = str(error)
        if not possible:
            raise OptionError(f"drafts is {self.options.drafts!r}, none of which can draft here: {why}")
        return possible

    @cached_property
    def prices(self) -> Prices:
        """What was measured of passes and rounds."""
        name = f"{self.sampling.temperature:g}"
        costs = self.report().costs[name]
        layer, rest = costs.line
        (v,) = (row["v"] for row in self.report().document()["passes"])
        own = self.units.setdefault("overheads", {})
        for drafter in (_LOOK_UP, _DECISION):
            if drafter not in own:
                own[drafter] = self._overhead(drafter)
        look_up = own[_LOOK_UP]
        # a pass cannot cost less than nothing, whatever a noisy line says
        return Prices(
            costs.plain_seconds,
            max(layer, 0.0),
            max(rest, 0.0),
            tuple(v),
            look_up,
            max(own[_DECISION] - look_up, 0.0),
        )

    def _overhead(self, drafter: str) -> float:
        """Seconds by which the drafting of a round is longer than plain decoding's."""
        probe = Probe(
            self.engine, self.questions[0].prompt, self.options.gamma, self.sampling.temperature, self._clock
        )
        times = [probe.seconds(drafter, {})[0] - probe.seconds(BASELINE, {})[0] for _ in range(_WARM)]
        return max(statistics.median(times), 0.0)

    def _replays(self, every: int) -> Mapping[str, Callable[[], Any]]:
        """All contenders over some of the answers, or the better ones over all."""
        tapes = self.listener.tapes
        if every > 1 and len(tapes) >= _MANY:
            tapes = tapes[::every]
        if not tapes:
            return {}
        drafts = self.contenders if every > 1 else contenders.shortlist(self._screened, 2 * self.options.finalists)
        return {BASELINE: partial(self._replay, BASELINE, tapes)} | {
            draft: partial(self._replay, draft, tapes) for draft in drafts
        }

    def _replay(self, draft: str, tapes: Sequence[Tape]) -> dict[str, Any] | None:
        found = replayed(draft, self.engine.config, tapes, self.prices, self.options.texts)
        if found is None:
            return None
        return {
            "seconds": list(found.seconds),
            "tokens_per_round": found.stats.mean_accepted_length,
            "row_layers_per_token": found.row_layers_per_token,
        }

    def _expected(self, section: str) -> dict[str, float | None]:
        """S by a replay, the median of all answers, as it is measured; None for those that cannot be replayed."""
        units = dict(self.units.get(section, {}))
        plain = units.pop(BASELINE, None)
        return {
            draft: _ratio(plain["seconds"], found["seconds"]) if found and plain else None
            for draft, found in units.items()
            if draft in self.contenders
        }

    @property
    def _screened(self) -> dict[str, float | None]:
        return self._expected("screen") or dict.fromkeys(self.contenders)

    @property
    def expected(self) -> dict[str, float | None]:
        """S by the largest replay that a contender was in."""
        return self._screened | self._expected("replay")

    # -- race ------------------------------------------------------------------------------------------------

    @property
    def finalists(self) -> list[str]:
        """Who is measured: the default drafter is always among them, since it is what a user has now."""
        found: list[str] = chosen(self.units, "finalists", self._choose_finalists)
        return found

    def _choose_finalists(self) -> list[str]:
        replayed_all = self._expected("replay")
        expected = {draft: gain for draft, gain in self.expected.items() if draft in replayed_all} or self.expected
        frugal: list[str] = []
        if self.options.aim == "memory":
            gains = {draft: gain for draft, gain in expected.items() if gain is not None}
            frugal = [min(_enough(gains), key=lambda draft: self.memory(draft)["bytes"])] if gains else []
        count = self._affordable
        best = contenders.shortlist(expected, count)
        order = list(dict.fromkeys([*frugal, *best]))[:count]
        default = [DEFAULT_DRAFT] if Space.of(DEFAULT_DRAFT).specs[0] in self.space.specs else []
        return list(dict.fromkeys([*order, *default]))

    @property
    def _affordable(self) -> int:
        """How many finalists there is time for, by what a plain answer takes; one in any case."""
        answer = self.prices.plain * self.options.max_new_tokens
        runs = (self._ends("race") - self._clock()) / answer
        fitting = [n for n in range(1, self.options.finalists + 1) if least_runs(n + 1) <= runs]
        return max(fitting, default=1)

    @property
    def winner(self) -> str:
        """The fastest of the race; for memory the one of fewest bytes that keeps half of the best gain."""
        laps = [*self.race.laps.values()]
        order = ranked(laps, self.finalists)
        # who left earlier has fewer laps: those who ran to the end go first
        order.sort(key=lambda draft: -sum(draft in lap for lap in laps))
        if self.options.aim != "memory":
            return ranked(laps, order[:2])[0]
        ratios = {draft: ratio_of(laps, draft, self.options.seed) for draft in order}
        gains = {draft: found.median for draft, found in ratios.items() if found is not None}
        return min(_enough(gains), key=lambda draft: self.memory(draft)["bytes"]) if gains else order[0]

    def memory(self, draft: str) -> dict[str, Any]:
        """Bytes beyond plain decoding, for one text."""
        drafter = contenders.made(draft, self.engine)
        extra, runtime = drafter.extra_bytes, self.engine.runtime
        buffers = draft_buffers(self.engine.config, drafter, self.sampling, runtime.value_bytes)
        total = extra.weights + extra.kv + sum(buffers.values())
        return {"weights": extra.weights, "kv": extra.kv, "buffers": buffers, "bytes": total, "runs": drafter.runs}


def _ratio(plain: Sequence[float], own: Sequence[float]) -> float:
    return statistics.median(first / second for first, second in zip(plain, own, strict=True))


def _enough(gains: Mapping[str, float]) -> list[str]:
    """Those that keep half of the best gain over plain decoding; where nothing gains, the best."""
    best = max(gains.values())
    least = 1.0 + (best - 1.0) / 2 if best > 1.0 else best
    return [draft for draft, gain in gains.items() if gain >= least]
