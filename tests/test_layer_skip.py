"""The layer_skip drafter: what its option means, and what its drafts keep and cost."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import TINY, Host, run, tiny_core, tiny_hybrid, tiny_runtime
from family_models import model_of

from selfspec.context import Context, Text
from selfspec.drafters import create
from selfspec.drafters.layer_skip import LayerSkip, LayerSkipOptions, plan_without, skip_of
from selfspec.errors import OptionError
from selfspec.model.families import weights_by_role
from selfspec.runtime.torch import TorchRuntime
from selfspec.sampling import Chance
from selfspec.types import LayerPlan, Rows, Sampling, SubLayer

PROMPT = [5, 17, 3, 3, 42]


@pytest.mark.parametrize(
    ("skip", "attention", "mlp"),
    [
        ("2", {2}, {2}),
        ("1-2,4", {1, 2, 4}, {1, 2, 4}),
        ("attention 1,3 mlp 4", {1, 3}, {4}),
        ("0; mlp 2-3 attention 4", {0, 4}, {0, 2, 3}),
        ("", {2}, set()),  # the middle half of five layers is 2
    ],
)
def test_what_the_option_names(skip, attention, mlp):
    """Guards the form: whole layers, ranges, and parts."""
    plan = LayerSkip(LayerSkipOptions(skip=skip), TINY).plan
    assert set(range(5)) - set(plan.attention) == attention
    assert set(range(5)) - set(plan.mlp) == mlp


@pytest.mark.parametrize(
    "skip", ["2", "attention 1,3 mlp 4", "0,4", "heads 1:0,3:2-3", "mlp 2 heads 1-2:0 channels 3:0-5,3:9,4:40-47"]
)
def test_a_plan_can_be_written_as_the_option(skip):
    """Guards what search-plan prints: it is read as the same plan."""
    plan = plan_without(skip, 5, TINY)
    assert plan_without(skip_of(plan), 5, TINY) == plan
    assert skip_of(plan) in str(plan)


def test_heads_and_channels_are_parts_of_sub_layers():
    """Guards what a plan with them is: its prefix, its price, and that all of them are the whole sub-layer."""
    plan = plan_without("mlp 2 heads 1:0,2:1-3 channels 3:0-11,3:12-23", 5, TINY)
    assert plan.kept == {
        SubLayer(1, "attention"): ((1, 4),),
        SubLayer(2, "attention"): ((0, 1),),
        SubLayer(3): ((24, 48),),
    }
    assert (plan.shared_prefix, plan.mlp) == (1, (0, 1, 3, 4))
    assert plan.row_layers == (9 - 0.25 - 0.75 - 0.5) / 2
    assert plan.span(3, 5).kept == {SubLayer(3): ((24, 48),)}
    assert plan_without("heads 1:0-3 channels 4:0-47", 5, TINY) == plan_without("attention 1 mlp 4", 5)
    assert plan_without("attention 1 heads 1:0 mlp 2", 5, TINY) == plan_without("attention 1 mlp 2", 5)


@pytest.mark.parametrize(
    ("skip", "words"),
    [
        ("5", "cannot skip attention \\[5\\]: this model has layers 0 to 4"),
        ("mlp 7", "cannot skip mlp \\[7\\]"),
        ("3-1", "'3-1', which ends before it begins"),
        ("attn 3", "'attn'; it lists layers, such as"),
        ("attention", "names no layer"),
        ("-1", "'-1'"),
        ("0-4", "leaves nothing of 5 layers"),
        ("heads 5:0", "cannot skip heads 0 of layer 5: this model has layers 0 to 4 with heads 0 to 3"),
        ("heads 1:4", "cannot skip heads 4 of layer 1"),
        ("channels 0-99999:0-99999", "cannot skip channels 99999 of layer 99999"),
        ("heads 3", "'3'; it lists layers, such as"),
        ("attention 3:1", "'3:1'; it lists layers, such as"),
        ("heads 1:3-2", "'1:3-2', which ends before it begins"),
    ],
)
def test_what_cannot_be_skipped_is_one_line(skip, words):
    """Guards the user's mistake."""
    with pytest.raises(OptionError, match=words):
        LayerSkip(LayerSkipOptions(skip=skip), TINY)


