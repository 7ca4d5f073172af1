"""The embedded model, float32: speculation changes no word, and plain decoding says what transformers says."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import selfspec
from selfspec.engine import Engine
from selfspec.measure.nearties import NearTies, Place
from selfspec.model import EMBEDDED, find_checkpoint
from selfspec.runtime.torch import TorchRuntime
from selfspec.types import LayerPlan, Rows

pytestmark = pytest.mark.embedded

OWN_PROMPTS = [
    "Repeat three times: the quick brown fox jumps over the lazy dog.",
    "What is 17 plus 25? Explain each step.",
]
DRAFTS = [
    {"draft": "ngram"},
    *({"draft": "early_exit", "exit_layer": k, "gamma": 2} for k in (4, 15, 26)),
]


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(find_checkpoint(EMBEDDED).folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def engine(model) -> Engine:
    checkpoint = find_checkpoint(EMBEDDED)
    return Engine(TorchRuntime.of(model), checkpoint.tokenizer, checkpoint.name)


@pytest.fixture(scope="module")
def core() -> Engine:
    """The same weights in the native core, in float32."""
    return selfspec.load(EMBEDDED, runtime="cpu", bits=32)


def generate(model, engine, prompt, tokens):
    """What transformers makes of the same prompt, end-of-text included."""
    ids = engine.tokenizer.encode_chat([{"role": "user", "content": prompt}])
    out = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids)),
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=list(engine.config.eos_token_ids),
        pad_token_id=0,
    )
    return tuple(out[0, len(ids) :].tolist())


def check(model, engine, prompts, tokens, drafts=DRAFTS, noisy=None):
    """Compare ``engine`` with transformers, whose row counts make the noise of ``noisy``, and drafts with plain."""
    ties = NearTies(engine.runtime)
    outer = ties if noisy is None else NearTies(noisy)
    for number, prompt in enumerate(prompts, 1):
        ids = engine.tokenizer.encode_chat([{"role": "user", "content": prompt}])
        plain = engine.generate(prompt, draft="plain", max_new_tokens=tokens).token_ids
        outer.compare(ids, plain, generate(model, engine, prompt, tokens), Place(number, "transformers", 1))
        for options in drafts:
            drafted = engine.generate(prompt, max_new_tokens=tokens, **options).token_ids
            ties.compare(ids, drafted, plain, Place(number, options["draft"], 5))
    for rule in {ties, outer}:
        print(f"{rule.texts} comparisons, {rule.near_ties} near-ties, {rule.bugs} bugs")
        assert rule.passed, rule.divergences
    return ties


def test_no_draft_changes_a_token(model, engine):
    """Guards the promise on the real model, on a few own prompts; the slow test has 24 held-back ones."""
    assert not check(model, engine, OWN_PROMPTS, 12, [DRAFTS[0], DRAFTS[2]]).divergences


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["cpu", "torch"])
def test_no_draft_changes_a_token_on_held_back_prompts(model, engine, core, request, runtime):
    """48 tokens for four prompts of each task in --data; divergences only at near-ties, in 1 % of texts.

    In the native core a draft may change nothing at all: its rows have no noise.
    """
    data = request.config.getoption("--data")
    assert data, "give the prompts: pytest -m slow --data FILE"
    rows = sorted(map(json.loads, Path(data).read_text(encoding="utf-8").splitlines()), key=lambda r: r["task"])
    prompts = [row["turns"][0] for _, group in groupby(rows, key=lambda r: r["task"]) for row in list(group)[:4]]
    check(model, engine if runtime == "torch" else core, prompts, 48, noisy=engine.runtime)


def test_logits_equal_transformers_in_float32(model, engine):
    """Guards the conversion and the runtime together on real weights."""
    ids = engine.tokenizer.encode("The capital of Portugal is Lisbon, and its river is the")
    rows = Rows.of([0] * len(ids), range(len(ids)))
    runtime = engine.runtime
    cache = runtime.new_cache(1, len(ids))
    hidden, _ = runtime.run(runtime.embed(ids), LayerPlan.full(30), rows, cache)
    with torch.no_grad():
        want = model(torch.tensor([ids])).logits[0].numpy()
    assert np.abs(runtime.logits(hidden) - want).max() < 2e-3
