"""The layer_skip drafter: what its option means, and what its drafts keep and cost."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import TINY, run, tiny_core, tiny_runtime

from selfspec.context import Context, Text
from selfspec.drafters.layer_skip import LayerSkip, LayerSkipOptions, plan_without, skip_of
from selfspec.errors import OptionError
from selfspec.sampling import Chance
from selfspec.types import LayerPlan, Sampling

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


@pytest.mark.parametrize("skip", ["2", "attention 1,3 mlp 4", "0,4"])
def test_a_plan_can_be_written_as_the_option(skip):
    """Guards what search-plan prints: it is read as the same plan."""
    plan = plan_without(skip, 5)
    assert plan_without(skip_of(plan), 5) == plan


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
