"""Heads that are exchanged while texts are written change no token, no law, and never half of a draft."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import Host, run, tiny_core, tiny_runtime
from wild_drafters import Fickle

from selfspec.measure.laws import loop_law, plain_law, total_variation
from selfspec.types import LayerPlan, Rows, Sampling

PROMPTS = [[5, 17, 3, 3, 42, 5, 17], [1], [9, 9, 9, 9, 2], list(range(20))]
MAKES = {"torch": tiny_runtime, "cpu fp32": lambda: tiny_core("fp32"), "cpu int8": lambda: tiny_core("int8")}


@pytest.mark.parametrize("name", MAKES)
@pytest.mark.parametrize("texts", [1, 2, 3, 4])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.2])
def test_a_head_that_is_exchanged_in_every_round_changes_no_token(name, texts, temperature):
    """Guards swaps: batches, ragged acceptance, greedy and coupled texts, against plain decoding."""
    runtime = MAKES[name]()
    sampling = Sampling(temperature, coupled=temperature > 0)
    drafter = Fickle(runtime.config, Host(runtime, {}), texts, gamma=4)
    accepted = []
    found = run(
        runtime, PROMPTS[:texts], drafter, new_tokens=[24, 9, 17, 21][:texts], sampling=sampling, seed=7,
        each_round=lambda *given: accepted.extend(c.accepted for c in given[2].commits if c.drafted),
    )  # fmt: skip
    plain = run(runtime, PROMPTS[:texts], new_tokens=[24, 9, 17, 21][:texts], sampling=sampling, seed=7)
    assert [text.tokens for text in found] == [text.tokens for text in plain]
    assert len({id(offered) for offered in drafter.drafted_with}) == len(drafter.drafted_with) > 4
    assert any(accepted)
    assert 0 in accepted


class Watched(Fickle):
    """Exchanges the head in the middle of drafts, too, and keeps what it drafted."""

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.drafts = []

    def said(self, context, growing, hidden):
        out = super().said(context, growing, hidden)
        self.exchange(1000 + len(self.drafts) + growing[0].depth)
        return out

    def refine(self, context, texts, gammas, drafts):
        before = [list(text.tokens) for text in texts]
        made = super().refine(context, texts, gammas, drafts)
        self.drafts += [(self.drafted_with[-1], *one) for one in zip(before, made, strict=True)]
        return made


@pytest.mark.parametrize("texts", [1, 3])
def test_a_token_has_the_law_of_the_head_that_drew_it(texts):
    """Guards q: every token of a draft, of every text of a round, states the law of one and the same head."""
    runtime = tiny_runtime()
    drafter = Watched(runtime.config, Host(runtime, {}), gamma=4)
    sampling = Sampling(0.9)
    run(runtime, PROMPTS[:texts], drafter, new_tokens=20, sampling=sampling, seed=3)
    checked = 0
    for offered, before, draft in drafter.drafts:
        if not draft.tokens:
            continue
        tokens = [*before, *draft.tokens]
        rows, cache = Rows.of([0] * len(tokens), range(len(tokens))), runtime.new_cache(1, len(tokens))
        hidden, _ = runtime.run(runtime.embed(tokens), LayerPlan.full(5).span(0, 4), rows, cache)
        states = offered.attached.run(hidden, [0] * len(tokens), rows, None)
        logits = offered.attached.wide(offered.attached.logits(states))
        for i, law in enumerate(draft.laws):
            z = logits[len(before) - 1 + i] / 0.9
            q = np.exp(z - z.max())
            assert np.abs(np.asarray(law.probs) - q / q.sum()).max() < 1e-12
            assert law.probability(draft.tokens[i]) > 0.0
            checked += 1
    assert checked > 20


@pytest.mark.parametrize("seed", [0, 1])
def test_texts_have_the_plain_law(seed):
    """Guards sampled texts exactly: all outcomes of all draws, with another head in every round."""
    runtime = tiny_runtime(seed=seed, vocab_size=3)
    sampling = Sampling(0.7 + 0.5 * seed)

    def logits(tokens):
        rows, cache = Rows.of([0] * len(tokens), range(len(tokens))), runtime.new_cache(1, len(tokens))
        hidden, _ = runtime.run(runtime.embed(tokens), LayerPlan.full(5), rows, cache)
        return runtime.logits(hidden[-1:])[0]

    drafter = Fickle(runtime.config, Host(runtime, {}), seed, gamma=2)
    found = loop_law(runtime, ([1, 2], 3), sampling, drafter)
    assert total_variation(plain_law(logits, [1, 2], 3, sampling), found) < 1e-12
    assert len({id(offered) for offered in drafter.drafted_with}) > 10
