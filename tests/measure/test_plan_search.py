"""The search for a skip set: what a plan is worth, and whether the search finds the best one."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest
from doubles import run, tiny_core, tiny_runtime

from selfspec.drafters.layer_skip import plan_without, skip_of
from selfspec.engine import Engine
from selfspec.errors import OptionError
from selfspec.measure import plan_search
from selfspec.measure.plan_search import Course, PlanSearch, measure_costs
from selfspec.measure.profile import Question
from selfspec.measure.settings import SearchOptions
from selfspec.types import LayerPlan, Sampling

LAYERS = 8
QUESTIONS = [Question("1", (5, 17, 3, 3, 42)), Question("2", (9, 2))]
COSTS = {"attention": 1.0, "mlp": 2.0, "rest": 4.0, "v": [1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4]}
# layers 2 and 5 do next to nothing, and neither do three sub-layers
SHARES = {"attention 2": 0.01, "mlp 2": 0.01, "attention 5": 0.02, "mlp 5": 0.01, "attention 3": 0.05}


def engine(**changes):
    return Engine(tiny_runtime(num_layers=LAYERS, idle=SHARES, **changes), None, "tiny", draft="plain")


def searched(made, units=None, **options):
    units = {} if units is None else units
    units.setdefault("costs", dict(COSTS))
    asked = SearchOptions(**{"gamma": 6, "max_new_tokens": 14, "trials": 60, **options})
    search = PlanSearch(made, QUESTIONS, asked, units)
    list(search.prepare())
    return search


def tried(search):
    for _, plans in search.sources().values():
        for plan in plans:
            search.worth(plan)
    return search.best()[0]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_acceptance_rate_of_a_plan_is_that_of_its_first_draft_token(temperature):
    """Guards α: the plan at every place of the answer, over the target's own keys and values."""
    made = engine()
    sampling = Sampling(temperature)
    (text,) = run(made.runtime, [QUESTIONS[0].prompt], new_tokens=9, sampling=sampling)
    answer = text.tokens[5:]
    plan = LayerPlan.skipping(LAYERS, attention=[1, 3], mlp=[6])
    got = Course(made, QUESTIONS[0].prompt, answer, sampling).acceptance(plan)
    assert len(got) == len(answer) - 1
    accepted = []
    for place in range(1, len(answer)):
        laws = []
        for steps in (plan, LayerPlan.full(LAYERS)):
            (logits,) = _logits(made.runtime, text.tokens[: 5 + place], steps)
            masses = np.exp((logits - logits.max()) / temperature) if temperature else logits == logits.max()
            laws.append(masses / masses.sum())
        accepted.append(float(np.minimum(*laws).sum()))
    assert got == pytest.approx(accepted, abs=1e-9)


def _logits(runtime, tokens, plan):
    from selfspec.context import Context
    from selfspec.types import Rows

    context = Context(runtime, runtime.new_cache(1, len(tokens)))
    context.write(0, tokens[:-1])
    row = Rows.of([0], [len(tokens) - 1])
    return np.asarray(runtime.logits(runtime.run(runtime.embed(tokens[-1:]), plan, row, context.cache)[0]))


def test_the_search_is_near_the_best_of_all_sets_of_layers():
    """Guards the search against the truth: within 5 % of the best, by modelled time per token."""
    search = searched(engine())
    every = chain.from_iterable(combinations(range(LAYERS), count) for count in range(1, LAYERS))
    truth = searched(engine())
    best = max(truth.worth(LayerPlan.skipping(LAYERS, out, out)).speedup for out in every)
    found = tried(search)
    assert best > 1.05
    assert found.speedup >= 0.95 * best
    assert {2, 5} <= set(range(LAYERS)) - set(plan_without(found.skip, LAYERS).mlp)


@pytest.mark.parametrize("source", ["ranked", "knapsack", "neighbours", "bayesian"])
def test_every_source_alone_beats_a_plan_at_random(source):
    """Guards each source: none may live on what the others have found."""
    search = searched(engine())
    _, plans = search.sources()[source]
    worths = [search.worth(plan).speedup for plan in plans]
    assert len(worths) <= 15
    random = np.random.default_rng(0)
    blind = searched(engine())
    masks = random.random((15, 2, LAYERS)) < 0.3
    drawn = [
        blind.worth(LayerPlan.skipping(LAYERS, np.flatnonzero(a).tolist(), np.flatnonzero(m).tolist())).speedup
        for a, m in masks
        if a.any() or m.any()
    ]
    assert max(worths) > np.median(drawn)


def test_a_later_run_goes_on_with_what_was_tried(monkeypatch):
    """Guards the file of a search: nothing is tried twice, and a later run starts from the best so far."""
    units, asked = {}, []
    acceptance = Course.acceptance

    def counted(self, plan):
        asked.append(skip_of(plan))
        return acceptance(self, plan)

    monkeypatch.setattr(Course, "acceptance", counted)
    first = tried(searched(engine(), units, trials=24))
    again = tried(searched(engine(), units, trials=24))
    assert again.speedup >= first.speedup
    per_plan = len(QUESTIONS)
    assert len(asked) == len(set(asked)) * per_plan == len(units["plans"]) * per_plan


def test_costs_are_those_of_passes_and_add_up():
    """Guards c: sub-layers and the rest make a whole pass of the model's own layers."""
    made = Engine(tiny_core("int8"), None, "tiny", draft="plain")
    costs = plan_search.Costs(**measure_costs(made, 16, 4, clock=_ticking()))
    full = LayerPlan.full(5)
    assert costs.step(full) == pytest.approx(costs.rest + 5 * (costs.attention + costs.mlp))
    assert costs.step(LayerPlan.skipping(5, mlp=[1])) == pytest.approx(costs.step(full) - costs.mlp)
    assert len(costs.v) == 5
    assert costs.shared(LayerPlan.skipping(5, mlp=[3])) == pytest.approx(3 * (costs.attention + costs.mlp))


def _ticking():
    now = iter(np.cumsum(np.random.default_rng(0).uniform(1.0, 1.1, 10_000)))
    return lambda: float(next(now))


def test_without_optuna_it_says_what_to_install(monkeypatch):
    """Guards the extra: one line, and only where it is needed."""
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    search = searched(engine(), trials=4)
    with pytest.raises(OptionError, match="pip install 'selfspec\\[search\\]'"):
        tried(search)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": "0,1"}, "temperature is '0,1'; a search needs one"),
        ({"trials": 3}, "trials is 3"),
        ({"gamma": 0}, "gamma is 0"),
        ({"finalists": -1}, "finalists is -1"),
    ],
)
def test_wrong_options_are_one_line(options, words):
    """Guards the user's mistake."""
    with pytest.raises(OptionError, match=words):
        searched(engine(), **options)
