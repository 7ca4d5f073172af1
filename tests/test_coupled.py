"""Coupled sampling: noise fixed by seed, position and token; the law is p, and no draft changes a token."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from doubles import run, tiny_runtime

from selfspec import drafters
from selfspec.drafters.buffers import draft_buffers
from selfspec.measure.laws import p_value, transitions
from selfspec.measure.toy import MarkovRuntime
from selfspec.reference import oracle
from selfspec.sampling import Chance
from selfspec.types import Dense, OneHot, Sampling

PROMPT = [5, 17, 3, 3, 42, 5, 17]
COUPLED = Sampling(1.1, coupled=True)
REALISE = Chance.realise


def random_law(size=50, seed=0):
    return Dense(np.random.default_rng(seed).dirichlet(np.ones(size)))


def test_a_realised_law_is_the_law():
    """Guards the Gumbel-max: positions of one sequence, then many sequences."""
    law = random_law(6)
    chance = Chance(1)
    over_positions = [chance.realise(law, n).token for n in range(60_000)]
    over_streams = [Chance(1, i // 4).realise(law, i % 4).token for i in range(10_000)]
    for tokens in (over_positions, over_streams):
        counts = np.bincount(tokens, minlength=6)[None].astype(float)
        assert p_value(counts, law.probs[None]) > 1e-6


def test_noise_is_a_function_of_seed_stream_position_and_token():
    """Guards the key: no order of calls, cut or library matters, and each part of the key does."""
    law, chance = random_law(500), Chance(4, 2)
    tokens = [chance.realise(law, n).token for n in range(40)]
    assert [Chance(4, 2).realise(law, n).token for n in reversed(range(40))] == tokens[::-1]
    chance.pick(law)
    torches = Dense(torch.from_numpy(law.probs))
    assert [chance.realise(torches, n).token for n in range(40)] == tokens
    for other in (Chance(4, 3), Chance(5, 2), Chance(2, 4)):
        assert sum(other.realise(law, n).token == tokens[n] for n in range(40)) < 8
    assert len(set(tokens)) > 30  # not the same noise everywhere


def test_a_cut_that_keeps_the_token_keeps_the_choice():
    """Guards acceptance: top-k of draft and target may differ, the noise of a token may not."""
    law, chance = random_law(100), Chance(0)
    for position in range(200):
        token = chance.realise(law, position).token
        rest = law
        for removed in {0, 7, 50, 99} - {token}:
            rest = rest.minus(OneHot(removed))
        assert chance.realise(rest, position) == OneHot(token)
        assert chance.realise(law.minus(OneHot(token)), position).token != token


def test_certain_laws_need_no_noise():
    """Guards greedy decoding, on which coupling has no effect."""
    assert Chance(0).realise(OneHot(3), 5) == OneHot(3)
    runtime = tiny_runtime()
    greedy, coupled = (oracle(runtime, PROMPT, 9, Chance(0), s) for s in (Sampling(), Sampling(coupled=True)))
    assert greedy == coupled


def one_vector_for_all_positions(self, law, _position):
    return REALISE(self, law, 0)


def few_positions(self, law, position):
    return REALISE(self, law, position % 64)


def one_stream_for_all_texts(_self, law, position):
    return REALISE(Chance(0), law, position)


def one_number_for_all_tokens(_self, law, _position):
    return OneHot(int(np.argmax(law.probs)))


def law_of(sampling, texts):
    """How many transitions of the real loop with early exit were counted, and their p-value."""
    runtime = MarkovRuntime()
    drafter = drafters.create("early_exit", runtime.config, {"exit_layer": 2, "gamma": 1})
    counts = transitions(runtime, sampling, drafter, texts)
    return counts.sum(), p_value(counts, runtime.transition(sampling))


def test_coupled_output_has_the_targets_law():
    """Chi-square end to end on 200,000 transitions; the noise of a position is looked at by draft and target."""
    count, probability = law_of(Sampling(1.0, coupled=True), texts=400)
    assert count >= 200_000
    assert probability > 1e-6


@pytest.mark.parametrize(
    "broken",
    [one_vector_for_all_positions, few_positions, one_stream_for_all_texts, one_number_for_all_tokens],
)
def test_chi_square_catches_noise_that_is_used_twice(monkeypatch, broken):
    """The negative controls: noise must differ between positions, texts and tokens."""
    monkeypatch.setattr(Chance, "realise", broken)
    _, probability = law_of(Sampling(1.0, coupled=True), texts=24)
    assert probability < 1e-6


def texts_of(drafter, options, sampling=COUPLED):
    done = run(tiny_runtime(), [PROMPT, [1, 2]], drafter, options, new_tokens=24, sampling=sampling, seed=5)
    return [text.tokens for text in done]


@pytest.mark.parametrize("siblings", [0, 3])
@pytest.mark.parametrize("sampling", [COUPLED, Sampling(0.7, top_k=9, repetition_penalty=1.3, coupled=True)])
def test_drafts_change_no_token(siblings, sampling):
    """Guards the promise on the drafter that samples, and that drafts are accepted at all."""
    rounds = []
    options = {"exit_layer": 4, "gamma": 4, "siblings": siblings}
    plain = texts_of("plain", {}, sampling)
    assert texts_of("early_exit", options, sampling) == plain
    run(
        tiny_runtime(),
        [PROMPT],
        "early_exit",
        options,
        sampling=sampling,
        each_round=lambda c, t, r: rounds.append(r.commits[0].accepted),
    )
    assert sum(rounds) > len(rounds) / 3


def test_uncoupled_drafts_do_change_tokens():
    """The negative control of the promise: without coupling a seed gives the same law, not the same text."""
    free = Sampling(COUPLED.temperature)
    assert texts_of("early_exit", {"exit_layer": 4}, free) != texts_of("plain", {}, free)


def test_noise_that_counts_calls_is_caught(monkeypatch):
    """The negative control of the key: noise by call instead of position breaks the promise."""
    calls = iter(range(10**6))
    monkeypatch.setattr(Chance, "realise", lambda self, law, _position: REALISE(self, law, next(calls)))
    plain = texts_of("plain", {})
    calls = iter(range(10**6))
    assert texts_of("early_exit", {"exit_layer": 4}) != plain


def test_a_coupled_draft_keeps_no_laws():
    """Guards the memory claim: a coupled draft is deterministic."""
    from selfspec import drafters

    config = tiny_runtime().config
    drafter = drafters.create("early_exit", config, {"exit_layer": 2})
    assert draft_buffers(config, drafter, COUPLED, 8) == draft_buffers(config, drafter, Sampling(), 8)