def opened(runtime):
    context = Context(runtime, runtime.new_cache(1, 40))
    text = Text(0, 0, list(PROMPT), 40, Sampling(), Chance(0), lambda _: False)
    context.prefill(text)
    text.tokens.append(7)
    return context, text


@pytest.mark.parametrize("make", [tiny_runtime, lambda: tiny_core("int4")], ids=["torch", "cpu"])
@pytest.mark.parametrize(("skip", "shared"), [("attention 3 mlp 2", 2), ("mlp 4", 4), ("attention 0", 0)])
def test_verification_resumes_at_the_first_gap(make, skip, shared):
    """Guards the states that are kept: the target goes on from them as if it had run the shared layers itself."""
    runtime = make()
    context, text = opened(runtime)
    drafter = LayerSkip(LayerSkipOptions(skip=skip, gamma=3), runtime.config)
    drafter.begin(text)
    (draft,) = drafter.propose(context, [text], [3])
    assert draft.layer == shared
    assert (draft.hidden is None) == (shared == 0)
    before = context.row_layers[0]
    (resumed,) = context.score([text], [draft])
    assert context.row_layers[0] - before == 4 * 5 - 3 * shared
    whole, other = opened(make())
    (fresh,) = whole.score([other], [type(draft)(draft.tokens)])
    assert np.abs(np.asarray(resumed) - np.asarray(fresh)).max() < 1e-12


def test_a_draft_step_costs_the_sub_layers_that_it_runs():
    """Guards the counts of the report: a sub-layer is half a layer."""
    costs = []
    runtime = tiny_runtime()
    run(
        runtime,
        [PROMPT],
        "layer_skip",
        {"skip": "attention 1,3 mlp 4", "gamma": 2},
        new_tokens=6,
        each_round=lambda c, t, r: costs.append((r.commits[0].drafted, r.commits[0].draft_row_layers)),
    )
    assert costs[1] == (2, 2 * 3.5)


def test_texts_of_several_plans_are_drafted_in_one_batch():
    """Guards plans per text: each text is drafted with its own."""

    class Two(LayerSkip):
        def plan_of(self, text):
            return LayerPlan.skipping(5, mlp=[3]) if text.index else super().plan_of(text)

    runtime = tiny_runtime()
    want = [text.tokens for text in run(runtime, [PROMPT, [9, 2]], new_tokens=12)]
    drafter = Two(LayerSkipOptions(skip="1-2", gamma=3), TINY)
    costs = []
    got = run(
        runtime,
        [PROMPT, [9, 2]],
        drafter,
        new_tokens=12,
        each_round=lambda c, t, r: costs.append([commit.draft_row_layers for commit in r.commits]),
    )
    assert [text.tokens for text in got] == want
    assert costs[1] == [3 * 3.0, 3 * 4.5]


# -- heads and channels -----------------------------------------------------------------------------------

CUT = ["qwen3", "gpt2", "gpt_oss", "gemma2", "phi3", "cohere2", "mistral"]
"""Norms per head; one matrix, transposed, with biases; sinks; caps, norms after; fused; parallel; a window."""


def silenced(model, plan):
    """The same runtime where what the plan leaves out of a sub-layer is multiplied with zeros."""
    runtime = TorchRuntime.of(model)
    runtime.weights = dict(runtime.weights)
    for cut in plan.cuts:
        role, width = ("o", runtime.config.head_dim) if cut.step.part == "attention" else ("down", 1)
        weight = weights_by_role(runtime.config, cut.step.layer)[role]
        silent = runtime.weights[weight.name].clone()
        inputs = silent.T if not weight.transposed else silent  # [in, out]
        for start, stop in cut.left_out:
            inputs[start * width : stop * width] = 0.0
        runtime.weights[weight.name] = silent
    return TorchRuntime(runtime.config, runtime.weights)


