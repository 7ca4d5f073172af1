"""``selfspec profile``: what is measured, in which order, and how far a time budget goes.

Measurements are units with names, JSON-ready, in sections; each is kept as soon as it is there, so a run may end at
any moment and be taken up again with what it has. `selfspec.measure.profile_report` says what they mean.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from selfspec.errors import OptionError
from selfspec.measure.agreement import measure_agreement
from selfspec.measure.bench import require_fit, require_tokenizer
from selfspec.measure.ours import BASELINE, DrafterColumn
from selfspec.measure.passes import fill, measure_ceiling, pass_seconds
from selfspec.measure.profile_report import ProfileReport, point_name
from selfspec.measure.round_costs import Probe, grid_exits, grid_gammas
from selfspec.measure.settings import ProfileOptions
from selfspec.measure.tasks import choose, encode_turns, read_prompts
from selfspec.measure.timing import Ask, Stopwatch
from selfspec.types import LayerPlan, Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from selfspec.engine import Engine
    from selfspec.measure.settings import Workload
    from selfspec.measure.tasks import Prompt
    from selfspec.runtime.base import Cache

    Work: TypeAlias = Mapping[str, Callable[[], Any]]

REPETITIONS = 15  # of passes and rounds
_DIGITS = 6  # of what is kept per token
# of the time that is left when a section begins
_SHARES = {"machine": 0.0, "passes": 0.15, "answers": 0.35, "rounds": 0.5, "checks": 1.0}


@dataclass(frozen=True)
class Question:
    """The first turn of a prompt, as token ids."""

    name: str
    prompt: tuple[int, ...]


def questions_of(engine: Engine, prompts: Sequence[Prompt], options: Workload) -> list[Question]:
    """Those that fit into the context, the first ones of every task before the second ones.

    Raises OptionError if there is none, or the engine has no tokenizer.
    """
    require_fit(engine, prompts, options)
    tokenizer, seen = require_tokenizer(engine), dict[str, int]()
    found: list[tuple[int, Question]] = []
    for number, prompt in enumerate(prompts, start=1):
        tokens = encode_turns(tokenizer, [{"role": "user", "content": prompt.turns[0]}])
        if len(tokens) + options.max_new_tokens <= engine.config.context_length:
            seen[prompt.task] = seen.get(prompt.task, 0) + 1
            found.append((seen[prompt.task], Question(f"{number} {prompt.task} {prompt.id}", tokens)))
    return [question for _, question in sorted(found, key=lambda pair: pair[0])]


@dataclass
class Section:
    """Some units, and how each is measured; ``done`` are those that were, and grows."""

    name: str
    work: Work
    done: dict[str, Any]
    ends: float
    clock: Callable[[], float]

    @property
    def missing(self) -> list[str]:
        """The units that are not there, in order."""
        return [name for name in self.work if name not in self.done]

    @property
    def num_done(self) -> int:
        """How many are."""
        return len(self.work) - len(self.missing)

    def run(self) -> Iterator[str]:
        """Measure what is missing while there is time, one unit in any case; gives the name of each, once done."""
        longest = 0.0
        for name in self.missing:
            started = self.clock()
            if self.num_done and started + longest > self.ends:
                return
            self.done[name] = self.work[name]()
            longest = max(longest, self.clock() - started)
            yield name


class Profile:
    """The measurements of one engine.

    Parameters
    ----------
    questions
        At least one.
    units
        What an earlier run has measured, by section and name; it grows.
    clock
        The one clock of everything that is timed here; the ceilings of the machine have their own.

    Raises OptionError for points or lengths that the model cannot have.
    """

    def __init__(
        self,
        engine: Engine,
        questions: Sequence[Question],
        options: ProfileOptions,
        units: dict[str, dict[str, Any]],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        _require_fit(engine, options)
        self.units = units
        self._engine, self._questions, self._options, self._clock = engine, questions, options, clock
        self._sections: list[Section] = []
        self._caches: dict[int, Cache] = {}  # of the passes, by context
        self._exits = range(1, engine.config.num_layers)

    def sections(self) -> Iterator[Section]:
        """To be run one after the other: the last one depends on what the others have found."""
        ends = self._clock() + self._options.budget_seconds
        plans: dict[str, Callable[[], Work]] = {
            "machine": lambda: {"ceiling": self._ceiling},
            "passes": self._passes,
            "answers": self._answers,
            "rounds": self._rounds,
            "checks": self._checks,
        }
        for name, plan in plans.items():
            work, now = plan(), self._clock()
            done = self.units.setdefault(name, {})
            self._sections.append(Section(name, work, done, now + (ends - now) * _SHARES[name], self._clock))
            yield self._sections[-1]
            self._caches.clear()

    def report(self) -> ProfileReport:
        """What the units say so far."""
        return ProfileReport(self._engine.runtime, self._options, self.units)

    @property
    def left_out(self) -> dict[str, str]:
        """By section, what the context or the budget did not allow; by temperature, why there is no prediction."""
        found = {}
        run = contexts_of(self._engine, self._options)
        if beyond := [f"{length}" for length in self._options.context_lengths if length not in run]:
            found["contexts"] = f"{', '.join(beyond)}: beyond the model's context"
        for section in self._sections:
            if section.missing:
                found[section.name] = f"{section.num_done} of {len(section.work)} within the budget"
        report = self.report()
        for name in (f"{temperature:g}" for temperature in self._options.temperatures):
            if name not in report.forecasts:
                why = "no answer has a second token" if name in report.costs else "no round was timed"
                found[f"temperature {name}"] = f"no prediction: {why}"
        return found

    # -- sections: the name of each unit, and what measures it -------------------------------------------------

    def _ceiling(self) -> dict[str, float] | None:
        found = measure_ceiling(self._engine.runtime)
        return found.to_dict() if found else None

    def _passes(self) -> Work:
        return {
            f"{context} {repetition}": partial(self._pass_times, context)
            for repetition in range(REPETITIONS)
            for context in contexts_of(self._engine, self._options)
        }

    def _pass_times(self, context: int) -> list[float]:
        """Seconds of passes of 1, 2, ..., γ + 1 rows."""
        runtime, most = self._engine.runtime, self._options.gamma + 1
        if context not in self._caches:
            self._caches[context] = runtime.new_cache(1, context + most)
            fill(runtime, self._caches[context], [0] * context)
        cache = self._caches[context]
        return [pass_seconds(runtime, rows, context, 1, self._clock, cache) for rows in range(1, most + 1)]

    def _answers(self) -> Work:
        return {
            f"{temperature:g} {question.name}": partial(self._answer, question, temperature)
            for question in self._questions
            for temperature in self._options.temperatures
        }

    def _answer(self, question: Question, temperature: float) -> dict[str, Any]:
        """The target's own answer, and how the exits agree with it."""
        done = self._engine.generate(
            question.prompt,
            draft=BASELINE,
            temperature=temperature,
            seed=self._options.seed,
            max_new_tokens=self._options.max_new_tokens,
            ignore_eos=self._options.ignore_eos,
        )
        sampling = Sampling(temperature=temperature)
        found = measure_agreement(self._engine.runtime, question.prompt, done.token_ids, self._exits, sampling)
        drafted = found.overlaps[:, 1:]  # no draft proposes the first token
        return {
            "has_ended": done.finish_reason == "stop",
            "ratios": np.round(found.ratios, _DIGITS).tolist(),
            "overlaps": np.round(drafted.mean(axis=1), _DIGITS).tolist() if drafted.size else None,
        }

    def _rounds(self) -> Work:
        return {
            f"{temperature:g} {repetition}": partial(self._round_times, repetition, temperature)
            for repetition in range(REPETITIONS)
            for temperature in self._options.temperatures
        }

    def _round_times(self, repetition: int, temperature: float) -> dict[str, Any]:
        prompt = self._questions[repetition % len(self._questions)].prompt
        probe = Probe(self._engine, prompt, self._options.gamma, temperature, self._clock)
        exits, gammas = grid_exits(self._engine.config.num_layers), grid_gammas(self._options.gamma)
        return probe.grid(exits, gammas, backwards=repetition % 2 == 1)

    def _checks(self) -> Work:
        """Pairs of plain decoding and a point, on the questions whose answers are known, in turn."""
        options = self._options
        forecast = self.report().forecasts.get(f"{options.temperatures[0]:g}")
        if forecast is None:
            return {}
        points = list(dict.fromkeys([*options.points_asked, *forecast.best(options.check)]))
        known = [question for question in self._questions if question.name in forecast.questions]
        matches = {point_name(*point): Match(self._engine, *point, options, self._clock) for point in points}
        return {
            f"{name} {pair}": partial(match.measure, known[pair % len(known)], backwards=pair % 2 == 1)
            for pair in range(options.pairs)
            for name, match in matches.items()
        }


