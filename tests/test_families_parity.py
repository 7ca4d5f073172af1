"""Every family against transformers, in float64: logits, greedy texts, early exits and gapped plans.

Models have four layers, three of them with a window of 8 where the family has windows, and all texts are longer.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache

import numpy as np
import pytest
import torch
from doubles import run
from family_drafts import DRAFTS, GAP, KNOWN
from family_models import CASES, WINDOW, attention_and_mlp, family_name, model_of, wide_softmax

import selfspec
from selfspec.drafters.layer_skip import plan_without
from selfspec.model.families import FAMILIES
from selfspec.reference import oracle
from selfspec.runtime.torch import TorchRuntime
from selfspec.sampling import Chance
from selfspec.types import LayerPlan, Rows

LENGTH, NEW = 24, 20
RING = 14  # the most rows of a text in one pass here, so that a window's cache is a ring of 22 cells
PROMPTS = [np.random.default_rng(0).integers(3, 101, LENGTH).tolist(), [5, 17, 3], [9] * 11]
FULL = LayerPlan.full(4)
EVERY = pytest.mark.parametrize("case", CASES)


@cache
def runtime_of(case):
    runtime = TorchRuntime.of(model_of(case))
    runtime.most_rows = RING
    return runtime


def theirs(case, tokens):
    """Logits [R, V] of transformers."""
    with torch.no_grad(), wide_softmax():
        return model_of(case)(torch.tensor([tokens])).logits[0].numpy()


def logits(runtime, tokens, start, cache, *, slot=0, plan=FULL):
    """Logits of the rows from ``start`` on; what is before them is in the cache."""
    rows = Rows.of([slot] * len(tokens), range(start, start + len(tokens)))
    return runtime.logits(runtime.run(runtime.embed(tokens, rows.positions), plan, rows, cache)[0])


def test_there_is_a_case_of_every_family():
    """Guards the table: a family without a row here would be a claim without a test."""
    assert {family_name(case) for case in CASES} == {family.name for family in FAMILIES}


@EVERY
@pytest.mark.parametrize("cut", [[LENGTH], [1] * LENGTH, [WINDOW + 3, 1, 5, 1, 6]], ids=["prefill", "one", "many"])
def test_logits_equal_transformers(case, cut):
    """Guards every operator and every fact: a prefill, and passes of one and of many rows past the window."""
    runtime, tokens = runtime_of(case), PROMPTS[0]
    store, got, start = runtime.new_cache(1, LENGTH), [], 0
    for count in cut:
        got.append(logits(runtime, tokens[start : start + count], start, store))
        start += count
    assert np.abs(np.concatenate(got) - theirs(case, tokens)[:start]).max() < 1e-8


@EVERY
def test_a_ragged_batch_equals_transformers(case):
    """Guards rows of texts of different length in one pass, in slots with a gap, and a second pass over all."""
    runtime, slots, cuts = runtime_of(case), [2, 0, 3], [LENGTH - 4, 2, 10]
    store = runtime.new_cache(4, LENGTH)
    got = [[], [], []]
    for spans in ([(0, cut) for cut in cuts], [(c, len(p)) for c, p in zip(cuts, PROMPTS, strict=True)]):
        counts = [stop - start for start, stop in spans]
        tokens = [t for p, (start, stop) in zip(PROMPTS, spans, strict=True) for t in p[start:stop]]
        rows = Rows.of(np.repeat(slots, counts), [i for span in spans for i in range(*span)])
        out = runtime.logits(runtime.run(runtime.embed(tokens, rows.positions), FULL, rows, store)[0])
        for part, found in zip(np.split(out, np.cumsum(counts)[:-1]), got, strict=True):
            found.append(part)
    for prompt, found in zip(PROMPTS, got, strict=True):
        assert np.abs(np.concatenate(found) - theirs(case, prompt)).max() < 1e-8


@EVERY
def test_greedy_texts_equal_generate(case):
    """Guards the whole: what people get from transformers is what they get here, past the window."""
    model = model_of(case)
    for prompt in PROMPTS[:2]:
        with wide_softmax():
            out = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=NEW,
                do_sample=False,
                eos_token_id=None,
            )
        (text,) = run(runtime_of(case), [prompt], new_tokens=NEW)
        assert text.tokens == out[0].tolist()


@cache
def plain(case):
    """The texts of the oracle, which has no cache and no draft."""
    runtime = runtime_of(case)
    return [p + oracle(runtime, p, NEW, Chance(0, i)) for i, p in enumerate(PROMPTS)]


@EVERY
@pytest.mark.parametrize("draft", DRAFTS)
def test_every_draft_gives_the_text_of_the_oracle(case, draft):
    """Guards exits, gaps, chains and trees, with rollback across the window, in a ragged batch."""
    drafter, options = DRAFTS[draft](runtime_of(case).config, plain(case))
    accepted = []
    texts = run(
        runtime_of(case),
        PROMPTS,
        drafter,
        options,
        new_tokens=NEW,
        each_round=lambda _context, _texts, round_: accepted.extend(c.accepted for c in round_.commits),
    )
    assert [text.tokens for text in texts] == plain(case)
    if draft in KNOWN:
        assert max(accepted) >= 3  # else nothing was kept past a rollback


@pytest.mark.parametrize("case", ["gpt2", "gpt_neox", "opt", "gpt_oss", "cohere2"])
def test_an_early_exit_leaves_the_model_as_it_was(case):
    """Guards model objects: transformers' own early exit fails in these families, and breaks the model for good."""
    model, prompt = model_of(case), PROMPTS[0]
    settings, options = model.config.to_dict(), {"max_new_tokens": 8, "ignore_eos": True}
    engine = selfspec.load(model)
    want = engine.generate(prompt, draft="plain", **options).token_ids
    for layer in (1, 3):
        found = engine.generate(prompt, draft="early_exit", exit_layer=layer, **options)
        assert found.token_ids == want
    assert model.config.to_dict() == settings
    with wide_softmax(), torch.no_grad():
        after = model(torch.tensor([[*prompt, *want]])).logits[0, LENGTH - 1 : -1]
    assert after.argmax(dim=-1).tolist() == list(want)


