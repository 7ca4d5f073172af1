"""Dynamic programming over skip sets, and the clasp drafter that searches as it writes."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from doubles import run, tiny_core, tiny_runtime

from selfspec.context import Context, Text
from selfspec.drafters.clasp import Clasp, ClaspOptions
from selfspec.drafters.skip_search import candidates, fastest, layers_of, part_costs, sub_layers_of
from selfspec.errors import OptionError
from selfspec.sampling import Chance
from selfspec.types import Draft, LayerPlan, Rows, Sampling

PROMPT = [5, 17, 3, 3, 42, 8, 1, 30]


def opened(runtime, tokens=PROMPT, room=40):
    """A text whose last token is pending."""
    context = Context(runtime, runtime.new_cache(1, len(tokens) + room))
    text = Text(0, 0, tokens[:-1], len(tokens) + room, Sampling(), Chance(0), lambda _: False)
    context.prefill(text)
    text.tokens.append(tokens[-1])
    text.cached = len(tokens) - 1
    return context, text


def full_states(runtime, plan, tokens, position):
    """The state [1, d] at a position where ``plan`` runs there, and all layers before it."""
    context = Context(runtime, runtime.new_cache(1, len(tokens)))
    context.write(0, tokens[:position])
    row = Rows.of([0], [position])
    return runtime.run(runtime.embed([tokens[position]], row.positions), plan, row, context.cache)[0]


def cosine(a, b):
    a, b = np.asarray(a).ravel(), np.asarray(b).ravel()
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


@pytest.mark.parametrize("make", [tiny_runtime, lambda: tiny_core("int8")], ids=["torch", "cpu"])
def test_rows_aside_compute_what_the_place_of_their_token_would(make):
    """Guards `Context.replay`: every position with the cells before it, in several passes, and no trace left."""
    runtime = make()
    context, text = opened(runtime, room=3)
    plan = LayerPlan.skipping(5, attention=[2], mlp=[1])
    positions = np.asarray([7, 3, 5, 5, 1, 6])
    hidden = runtime.embed([PROMPT[p] for p in positions], positions)
    got, _ = context.replay(plan, text, hidden, positions)
    for row, position in zip(np.asarray(got), positions, strict=True):
        want = np.asarray(full_states(runtime, plan, PROMPT, position))[0]
        assert np.abs(row - want).max() <= (1e-12 if runtime.name == "torch" else 0.0)
    fresh, other = opened(make())
    after, untouched = context.score([text], [Draft()]), fresh.score([other], [Draft()])
    assert np.array_equal(np.asarray(after[0]), np.asarray(untouched[0]))


@pytest.mark.parametrize("idle", [(1, 4, 6), (2, 3, 4), (5, 6, 7), (0, 1, 2)])
def test_layers_that_change_nothing_are_found(idle):
    """Guards the dynamic program where it is exact: leaving out what adds nothing is best, by brute force."""
    names = [f"{part} {layer}" for layer in idle for part in ("attention", "mlp")]
    runtime = tiny_runtime(num_layers=8, idle=names)
    context, text = opened(runtime)
    found = candidates(context, text, np.asarray([7]), layers_of(8), most=3)
    assert [c.weight for c in found] == [0, 1, 2, 3]
    kept = tuple(i for i in range(8) if i not in idle)
    assert found[3].plan == LayerPlan(8, kept, kept)
    target = full_states(runtime, LayerPlan.full(8), PROMPT, 7)
    brute = {
        out: cosine(full_states(runtime, LayerPlan.skipping(8, out, out), PROMPT, 7), target)
        for out in combinations(range(8), 3)
    }
    assert max(brute, key=brute.__getitem__) == idle
    assert found[3].cosine == pytest.approx(1.0, abs=1e-12)


def test_what_is_claimed_of_a_plan_is_true_of_it():
    """Guards the back-pointers: the states and cosines of each candidate are those of its plan, run on its own."""
    runtime = tiny_runtime(num_layers=8)
    context, text = opened(runtime)
    positions = np.asarray([4, 6, 7])
    target = [full_states(runtime, LayerPlan.full(8), PROMPT, p) for p in positions]
    for units, most in ((layers_of(8), 4), (sub_layers_of(runtime.config, 8), 9)):
        found = candidates(context, text, positions, units, most)
        assert len(found) == most + 1
        for candidate in found:
            states = [full_states(runtime, candidate.plan, PROMPT, p) for p in positions]
            got = np.asarray(candidate.states)
            assert np.abs(got - np.concatenate([np.asarray(s) for s in states])).max() < 1e-10
            mean = np.mean([cosine(s, t) for s, t in zip(states, target, strict=True)])
            assert candidate.cosine == pytest.approx(mean, abs=1e-9)


def test_one_layer_out_is_near_the_best():
    """Guards against a program that does not search: over random models it beats the mean choice by far."""
    shares = []
    for seed in range(3):
        runtime = tiny_runtime(seed, num_layers=8)
        context, text = opened(runtime)
        found = candidates(context, text, np.asarray([7]), layers_of(8), most=2)[2]
        target = full_states(runtime, LayerPlan.full(8), PROMPT, 7)
        all_pairs = sorted(
            cosine(full_states(runtime, LayerPlan.skipping(8, out, out), PROMPT, 7), target)
            for out in combinations(range(8), 2)
        )
        shares.append(np.searchsorted(all_pairs, found.cosine - 1e-9) / len(all_pairs))
    assert np.mean(shares) > 0.85


def test_states_that_went_astray_are_given_up():
    """Guards the pruning of KnapSpec: nothing below the least cosine comes back, the full model always."""
    context, text = opened(tiny_runtime(num_layers=8))
    every = candidates(context, text, np.asarray([6, 7]), layers_of(8), most=6)
    least = sorted(c.cosine for c in every)[3]
    some = candidates(context, text, np.asarray([6, 7]), layers_of(8), most=6, least_cosine=least)
    assert all(c.cosine >= least for c in some[1:])
    assert some[0].plan == LayerPlan.full(8)
    assert len(some) < len(every)


def test_the_fastest_is_the_one_that_skips_what_is_idle():
    """Guards the knapsack objective: α, c and γ together; heavier sub-layers save more."""
    idle = ["attention 2", "mlp 3", "mlp 5"]
    runtime = tiny_runtime(num_layers=8, idle=idle)
    context, text = opened(runtime)
    found = candidates(context, text, np.arange(1, 8), sub_layers_of(runtime.config, 8), most=12)
    choice = fastest(context, found, 8, most_gamma=6)
    out = {f"attention {i}" for i in range(8) if i not in choice.plan.attention}
    out |= {f"mlp {i}" for i in range(8) if i not in choice.plan.mlp}
    assert set(idle) <= out
    assert choice.gamma > 0
    assert choice.speedup > 1.0


def test_attention_costs_more_beside_a_long_text():
    """Guards the weights of the items."""
    config = tiny_runtime(num_layers=4).config
    short, long = part_costs(config, 0), part_costs(config, 10_000)
    assert short["attention"] == 2 * 32 * (32 + 16)
    assert short["mlp"] == pytest.approx(3 * 32 * 48, abs=100)
    assert long["attention"] == short["attention"] + 2 * 10_000 * 16
    assert {unit.weight for unit in sub_layers_of(config, 10_000) if unit.steps[0].part == "attention"} == {5}
    assert {unit.steps[0].layer for unit in sub_layers_of(config, 0)} == {1, 2}


def test_clasp_searches_again_after_its_interval_and_for_each_text():
    """Guards the seam: one search for each text, then one every `interval` rounds, counted as drafting."""
    runtime = tiny_runtime()
    searched = []

    class Watched(Clasp):
        def _search(self, context, text):
            searched.append((text.index, len(text.tokens)))
            return super()._search(context, text)

    drafter = Watched(ClaspOptions(skips=1, interval=4, gamma=1, confidence=0.0), runtime.config)
    costs = []
    run(
        runtime,
        [PROMPT, [9, 2]],
        drafter,
        new_tokens=16,
        each_round=lambda c, t, r: costs.append([commit.draft_row_layers for commit in r.commits]),
    )
    by_text = {index: [length for i, length in searched if i == index] for index in (0, 1)}
    assert all(len(lengths) >= 2 for lengths in by_text.values())
    # layer i runs once for each of at most two candidates, then a draft step of four layers
    assert all(cost == 5 + 4 + 4 for cost in costs[1])
    assert costs[2] == [4.0, 4.0]
    assert drafter._states == {}


@pytest.mark.parametrize("coupled", [False, True])
def test_the_knapsack_drafts_where_it_pays_and_changes_nothing(coupled, monkeypatch):
    """Guards the objective in the loop: with idle sub-layers it drafts; v(T) is the prior's, not this machine's."""
    runtime = tiny_runtime(num_layers=8, idle=["attention 2", "mlp 3", "mlp 5", "mlp 6"])
    monkeypatch.setattr(runtime.costs, "observe", lambda *_, **__: None)
    sampling = Sampling(0.9 if coupled else 0.0, coupled=coupled)
    prompts, accepted = [PROMPT, [9, 2]], []
    want = run(runtime, prompts, new_tokens=14, sampling=sampling)
    got = run(
        runtime,
        prompts,
        "clasp",
        {"knapsack": True, "interval": 5, "gamma": 3, "confidence": 0.0},
        new_tokens=14,
        sampling=sampling,
        each_round=lambda c, t, r: accepted.extend(commit.accepted for commit in r.commits),
    )
    assert [text.tokens for text in got] == [text.tokens for text in want]
    assert sum(accepted) > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"skips": 0}, "skips is 0; it must be at least 1"),
        ({"skips": 5}, "would skip 5 of 5 layers"),
        ({"interval": 0}, "interval is 0"),
        ({"skips": 1, "knapsack": True}, "leave out skips"),
        ({"references": 65}, "references is 65"),
    ],
)
def test_wrong_options_are_one_line(options, words):
    """Guards the user's mistake."""
    with pytest.raises(OptionError, match=words):
        Clasp(ClaspOptions(**options), tiny_runtime().config)
