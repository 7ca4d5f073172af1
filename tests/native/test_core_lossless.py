"""Speculation on the native core, bit for bit: the same tokens and the same logits as plain decoding.

No tolerance and no near-ties: rows are independent, so the row that decided a token has the same bits whether
it ran alone or beside a draft.
"""

from __future__ import annotations

import numpy as np
import pytest
from doubles import run
from native_models import KINDS, ODD, chain, changed, core

from selfspec.context import Context
from selfspec.types import Sampling

PROMPTS = [[5, 17, 3, 3, 42, 8, 29], [60, 1, 33], [7] * 12]
DRAFTERS = [
    ("early_exit", {"exit_layer": 1, "gamma": 4}),
    ("early_exit", {"exit_layer": 2, "gamma": 3, "siblings": 2}),
    ("ngram", {"adaptive": False, "gamma": 6}),
    ("ngram", {"adaptive": False, "gamma": 4, "siblings": 2}),
]
LAWS = {"greedy": Sampling(), "sampled": Sampling(temperature=0.8, top_k=20)}


@pytest.fixture(scope="module", params=KINDS)
def runtime(request):
    """A model that repeats itself, so that drafts are accepted."""
    return core(request.param, changed(tied_head=True))


@pytest.mark.parametrize(("drafter", "options"), DRAFTERS)
def test_greedy_tokens_are_those_of_plain_decoding(runtime, drafter, options):
    """Guards losslessness in every kind of weights, alone and as a ragged batch."""
    want = [run(runtime, [prompt], new_tokens=60)[0].tokens for prompt in PROMPTS]
    accepted = 0

    def count(_context, _texts, round_):
        nonlocal accepted
        accepted += sum(commit.accepted for commit in round_.commits)

    assert [t.tokens for t in run(runtime, PROMPTS, drafter, options, new_tokens=60, each_round=count)] == want
    assert accepted > 20  # else this would test plain decoding against itself


def test_a_sampled_text_from_a_deterministic_draft_is_the_plain_one(runtime):
    """Guards sampling: look-up draws from the target's own rows, so one seed gives one text."""
    law = LAWS["sampled"]
    want = [t.tokens for t in run(runtime, PROMPTS, sampling=law, new_tokens=60)]
    options = {"adaptive": False, "gamma": 6}
    assert [t.tokens for t in run(runtime, PROMPTS, "ngram", options, sampling=law, new_tokens=60)] == want


@pytest.mark.parametrize(("drafter", "options"), DRAFTERS)
def test_the_logits_of_a_verification_have_the_bits_of_plain_decoding(runtime, drafter, options, monkeypatch):
    """Guards the claim itself: every row that a verification scores equals the chain's row, to the last bit."""
    text = run(runtime, [PROMPTS[0]], new_tokens=60)[0].tokens
    want, checked = chain(runtime, text), 0
    score = Context.score

    def compare(self, texts, drafts):
        nonlocal checked
        rows = score(self, texts, drafts)
        for seen, draft, logits in zip(texts, drafts, rows, strict=True):
            for row in range(len(draft) + 1):
                line = [*seen.tokens, *draft.before(row)]
                if line == text[: len(line)]:
                    assert np.array_equal(logits[row].view(np.int32), want[len(line) - 1].view(np.int32))
                    checked += 1
        return rows

    monkeypatch.setattr(Context, "score", compare)
    run(runtime, [PROMPTS[0]], drafter, options, new_tokens=60)
    assert checked >= 59  # more than the rows that decided: those of drafts that were right


def test_the_odd_model_is_odd():
    """Guards the choice of sizes: nothing here is a whole number of groups, blocks or lanes."""
    assert ODD.hidden_size % 32
    assert ODD.vocab_size % 16
    assert ODD.head_dim % 8
