"""Which sub-layers a draft should leave out: many plans tried on the target's own answers, by time per token.

A plan is worth what the cost model says of its acceptance rate and its cost. The acceptance rate is exact for the
first token of a draft: at every place of the answers a draft row runs aside, over the target's keys and values
(`Context.replay`). Costs are those of this machine. The best plans can then be measured against plain decoding.

Proposals come from four sources, each cheaper per plan than blind trials: sub-layers ranked by how little they turn
the hidden state (as in Draft on the fly, arXiv 2410.01028), KnapSpec's dynamic program (arXiv 2602.20217), steps
from the best plan to its neighbours, and a Bayesian optimiser as in Draft & Verify (arXiv 2309.08168).
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from selfspec.context import Context, Text
from selfspec.control import best_gamma, speedup
from selfspec.drafters.layer_skip import plan_without, skip_of
from selfspec.drafters.proposals import load_optuna
from selfspec.drafters.skip_search import candidates, cosines, sub_layers_of
from selfspec.errors import OptionError
from selfspec.measure.ours import BASELINE, DrafterColumn
from selfspec.measure.pairs import paired_ratio
from selfspec.measure.passes import fill, pass_seconds
from selfspec.measure.timing import Ask, Stopwatch
from selfspec.sampling import Chance, distribution
from selfspec.types import LayerPlan, Prefix, Rows, Sampling, SubLayer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from selfspec.engine import Engine
    from selfspec.measure.profile import Question
    from selfspec.measure.settings import SearchOptions
    from selfspec.runtime.base import Cache, Runtime
    from selfspec.types import Array, Distribution

_ROWS = 64  # of one pass with logits
_REFERENCES = 8  # of a dynamic program
_REPEATS = 7


class Worth(NamedTuple):
    """A plan and what it promises: acceptance rate, cost of a draft step, best draft length, speedup."""

    skip: str
    alpha: float
    c: float
    gamma: int
    speedup: float


@dataclass(frozen=True)
class Costs:
    """Seconds of one-row passes, and v(1), v(2), ...: what a plan costs here."""

    attention: float
    mlp: float
    rest: float
    v: tuple[float, ...]

    def step(self, plan: LayerPlan) -> float:
        """Seconds of a draft step."""
        return len(plan.attention) * self.attention + len(plan.mlp) * self.mlp + self.rest

    def shared(self, plan: LayerPlan) -> float:
        """Seconds of the layers that verification does not repeat."""
        return plan.shared_prefix * (self.attention + self.mlp)


def measure_costs(engine: Engine, context: int, gamma: int, clock: Callable[[], float]) -> dict[str, Any]:
    """The fields of `Costs`, after ``context`` tokens."""
    runtime = engine.runtime
    cache = runtime.new_cache(1, context + gamma + 1)
    fill(runtime, cache, [0] * context)
    layers = runtime.config.num_layers
    every = tuple(range(layers))
    plans = {
        "attention": LayerPlan(layers, every, ()),
        "mlp": LayerPlan(layers, (), every),
        "rest": LayerPlan(layers, (), ()),
    }
    times = [pass_seconds(runtime, rows, context, _REPEATS, clock, cache) for rows in range(1, gamma + 2)]
    alone = {name: _row_seconds(runtime, plan, cache, clock) for name, plan in plans.items()}
    none = alone.pop("rest")
    # what the parts do not add up to is shared among them
    parts = {name: max(seconds - none, 1e-9) for name, seconds in alone.items()}
    scale = max(times[0] - none, 1e-9) / sum(parts.values())
    own = {name: seconds * scale / layers for name, seconds in parts.items()}
    return {**own, "rest": none, "v": [max(seconds / times[0], 1.0) for seconds in times]}


def _row_seconds(runtime: Runtime, plan: LayerPlan, cache: Cache, clock: Callable[[], float]) -> float:
    """Seconds of one row of a draft step: embedding, the plan, head; after what fills the cache."""
    row, times = Rows.of([0], [cache.length - 1]), []
    for _ in range(_REPEATS + 1):
        started = clock()
        logits = runtime.logits(runtime.run(runtime.embed([0], row.positions), plan, row, cache)[0])
        float(logits[0][0])  # a GPU has not finished before its result is read
        times.append(clock() - started)
    return statistics.median(times[1:])


class Course:
    """One of the target's own answers, and drafts that run aside along it."""

    def __init__(self, engine: Engine, prompt: Sequence[int], answer: Sequence[int], sampling: Sampling) -> None:
        runtime, tokens = engine.runtime, [*prompt, *answer]
        self._context = Context(runtime, runtime.new_cache(1, len(tokens) + _ROWS))
        self.text = Text(0, 0, tokens, len(tokens) + _ROWS, sampling, Chance(0), lambda _: False)
        self._context.write(0, tokens[:-1])
        # no draft proposes the first token of an answer; the last token says nothing of what follows
        self.positions = np.arange(max(len(prompt), 1), len(tokens) - 1)
        self._prompt, self._sampling = len(prompt), sampling
        self._target = [law for laws, _ in self._laws(self._context.full) for law in laws]

    def acceptance(self, plan: LayerPlan) -> NDArray[np.float64]:
        """1 - the total variation between draft and target, at every place: how often a draft token is accepted."""
        found: list[float] = []
        for laws, start in self._laws(plan):
            target = self._target[start : start + len(laws)]
            found += [1.0 - p.excess(q, 1.0) for p, q in zip(target, laws, strict=True)]
        return np.asarray(found)

    def turns(self) -> dict[SubLayer, float]:
        """Mean cosine between what enters and what leaves each sub-layer."""
        full = self._context.full
        hidden = self._embedded(self.positions)
        _, tapped = self._context.replay(full, self.text, hidden, self.positions, full.steps)
        states = [hidden, *(tapped[step] for step in full.steps)]
        return {step: cosines(states[i], states[i + 1]) for i, step in enumerate(full.steps)}

    def knapsack(self) -> list[LayerPlan]:
        """KnapSpec's plans for the latest tokens of the answer, by rising weight."""
        length = len(self.text.tokens)
        units = sub_layers_of(self._context.runtime.config, length)
        most = sum(unit.weight for unit in units) // 2
        positions = self.positions[-_REFERENCES:]
        return [found.plan for found in candidates(self._context, self.text, positions, units, most)[1:]]

    def _embedded(self, positions: Any) -> Array:
        return self._context.runtime.embed([self.text.tokens[p] for p in positions.tolist()], positions)

    def _laws(self, plan: LayerPlan) -> Iterator[tuple[list[Distribution], int]]:
        """Laws at the next places, and the number of the first."""
        for start in range(0, len(self.positions), _ROWS):
            at = self.positions[start : start + _ROWS]
            hidden, _ = self._context.replay(plan, self.text, self._embedded(at), at)
            logits = self._context.runtime.logits(hidden)
            prefixes = (Prefix(self.text.tokens[: p + 1], self._prompt) for p in at.tolist())
            yield [distribution(row, self._sampling, pre) for row, pre in zip(logits, prefixes, strict=True)], start