def answers(runtime, plan, slots=2):
    """Logits of two texts of several lengths, in a prefill and then row by row."""
    found, cache = [], runtime.new_cache(slots, 24)
    tokens = np.random.default_rng(3).integers(3, 60, size=(slots, 24))
    for spans in ([(0, 0, 15), (1, 0, 9)], *([(0, 15 + i, 16 + i), (1, 9 + i, 10 + i)] for i in range(5))):
        rows = Rows.of([s for s, a, b in spans for _ in range(a, b)], [p for _, a, b in spans for p in range(a, b)])
        hidden = runtime.embed([tokens[s, p] for s, a, b in spans for p in range(a, b)], rows.positions)
        found.append(runtime.logits(runtime.run(hidden, plan, rows, cache)[0]))
    return np.concatenate(found)


@pytest.mark.parametrize("case", CUT)
@pytest.mark.parametrize(
    "skip", ["heads 1:0,2:1-2,3:3", "heads 0-3:2-3 channels 1:0-9,1:20", "heads 1:0-2 channels 2:47"]
)
def test_what_is_left_out_adds_nothing_and_all_else_is_the_same(case, skip):
    """Guards the views: as if the weights that read those heads and channels were zero, on every kind of layer."""
    model = model_of(case)
    runtime = TorchRuntime.of(model)
    if runtime.config.layer(0).experts:
        skip = skip.partition(" channels")[0]
    plan, full = plan_without(skip, 4, runtime.config), LayerPlan.full(4)
    assert runtime.refuses(plan) == ""
    want = answers(silenced(model, plan), full)
    assert np.abs(answers(runtime, plan) - want).max() < 1e-10
    assert np.abs(answers(runtime, full) - want).max() > 1e-6


def test_keys_and_values_of_a_group_without_queries_are_not_made():
    """Guards what is saved: cells of a group that is left out stay as they were; no weight is copied."""
    runtime = tiny_runtime()
    cache, rows = runtime.new_cache(1, 4), Rows.of([0] * 4, range(4))
    plan = plan_without("heads 2:2-3", 5, TINY)  # the second of two groups
    runtime.run(runtime.embed([1, 2, 3, 4]), plan, rows, cache)
    assert (cache.keys[2][0, :, 1] == 0).all()
    assert (cache.keys[2][0, :, 0] != 0).all()
    assert (cache.keys[3][0] != 0).all()


@pytest.mark.parametrize(
    ("runtime", "skip", "words"),
    [
        (lambda: tiny_core("int8"), "heads 1:0", "the runtime cpu leaves out whole sub-layers only"),
        (lambda: TorchRuntime.of(model_of("olmo2")), "heads 1:0", "olmo2 has norms over all heads at once"),
        (
            lambda: TorchRuntime.of(model_of("mixtral")),
            "channels 1:0",
            "mixtral has experts in the place of channels",
        ),
        (
            lambda: TorchRuntime.of(model_of("gpt_neox")),
            "heads 1:0",
            "gpt_neox has queries, keys and values in one",
        ),
        (lambda: tiny_hybrid("conv"), "heads 1:0", "lfm2 has recurrent layers"),
        (lambda: tiny_hybrid("delta"), "heads 2:0", "gates among its queries"),
    ],
)
def test_what_a_runtime_cannot_leave_out_is_said_before_it_begins(runtime, skip, words):
    """Guards the user's mistake: one line, when the drafter is bound."""
    made = runtime()
    with pytest.raises(OptionError, match=f"skip is '{skip}', but .*{words}"):
        create("layer_skip", made.config, {"skip": skip}, Host(made, {}))
    if made.name == "cpu":
        with pytest.raises(OptionError, match="leaves out whole sub-layers only"):
            made.run(made.embed([1]), plan_without(skip, 5, TINY), Rows.of([0], [0]), made.new_cache(1, 1))
