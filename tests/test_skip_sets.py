"""Searches of skip sets against the exhaustive truth, on a small model that was trained to be redundant.

Which machine trains it changes the model a little, and the truth with it: what is asserted is the distance from the
best set of that model, never a certain set.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
import trained_decoder as trained
from doubles import Keeping
from filelock import FileLock
from skip_truth import (
    HEAD,
    INNER,
    NEW,
    OUTER,
    PROMPTS,
    SAMPLING,
    Truth,
    V,
    answers,
    opened,
    probabilities,
    rates,
    truth,
)

from selfspec.context import Context, Text
from selfspec.decode import decode
from selfspec.drafters.conflayers import ConfLayers, ConfLayersOptions
from selfspec.drafters.skip_search import candidates, cosines, layers_of
from selfspec.drafters.swift import Swift, SwiftOptions
from selfspec.engine import Engine
from selfspec.measure.plan_search import Course, PlanSearch
from selfspec.measure.profile import Question
from selfspec.measure.settings import SearchOptions
from selfspec.sampling import Chance
from selfspec.types import LayerPlan


@pytest.fixture(scope="session")
def redundant(tmp_path_factory):
    """The trained model and its truth: made once in a run of the tests, whoever asks first."""
    folder = tmp_path_factory.getbasetemp()
    if folder.name.startswith("popen-"):  # a worker's own; what is above is that of the run
        folder = folder.parent
    path = folder / "redundant.pt"
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            weights = trained.trained()[0]
            torch.save((weights, truth(trained.runtime(weights)).alphas), path)
    weights, alphas = torch.load(path, weights_only=False)
    return trained.runtime(weights), Truth(**alphas)


def write(runtime, drafter, seed, tokens=230):
    """A text of the model with a drafter; its rounds. The cache is longer than the text: windows fit to its end."""
    prompt = [seed % trained.VOCAB, (2 * seed + 1) % trained.VOCAB, 3]
    text = Text(0, 0, prompt, tokens, SAMPLING, Chance(seed, 0), lambda _: False)
    context = Context(runtime, runtime.new_cache(1, 2 * tokens))
    return list(decode(context, [text], drafter))


def test_the_truth_is_what_each_plan_gives_alone(redundant):
    """Guards the oracle: states of all sets at once, against one plan at a time with the outer layers run too."""
    runtime, known = redundant
    engine = Engine(runtime, None, "trained", draft="plain")
    random = np.random.default_rng(0)
    for _ in range(2):
        inner = [step for step in INNER if random.random() < 0.4]
        outer = [step for step in OUTER if random.random() < 0.5]
        plan = LayerPlan.without(trained.LAYERS, [*inner, *outer])
        found = []
        for tokens in answers(runtime):
            prompt, answer = tokens[: len(PROMPTS[0])], tokens[len(PROMPTS[0]) :]
            course = Course(engine, prompt, answer, SAMPLING)
            context, text = opened(runtime, tokens, len(prompt))
            at = np.arange(len(prompt), len(tokens) - 1)
            entered = runtime.embed([tokens[p] for p in at], at)
            target, draft = (
                probabilities(runtime, context.replay(p, text, entered, at)[0]) for p in (context.full, plan)
            )
            drawn, likeliest = rates(target, draft)
            assert course.acceptance(plan).mean() == pytest.approx(drawn, abs=1e-4)
            found.append((drawn, likeliest))
        for kind, value in zip(("drawn", "likeliest"), np.mean(found, axis=0), strict=True):
            assert known.worth(plan, kind).alpha == pytest.approx(value, abs=1e-4)


def test_the_model_is_redundant_and_not_everywhere(redundant):
    """Guards the tests below: there is much to leave out, and most sets are much worse than the best."""
    _, known = redundant
    of_size = known.of_size(5)
    assert of_size[0].alpha > 0.85
    assert known.best().speedup > 1.3
    assert of_size[len(of_size) // 2].speedup < 0.93 * of_size[0].speedup
    assert of_size[-1].alpha < 0.5


def test_search_plan_comes_within_five_percent_of_the_best_set(redundant):
    """Guards the proposals of `layer_skip`'s search: ranked, knapsack, neighbours, Bayesian, 160 of 65,535 sets."""
    runtime, known = redundant
    prompts = [Question(str(i), prompt) for i, prompt in enumerate(PROMPTS)]
    said = {str(i): tokens[len(PROMPTS[0]) :] for i, tokens in enumerate(answers(runtime))}
    units = {"costs": {"attention": 0.5, "mlp": 0.5, "rest": HEAD, "v": list(V)}, "answers": said}
    options = SearchOptions(gamma=len(V) - 1, max_new_tokens=NEW, temperature="1", trials=160)
    search = PlanSearch(Engine(runtime, None, "trained", draft="plain"), prompts, options, units)
    list(search.prepare())
    best = known.best().speedup
    for _, plans in search.sources().values():
        assert max(search.worth(plan).speedup for plan in plans) < best * 1.001  # nothing is above the truth
    assert search.best()[0].speedup > 0.95 * best