class Match:
    """Plain decoding and one point answer the same questions, one right after the other."""

    def __init__(
        self, engine: Engine, exit_layer: int, gamma: int, options: ProfileOptions, clock: Callable[[], float]
    ) -> None:
        own = {"exit_layer": exit_layer, "gamma": gamma}
        self._columns = [
            DrafterColumn(engine, BASELINE, BASELINE, {}),
            DrafterColumn(engine, "draft", "early_exit", own),
        ]
        self._options, self._clock, self._is_warm = options, clock, False

    def measure(self, question: Question, backwards: bool) -> dict[str, Any]:
        """Seconds per token after the first of both, and whether they said the same; ``backwards``: plain last."""
        options = self._options
        how = (options.temperatures[0], options.seed, options.ignore_eos)
        watch = Stopwatch(self._columns[::-1] if backwards else self._columns, self._clock)
        if not self._is_warm:
            watch.warm_up(Ask(question.prompt, 2, *how))
            self._is_warm = True
        ask = Ask(question.prompt, options.max_new_tokens, *how)
        runs = {column.name: run for column, run in watch.round(ask)}
        plain, draft = runs[BASELINE], runs["draft"]
        return {
            "question": question.name,
            "tpot_seconds": [plain.tpot_seconds, draft.tpot_seconds],
            "is_equal": plain.answer.tokens == draft.answer.tokens,
        }