@EVERY
def test_a_gapped_plan_is_transformers_without_those_parts(case):
    """Guards the order within a layer: a part that is left out adds nothing, and moves nothing that others read."""
    model, plan = model_of(case), plan_without(GAP, 4)
    with ExitStack() as stack:
        for layer in range(4):
            attention, mlp = attention_and_mlp(model, layer)
            for part, kept in ((attention, plan.attention), (mlp, plan.mlp)):
                if layer not in kept:
                    stack.callback(part.register_forward_hook(silenced).remove)
        want = theirs(case, PROMPTS[0])
    got = logits(runtime_of(case), PROMPTS[0], 0, runtime_of(case).new_cache(1, LENGTH), plan=plan)
    assert np.abs(got - want).max() < 1e-8


def silenced(_module, _given, out):
    return (torch.zeros_like(out[0]), *out[1:]) if isinstance(out, tuple) else torch.zeros_like(out)


@EVERY
def test_the_tensors_are_those_of_the_model(case):
    """Guards the promise of zero extra memory, in fused and transposed weights and experts too."""
    runtime = runtime_of(case)
    memory = {p.untyped_storage().data_ptr() for p in model_of(case).parameters()}
    held = [t for block in runtime._blocks for t in block._tensors.values()]
    held += [runtime._embedding, runtime._head, runtime._norm.weight]
    held += [t for t in (runtime._norm.bias, runtime._positions) if t is not None]
    assert {t.untyped_storage().data_ptr() for t in held} == memory
    sizes = sum(p.nbytes for p in model_of(case).parameters())
    assert runtime.config.parameters * 8 == sizes