def measured(
    engine: Engine, worth: Worth, questions: Sequence[Question], options: SearchOptions
) -> dict[str, Any] | None:
    """Tokens per second after the first one of a plan ÷ those of plain decoding, as a `Ratio`'s fields."""
    columns = [
        DrafterColumn(engine, BASELINE, BASELINE, {}),
        DrafterColumn(engine, "draft", "layer_skip", {"skip": worth.skip, "gamma": worth.gamma}),
    ]
    how = (options.temperatures[0], options.seed, options.ignore_eos)
    watch = Stopwatch(columns)
    watch.warm_up(Ask(questions[0].prompt, 2, *how))
    pairs: list[tuple[float, float]] = []
    for pair in range(options.pairs):
        ask = Ask(questions[pair % len(questions)].prompt, options.max_new_tokens, *how)
        runs = {column.name: run.tpot_seconds for column, run in watch.round(ask)}
        plain, draft = runs[BASELINE], runs["draft"]
        if plain and draft:  # an answer of one token says nothing
            pairs.append((draft, plain))
    return asdict(paired_ratio(pairs, options.seed)) if pairs else None


class PlanSearch:
    """Plans that were tried, by what they leave out; ``units`` are kept and may come from an earlier run."""

    def __init__(
        self,
        engine: Engine,
        questions: Sequence[Question],
        options: SearchOptions,
        units: dict[str, dict[str, Any]],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine, self.options, self._questions = engine, options, questions
        self._layers = engine.config.num_layers
        if self._layers < 2:
            raise OptionError("this model has one layer; a layer skip needs at least two")
        if len(options.temperatures) > 1:
            raise OptionError(f"temperature is {options.temperature!r}; a search needs one")
        self._tried: dict[str, float] = units.setdefault("plans", {})
        self._answers = units.setdefault("answers", {})
        self._units, self._clock = units, clock
        self._courses: list[Course] = []

    def prepare(self) -> Iterator[str]:
        """Measure the costs, and make the answers; gives the name of each step, once done."""
        sampling = Sampling(temperature=self.options.temperatures[0])
        if "costs" not in self._units:
            longest = max(len(q.prompt) for q in self._questions) + self.options.max_new_tokens
            context = min(longest, self._engine.config.context_length - self.options.gamma - 1)
            self._units["costs"] = measure_costs(self._engine, max(context, 0), self.options.gamma, self._clock)
        yield "costs"
        for question in self._questions:
            if question.name not in self._answers:
                self._answers[question.name] = self._answer(question)
            if len(answer := self._answers[question.name]) > 2:
                self._courses.append(Course(self._engine, question.prompt, answer, sampling))
            yield question.name
        if not self._courses:
            raise OptionError("no answer has a third token; give prompts with longer answers")

    def _answer(self, question: Question) -> list[int]:
        done = self._engine.generate(
            question.prompt,
            draft="plain",
            temperature=self.options.temperatures[0],
            seed=self.options.seed,
            max_new_tokens=self.options.max_new_tokens,
            ignore_eos=self.options.ignore_eos,
        )
        return list(done.token_ids)

    @property
    def costs(self) -> Costs:
        """What was measured."""
        own = dict(self._units["costs"])
        return Costs(own["attention"], own["mlp"], own["rest"], tuple(own["v"]))

    def sources(self) -> Mapping[str, tuple[int, Iterator[LayerPlan]]]:
        """Where proposals come from: name -> how many at most, and the plans, each to be tried before the next."""
        trials = self.options.trials
        return {
            "ranked": (trials // 4, islice(self._ranked(), trials // 4)),
            "knapsack": (trials // 4, islice(self._knapsack(), trials // 4)),
            "neighbours": (trials // 4, islice(self._neighbours(), trials // 4)),
            "bayesian": (trials - 3 * (trials // 4), self._bayesian(trials - 3 * (trials // 4))),
        }

    def worth(self, plan: LayerPlan) -> Worth:
        """Try a plan, unless it was tried."""
        skip = skip_of(plan)
        if skip not in self._tried:
            places = np.concatenate([course.acceptance(plan) for course in self._courses])
            self._tried[skip] = round(float(places.mean()), 6)
        return self._priced(plan, self._tried[skip])

    @property
    def num_tried(self) -> int:
        """How many plans were tried."""
        return len(self._tried)

    def best(self, count: int = 1) -> list[Worth]:
        """The most promising of all plans that were tried, best first."""
        found = [self._priced(plan_without(skip, self._layers), alpha) for skip, alpha in self._tried.items()]
        return sorted(found, key=lambda worth: -worth.speedup)[:count]

    def _priced(self, plan: LayerPlan, alpha: float) -> Worth:
        costs = self.costs
        whole = costs.step(LayerPlan.full(self._layers))
        c, f = costs.step(plan) / whole, costs.shared(plan) / whole
        alpha = min(alpha, 1.0)
        # a draft that is not worth a token is priced at one token: so that better and worse can be told
        gamma = max(1, best_gamma(alpha, c, costs.v, f))
        return Worth(skip_of(plan), alpha, c, gamma, speedup(alpha, gamma, c, costs.v, f))

    # -- proposals --------------------------------------------------------------------------------------------

    def _ranked(self) -> Iterator[LayerPlan]:
        """Ever more of the sub-layers that turn the hidden state least."""
        turns = [course.turns() for course in self._courses[:4]]
        means = {step: float(np.mean([turn[step] for turn in turns])) for step in turns[0]}
        ranked = sorted(means, key=lambda step: -means[step])
        for count in range(1, len(ranked) * 2 // 3):
            yield LayerPlan.without(self._layers, ranked[:count])

    def _knapsack(self) -> Iterator[LayerPlan]:
        """The plans of each answer in turn, from light to heavy ones."""
        for plans in zip(*(course.knapsack() for course in self._courses[:4]), strict=False):
            yield from dict.fromkeys(plans)

    def _neighbours(self) -> Iterator[LayerPlan]:
        """One sub-layer more or fewer than the best plan, from the best one on again once it is beaten."""
        random = np.random.default_rng(self.options.seed)
        seen: set[str] = set(self._tried)
        full = LayerPlan.full(self._layers)
        while True:
            top = self.best()
            out = plan_without(top[0].skip, self._layers).left_out if top else ()
            moves = [full.steps[i] for i in random.permutation(len(full.steps)).tolist()]
            plans = [
                LayerPlan.without(self._layers, [s for s in out if s != m] if m in out else [*out, m])
                for m in moves
            ]
            fresh = [plan for plan in plans if self._is_draft(plan) and skip_of(plan) not in seen]
            if not fresh:
                return
            for plan in fresh:
                seen.add(skip_of(plan))
                yield plan
                if self.best() != top:
                    break

    def _bayesian(self, trials: int) -> Iterator[LayerPlan]:
        """What a tree-structured Parzen estimator asks for, which knows the best plan so far."""
        optuna = load_optuna()
        sampler = optuna.samplers.TPESampler(seed=self.options.seed, n_startup_trials=max(2, trials // 5))
        study = optuna.create_study(direction="maximize", sampler=sampler)
        full = LayerPlan.full(self._layers).steps
        for worth in self.best(5):
            out = plan_without(worth.skip, self._layers).left_out
            study.enqueue_trial({_name(step): int(step in out) for step in full})
        for _ in range(trials):
            trial = study.ask()
            chosen = [step for step in full if trial.suggest_int(_name(step), 0, 1)]
            plan = LayerPlan.without(self._layers, chosen)
            if not self._is_draft(plan):
                study.tell(trial, 0.0)
                continue
            yield plan
            study.tell(trial, self.worth(plan).speedup)

    def _is_draft(self, plan: LayerPlan) -> bool:
        return bool(plan.steps) and plan != LayerPlan.full(self._layers)


def _name(step: SubLayer) -> str:
    return f"{step.part} {step.layer}"
