"""Caches of layers with a window, and mixtures of experts: what is kept, and what is read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from family_models import WINDOW, model_of
from transformers import AutoModelForCausalLM

import selfspec
from selfspec.errors import OptionError
from selfspec.runtime.torch import TorchRuntime
from selfspec.runtime.torch_cache import TorchCache
from selfspec.stream import Memory
from selfspec.types import MOST_ROWS, LayerPlan, Rows

TOKENS = np.random.default_rng(1).integers(3, 101, 60).tolist()
FULL = LayerPlan.full(4)


def small_rings(case, most_rows=6):
    runtime = TorchRuntime.of(model_of(case))
    runtime.most_rows = most_rows
    return runtime


def logits(runtime, tokens, start, cache, plan=FULL):
    rows = Rows.of([0] * len(tokens), range(start, start + len(tokens)))
    return runtime.logits(runtime.run(runtime.embed(tokens, rows.positions), plan, rows, cache)[0])


# -- windows ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "sliding"), [("mistral", 4), ("cohere2", 3), ("gpt_oss", 2), ("olmo2", 0)])
def test_a_window_bounds_the_cache(case, sliding):
    """Guards memory: a layer with a window has at most window + rows of a pass, however long the text."""
    runtime, length = TorchRuntime.of(model_of(case)), 100_000
    cell = runtime.config.kv_values_per_token * 8 // 4  # of one layer
    cells = sliding * (WINDOW + MOST_ROWS) + (4 - sliding) * length
    assert runtime.new_cache(1, length).nbytes == cells * cell
    assert runtime.new_cache(2, 5).nbytes == 2 * 4 * 5 * cell


@pytest.mark.parametrize("case", ["mistral", "cohere2"])
@pytest.mark.parametrize("lengths", [[9, 14, 60], [13, 15, 40, 60], [20, 60]])
def test_a_cache_grows_before_and_after_it_has_come_round(case, lengths):
    """Guards `longer`: cells keep their places, whether the ring has its full size already or not."""
    runtime, start, got = small_rings(case), 0, []
    cache = runtime.new_cache(1, lengths[0])
    for length in lengths:
        cache = cache if length == cache.length else cache.longer(length)
        for stop in range(start + 1, length + 1):
            got.append(logits(runtime, TOKENS[start:stop], start, cache))
            start = stop
    with torch.no_grad():
        want = model_of(case)(torch.tensor([TOKENS])).logits[0].numpy()
    assert np.abs(np.concatenate(got) - want).max() < 1e-8


def after_another_turn(engine, kept):
    """The answer to a prompt that shares ``kept`` tokens with an earlier one, whose cache is kept."""
    memory = Memory()
    for prompt in (TOKENS[:50], [*TOKENS[:kept], 7, 8, 9]):
        stream = engine.stream(prompt, max_new_tokens=8, ignore_eos=True)
        stream.attach(memory, lambda _: None)
        found = list(stream.completion.token_ids)
    return found


@pytest.mark.parametrize("kept", [4, 20, 40, 49, 50])
def test_a_conversation_that_goes_back_further_than_a_window_starts_anew(kept):
    """Guards a chat whose earlier text changes: the ring has lost what that text would see."""
    engine = selfspec.load(model_of("mistral"))
    engine.runtime.most_rows = 6
    want = list(engine.generate([*TOKENS[:kept], 7, 8, 9], max_new_tokens=8, ignore_eos=True).token_ids)
    assert after_another_turn(engine, kept) == want


def test_going_back_without_asking_would_be_seen(monkeypatch):
    """The negative control of the test above."""
    engine = selfspec.load(model_of("mistral"))
    engine.runtime.most_rows = 6
    want = list(engine.generate([*TOKENS[:40], 7, 8, 9], max_new_tokens=8, ignore_eos=True).token_ids)
    monkeypatch.setattr(TorchCache, "rewinds", lambda *_: True)
    assert after_another_turn(engine, 40) != want


@pytest.mark.parametrize("case", ["mistral", "gpt_oss"])
def test_texts_that_follow_each_other_in_a_ring(case):
    """Guards slots that are used again: a short text must not see what a longer one left in its ring."""
    engine = selfspec.load(model_of(case))
    engine.runtime.most_rows = 14
    lengths, drafts = (
        [50, 3, 30, 1, 12, 9],
        [{}, {"draft": "early_exit", "exit_layer": 2, "gamma": 4, "siblings": 1}],
    )
    asked = [
        {"prompt": TOKENS[:length], "max_new_tokens": 30 - 4 * i, "ignore_eos": True, **drafts[i % 2]}
        for i, length in enumerate(lengths)
    ]
    found = dict(engine.batch(asked, slots=2))
    for i, request in enumerate(asked):
        want = engine.generate(request["prompt"], max_new_tokens=30 - 4 * i, ignore_eos=True, draft="plain")
        assert found[i].token_ids == want.token_ids


def test_positions_that_are_learned_must_be_given():
    """Guards GPT-2 and OPT: a row without its position would be of another text."""
    runtime = TorchRuntime.of(model_of("gpt2"))
    with pytest.raises(AssertionError, match="learned"):
        runtime.embed([5])


@pytest.mark.parametrize("case", ["mistral", "cohere2"])
def test_a_tree_may_be_deeper_than_the_window(case):
    """Guards rows whose own ancestors are out of sight: the root of a branch longer than the window."""
    runtime, start, deep = small_rings(case, most_rows=24), 20, 11
    cache = runtime.new_cache(1, 60)
    logits(runtime, TOKENS[:start], 0, cache)
    # a branch of `deep` rows, and beside each of its rows a leaf that is wrong
    branch, parents, tokens = [-1], [], []
    for depth in range(deep):
        parents += [branch[-1], branch[-1]]
        branch.append(2 * depth)
        tokens += [TOKENS[start + depth], 7]
    rows = Rows.trees([0] * len(tokens), range(start, start + len(tokens)), parents)
    hidden, _ = runtime.run(runtime.embed(tokens, rows.positions), FULL, rows, cache)
    with torch.no_grad():
        want = model_of(case)(torch.tensor([TOKENS[: start + deep]])).logits[0].numpy()
    assert deep > WINDOW
    assert np.abs(runtime.logits(hidden)[::2] - want[start:]).max() < 1e-8
    runtime.keep(cache, rows.take(np.arange(0, len(tokens), 2)))
    after = logits(runtime, [5], start + deep, cache)
    with torch.no_grad():
        want = model_of(case)(torch.tensor([[*TOKENS[: start + deep], 5]])).logits[0, -1:].numpy()
    assert np.abs(after - want).max() < 1e-8


# -- experts ----------------------------------------------------------------------------------------------

MIXTURES = ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss", "granitemoe"]


@pytest.mark.parametrize("case", MIXTURES)
def test_a_plan_may_ask_for_fewer_experts(case):
    """Guards `plan.experts`: the same as a model that was configured so."""
    model = model_of(case)
    fewer = AutoModelForCausalLM.from_config(model.config, attn_implementation=model.config._attn_implementation)
    fewer = fewer.double().eval()
    fewer.load_state_dict(model.state_dict())
    fewer.set_experts_implementation("eager")
    for module in fewer.modules():
        if hasattr(module, "top_k"):
            module.top_k = 1
    runtime = TorchRuntime.of(model)
    with torch.no_grad():
        want = fewer(torch.tensor([TOKENS])).logits[0].numpy()
    plan = LayerPlan(4, FULL.attention, FULL.mlp, experts=1)
    got = logits(runtime, TOKENS, 0, runtime.new_cache(1, 60), plan)
    assert np.abs(got - want).max() < 1e-8
    assert np.abs(got - logits(runtime, TOKENS, 0, runtime.new_cache(1, 60))).max() > 1e-3
    assert (plan.shared_prefix, plan.span(0, 2).experts, str(plan)) == (0, 1, "full 4, 1 experts")
    with pytest.raises(OptionError, match="experts is 99"):
        logits(runtime, TOKENS, 0, runtime.new_cache(1, 60), LayerPlan(4, (), (3,), experts=99))


@pytest.mark.parametrize("case", MIXTURES)
def test_only_the_chosen_experts_are_read(case):
    """Guards the point of a mixture: an expert that no row has could be anything, and takes no time."""
    runtime = TorchRuntime.of(model_of(case))
    want, read = logits(runtime, [5], 0, runtime.new_cache(1, 1)), 0
    for block in runtime._blocks:
        if block._mixture is None:
            continue
        tensors, original, asked = dict(block._tensors), block._mixture._expert, set()
        block._mixture._expert = lambda e, x, original=original, asked=asked: asked.add(e) or original(e, x)
        logits(runtime, [5], 0, runtime.new_cache(1, 1))
        experts = block._mixture._facts
        assert len(asked) == experts.per_token < experts.count
        read += len(asked)
        for role in [role for role in tensors if role.startswith("experts_")]:
            poisoned = tensors[role].clone()
            poisoned[[e for e in range(experts.count) if e not in asked]] = torch.nan
            block._mixture._tensors[role] = poisoned
    assert read
    assert np.array_equal(logits(runtime, [5], 0, runtime.new_cache(1, 1)), want)