def profile(engine: Engine, **options: Any) -> ProfileReport:
    """Measure ``engine`` as ``selfspec profile`` does; ``options`` are those of `ProfileOptions`.

    Raises as `ProfileOptions`, `read_prompts` and `Profile`.
    """
    asked = ProfileOptions(**options)
    prompts = choose(read_prompts(asked.data), asked.task_names, asked.limit)
    made = Profile(engine, questions_of(engine, prompts, asked), asked, {})
    for section in made.sections():
        for _ in section.run():
            pass
    return made.report()


def contexts_of(engine: Engine, options: ProfileOptions) -> list[int]:
    """The contexts that were asked for and leave room for the longest pass."""
    most = engine.config.context_length - options.gamma - 1
    return [length for length in options.context_lengths if length <= most]


def _require_fit(engine: Engine, options: ProfileOptions) -> None:
    """Refuse what this model cannot have, before anything is measured."""
    config, needed = engine.config, Probe.tokens_needed(options.gamma)
    if config.num_layers < 2:
        raise OptionError("this model has one layer; an early exit needs at least two")
    for exit_layer, _ in options.points_asked:
        LayerPlan.exit_at(config.num_layers, exit_layer)
    if needed >= config.context_length:
        raise OptionError(
            f"gamma is {options.gamma}: timing its rounds takes {needed} tokens, and this model's context is "
            f"{config.context_length}; give a smaller gamma"
        )
    if not contexts_of(engine, options):
        raise OptionError(
            f"contexts is {options.contexts!r}; this model's context of {config.context_length} leaves room for "
            f"passes after at most {config.context_length - options.gamma - 1} tokens"
        )