def test_swift_comes_within_five_percent_of_the_best_set_of_its_size(redundant):
    """Guards the search while writing, over several texts of one engine: what is known outlives a text."""
    runtime, known = redundant
    host, trials = Keeping(runtime), []
    for seed in range(3):
        drafter = Swift(
            SwiftOptions(window=100, enough=1.0, gamma=4, confidence=0.5, max_trials=130), runtime.config
        )
        drafter.bind(host)
        write(runtime, drafter, seed)
        (search,) = host.memory.values()
        trials.append(search.trials)
    assert 0 < trials[0] < trials[1] <= trials[2] <= 130
    assert trials[2] > 90
    size = len(drafter.plan.left_out)
    assert size == int(len(INNER) * 0.45)
    best = known.of_size(size, "likeliest")[0].speedup  # what it drafts are the likeliest tokens
    assert known.worth(drafter.plan, "likeliest").speedup > 0.95 * best


def test_clasp_is_brute_force_where_its_optimality_holds(redundant):
    """Guards the dynamic program: where each beginning of the best set is best for its layers, it finds that set.

    The outer layers add nothing, so which one or two to leave out is no question: three and four are asked for.
    """
    runtime, _ = redundant
    holds = 0
    for tokens in answers(runtime):
        for end in range(24, len(tokens), 6):
            context, text = opened(runtime, tokens[:end], len(PROMPTS[0]), room=256)
            by_layer = nearest_by_brute_force(context, text)
            found = candidates(context, text, np.asarray([end - 1]), layers_of(trained.LAYERS), most=4)
            for candidate in found[3:]:
                best, value = by_layer[trained.LAYERS, candidate.weight]
                begins = ((i, tuple(x for x in best if x < i)) for i in range(trained.LAYERS + 1))
                if all(by_layer[i, len(begin)][0] == begin for i, begin in begins):
                    holds += 1
                    assert candidate.cosine == pytest.approx(value, abs=1e-5)
    assert holds >= 10


def nearest_by_brute_force(context, text):
    """For i layers, of which j are left out: the set whose state is nearest to the full one, and its cosine."""
    at = np.asarray([len(text.tokens) - 1])
    states, found = {(): context.runtime.embed([text.tokens[-1]], at)}, {(0, 0): ((), 1.0)}
    for layer in range(trained.LAYERS):
        plan = context.full.span(layer, layer + 1)
        before = torch.cat(list(states.values()))
        after, _ = context.replay(plan, text, before, np.tile(at, len(before)))
        states |= {(*out, layer): state for out, state in states.items()} | {
            out: after[i : i + 1] for i, out in enumerate(states)
        }
        target = states[()]
        for count in range(layer + 2):
            ways = {out: cosines(states[out], target) for out in combinations(range(layer + 1), count)}
            # outer layers add nothing: of equal sets the first one
            best = max(ways, key=lambda out: (round(ways[out], 6), [-x for x in out]))
            found[layer + 1, count] = best, ways[best]
    return found


def test_conflayers_keeps_to_its_bounds_and_stays_with_its_best(redundant):
    """Guards the outer loop on a real model: sets within their bounds, judged by drafts; a budget ends it."""
    runtime, _ = redundant
    options = ConfLayersOptions(window=30, interval=4, max_trials=6, gamma=4, confidence=0.3)
    drafter, host = ConfLayers(options, runtime.config), Keeping(runtime)
    drafter.bind(host)
    write(runtime, drafter, 0)
    (search,) = host.memory.values()
    assert search.trials == 6
    assert not search.due()
    out = {step.layer for step in drafter.plan.left_out}
    assert out <= set(range(1, trained.LAYERS - 1))
    assert 0.4 <= len(out) / (trained.LAYERS - 2) <= 0.65 + 0.17  # one layer is a sixth: a step may lead past both
