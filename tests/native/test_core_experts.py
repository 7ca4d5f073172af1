"""Mixtures of experts on the native core: how many a plan asks for, and which are read."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from native_models import chain, family, family_core, family_torch, packed, random_weights, same, states

from selfspec.errors import OptionError
from selfspec.model.config import Experts, Layer, ModelConfig
from selfspec.runtime.cpu import CpuRuntime
from selfspec.runtime.packing import Packed, pack
from selfspec.traffic import distinct_experts
from selfspec.types import LayerPlan, Rows

MIXTURES = ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss", "granitemoe"]
TOKENS = np.random.default_rng(2).integers(3, 101, 40).tolist()
FULL = LayerPlan.full(4)


def experts_of(runtime):
    return [e for i in range(4) if (e := runtime.config.layer(i).experts)]


def logits(runtime, plan):
    rows = Rows.of([0] * len(TOKENS), range(len(TOKENS)))
    return np.asarray(runtime.logits(states(runtime, TOKENS, rows, runtime.new_cache(1, len(TOKENS)), plan)))


@pytest.mark.parametrize("case", MIXTURES)
def test_a_plan_may_ask_for_another_number_of_experts(case):
    """Guards `plan.experts`: as torch does it, for fewer and for more than the model was made with."""
    mine, theirs = family_core(case), family_torch(case)
    most = experts_of(mine)[0].count
    for wanted in (1, most):
        plan = replace(FULL, experts=wanted)
        assert np.abs(logits(mine, plan) - logits(theirs, plan)).max() < 2e-5
        assert np.abs(logits(mine, plan) - logits(mine, FULL)).max() > 1e-3
    with pytest.raises(OptionError, match=f"experts is {most + 1}; this model has {most}"):
        logits(mine, replace(FULL, experts=most + 1))


@pytest.mark.parametrize("case", MIXTURES)
def test_each_expert_is_read_once_in_a_pass(case, monkeypatch):
    """Guards the count against the choices of torch: distinct experts of all rows, in every layer."""
    mine, theirs, seen = family_core(case), family_torch(case), 0
    for block in theirs._blocks:
        if block._mixture is not None:
            monkeypatch.setattr(block._mixture, "_expert", _counting(block._mixture._expert, asked := set()))
            block._asked = asked
    logits(theirs, FULL)
    seen = sum(len(block._asked) for block in theirs._blocks if block._mixture is not None)
    before = mine.expert_reads
    chain(mine, TOKENS)
    assert mine.expert_reads - before == seen
    before = mine.expert_reads
    chain(mine, TOKENS[:1])
    assert mine.expert_reads - before == sum(experts.per_token for experts in experts_of(mine))


def _counting(expert, asked):
    def counted(e, x):
        asked.add(e)
        return expert(e, x)

    return counted


@pytest.mark.parametrize("case", ["mixtral", "gpt_oss"])
def test_only_the_chosen_experts_are_read(case):
    """Guards the point of a mixture: an expert that no row has could be anything."""
    config, weights, _ = family(case)
    runtime = family_core(case)
    want = chain(runtime, TOKENS[:2])
    count, harmless, harmful = config.layer(0).experts.count, 0, 0
    for e in range(count):
        key = next(
            key
            for key in weights
            if key.endswith((f"experts.{e}.w2.weight", f"0.mlp.experts.down_proj:expert{e}_down"))
        )
        poison = np.frombuffer(np.full(weights[key].data.nbytes // 4, np.nan, np.float32).tobytes(), np.uint8)
        other = Packed("fp32", weights[key].rows, weights[key].columns, poison)
        got = chain(CpuRuntime(config, {**weights, key: other}, threads=1), TOKENS[:2])
        harmless, harmful = harmless + same(got, want), harmful + np.isnan(got).any()
    assert harmless
    assert harmful
    assert harmless + harmful == count


def of_two_widths():
    """A mixture whose second layer has narrower experts than the first; no family has that today."""
    layers = tuple(Layer(qk_norm="head", experts=Experts(4, 2, width)) for width in (24, 20))
    config = ModelConfig("qwen3_moe", 2, 32, 64, 4, 2, 8, 101, 64, layers=layers)
    weights = packed(random_weights(config), "int8")
    routers = {key: pack(w.unpack(), "fp32") for key, w in weights.items() if key.endswith("mlp.gate.weight")}
    return CpuRuntime(config, weights | routers, threads=1)


@pytest.mark.parametrize("make", [partial(family_core, "qwen2_moe", "int8"), of_two_widths], ids=["shared", "own"])
def test_what_another_layer_left_behind_changes_nothing(make):
    """Guards the ends of rows inside of a block of 32: what a wider layer left there would enter its scale."""
    runtime, random, count = make(), np.random.default_rng(3), 16
    wide, narrow = (LayerPlan(runtime.config.num_layers, (), (layer,)) for layer in (0, 1))
    hidden, found = random.normal(size=(count, 32)).astype(np.float32), []
    for size in (0.0, 1.0, 1.0):
        rows, cache = Rows.of([0] * count, range(count)), runtime.new_cache(1, count)
        runtime.run(size * random.normal(size=(count, 32)).astype(np.float32), wide, rows, cache)
        found.append(runtime.run(hidden, narrow, rows, cache)[0])
    assert same(found[1], found[0])
    assert same(found[2], found[0])


def test_distinct_experts_are_as_many_as_chance_makes_them():
    """Guards the formula of the cost model: T rows read E (1 - (1 - k / E)^T) experts if choices are even.

    Sizes of a real mixture, scaled down: 64 experts, 6 of them for a row.
    """
    experts = Experts(count=64, per_token=6, width=16, weighting="renormed")
    config = ModelConfig(
        "qwen3_moe", 1, 64, 64, 4, 2, 16, 101, 64, layers=(Layer(qk_norm="head", experts=experts),)
    )
    weights = packed(random_weights(config), "int8")
    router = next(key for key in weights if key.endswith("mlp.gate.weight"))
    # rows of an orthogonal matrix, and a norm that changes no direction: no expert is likelier than another
    values = np.linalg.qr(np.random.default_rng(5).normal(size=(64, 64)))[0].astype(np.float32)
    weights |= packed({router: values}, "fp32")
    weights["model.layers.0.post_attention_layernorm.weight"] = np.ones(64, np.float32)
    runtime, random = CpuRuntime(config, weights, threads=1), np.random.default_rng(6)
    cache, mlp = runtime.new_cache(1, 64), LayerPlan(1, (), (0,))
    for rows in (1, 4, 8, 16):
        before, passes = runtime.expert_reads, 200
        for _ in range(passes):
            hidden = random.normal(size=(rows, 64)).astype(np.float32)
            runtime.run(hidden, mlp, Rows.of([0] * rows, range(rows)), cache)
        found = (runtime.expert_reads - before) / passes
        assert found == pytest.approx(distinct_experts(64, 6, rows), rel=0.01)
