"""Heads that come with the package: small, documented, for the checkpoint that they name, and worth their place."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import selfspec
from selfspec.drafters.trained import SHIPPED, opened
from selfspec.model import find_checkpoint
from selfspec.model.embedded import EMBEDDED
from selfspec.model.head_file import read_facts, read_head
from selfspec.runtime.attached import identity_of

HEADS = sorted(SHIPPED.glob("*.safetensors"))
PROMPT = "Write a Python function that adds two numbers, and explain each step."


def test_they_are_small_and_have_a_card():
    """Guards the size of the package, and that every head says where it comes from and what it is worth."""
    assert [path.name for path in HEADS] == ["smollm2-135m-eagle.safetensors"]
    assert sum(path.stat().st_size for path in HEADS) <= 8e6
    for path in HEADS:
        head, card = read_head(path), read_facts(path).card
        assert head.facts.target
        assert card["command"].startswith("selfspec train ")
        assert card["steps"] > 0
        assert card["data"]["answer_tokens"] > 0
        assert {"greedy", "sampled"} <= card["held_out"].keys()
        assert card["acceptance"]["tasks"].keys() >= {"all", "math_reasoning", "summarization", "translation"}


@pytest.mark.embedded
@pytest.mark.parametrize("bits", [None, 16])
def test_the_embedded_model_drafts_with_its_head_by_itself(bits):
    """Guards that `eagle` and `auto` find it, that it is right as a trained one is, and that texts stay."""
    engine = selfspec.load(EMBEDDED, bits=bits, tuned=False)
    assert read_facts(HEADS[0]).target == identity_of(engine.runtime)
    plain = engine.generate(PROMPT, draft="plain", max_new_tokens=64)
    drafted = engine.generate(PROMPT, draft="eagle", gamma=2, max_new_tokens=64)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.accepted >= 0.3 * drafted.stats.drafted > 10
    chosen = engine.generate(PROMPT, max_new_tokens=64)
    assert chosen.token_ids == plain.token_ids
    assert "eagle" in [choice["drafter"] for choice in chosen.explanation["choices"]]


@pytest.mark.embedded
def test_weights_are_held_once():
    """Guards memory: what is attached has its own, and a file's weights are read again for the next who asks."""
    head = opened(HEADS[0], "eagle", find_checkpoint(EMBEDDED).config)
    held = weakref.ref(head.weights["fc.weight"])
    assert held() is not None
    engine = selfspec.load(EMBEDDED, bits=8, draft="eagle", tuned=False)
    gc.collect()
    assert (engine.name, held()) == (EMBEDDED, None)
    assert np.array_equal(head.weights["fc.weight"], read_head(HEADS[0]).weights["fc.weight"])
