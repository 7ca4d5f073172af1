"""Logits to probabilities, in NumPy and torch alike, and against transformers' own warpers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from selfspec.errors import ModelError, OptionError
from selfspec.sampling import Chance, distribution, top_probability
from selfspec.types import Dense, OneHot, Prefix, Sampling

NOWHERE = Prefix((), 0)
SETTINGS = [(0.3, 0, 1.0), (1.0, 5, 1.0), (1.0, 0, 0.8), (1.5, 7, 0.6), (0.7, 1, 0.9), (1.0, 500, 0.05)]


@pytest.mark.parametrize("backend", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SETTINGS)
def test_same_probabilities_as_transformers(backend, temperature, top_k, top_p):
    """Guards order and semantics of the warpers: a text sampled here has the law that `generate` gives it."""
    logits = np.random.default_rng(3).normal(size=50) * 3
    scores = torch.from_numpy(logits)[None]
    for warper in (
        TemperatureLogitsWarper(temperature),
        *([TopKLogitsWarper(top_k)] if top_k else []),
        *([TopPLogitsWarper(top_p)] if top_p < 1 else []),
    ):
        scores = warper(None, scores)
    law = distribution(backend(logits.copy()), Sampling(temperature, top_k, top_p), NOWHERE)
    got = [law.probability(token) for token in range(50)]
    assert got == pytest.approx(torch.softmax(scores[0], -1).tolist(), abs=1e-12)


@pytest.mark.parametrize("backend", [np.asarray, torch.from_numpy])
def test_greedy_takes_the_first_of_equal_logits(backend):
    """Guards the tie-break: plain and speculative decoding must break ties alike."""
    assert distribution(backend(np.array([1.0, 3.0, 3.0])), Sampling(), NOWHERE) == OneHot(1)


def test_ties_at_the_cut_are_kept():
    """Guards against an arbitrary choice among equal logits, which would differ between backends."""
    law = distribution(np.array([2.0, 1.0, 1.0, 0.0]), Sampling(1.0, top_k=2), NOWHERE)
    assert [law.probability(t) > 0 for t in range(4)] == [True, True, True, False]


@pytest.mark.parametrize("bad", [np.array([0.0, np.nan, 1.0]), np.array([np.inf, 0.0])])
def test_non_finite_logits_are_an_error(bad):
    """Guards against sampling noise from a damaged model."""
    with pytest.raises(ModelError, match="largest logit"):
        distribution(bad, Sampling(), NOWHERE)


def test_processors_run_first_and_see_the_prefix():
    """Guards that a user's callable gets the tokens so far and shapes the law."""
    seen = []

    def ban(prefix, logits):
        seen.append(list(prefix))
        out = logits.copy()
        out[prefix[-1]] = -np.inf
        return out

    law = distribution(np.array([0.0, 5.0, 1.0]), Sampling(processors=(ban,)), Prefix([7, 1], 1))
    assert law == OneHot(2)
    assert seen == [[7, 1]]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": "hot"}, "a number"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 2.5}, "an integer"),
        ({"top_k": True}, "an integer"),
    ],
)
def test_wrong_values_are_refused(options, word):
    """Guards against values that would quietly mean something else."""
    with pytest.raises(OptionError, match=word):
        Sampling(**options)


@pytest.mark.parametrize("backend", [np.asarray, torch.from_numpy])
def test_pick_inverts_the_cumulative_distribution(backend):
    """Guards the edges: no token of probability zero is ever picked, not even at the ends of [0, 1)."""
    law = Dense(backend(np.array([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])))
    picks = [law.pick(u) for u in (0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-53)]
    assert picks == [1, 1, 3, 3, 4, 4]


def test_pick_never_returns_a_token_without_mass(monkeypatch):
    """Guards parallel sums, which need not rise monotonically: a GPU's may point at a token of mass zero."""
    law = Dense(np.array([0.4, 0.0, 0.6]))
    monkeypatch.setattr("array_api_compat.numpy.cumulative_sum", lambda _: np.array([0.4, 0.5, 1.0]))
    assert law.pick(0.45) == 2


def test_chance_is_reproducible_and_streams_differ():
    """Guards seeds: one (seed, stream) is one sequence of numbers, other streams are independent of it."""
    law = Dense.of(np.ones(1000))
    draws = [
        [Chance(seed, stream).pick(law) for _ in range(1)] for seed, stream in ((1, 0), (1, 0), (1, 1), (2, 0))
    ]
    assert draws[0] == draws[1]
    assert len({tuple(d) for d in draws}) == 3


def test_a_one_hot_draws_nothing():
    """Guards greedy decoding: it must not depend on, or move, the random stream."""
    used, fresh = Chance(5), Chance(5)
    used.pick(OneHot(3))
    law = Dense.of(np.ones(10_000))
    assert used.pick(law) == fresh.pick(law)


@pytest.mark.parametrize(("sure", "nearly"), [(1.0, 1.0 - 2.0**-53), (0.0, 2.0**-60)])
def test_a_rounding_does_not_shift_the_stream(sure, nearly):
    """Guards equal seeds across batches: a ratio of 1 is a rounding less where other rows share the pass."""
    one, other = Chance(5), Chance(5)
    assert one.accept(sure) == other.accept(nearly) == (sure == 1.0)
    law = Dense.of(np.ones(10_000))
    assert one.pick(law) == other.pick(law)


def test_top_probability_is_that_of_the_raw_softmax():
    """Guards the confidence: it ignores temperature and cuts."""
    logits = np.array([1.0, 3.0, 2.0], dtype=np.float32)
    want = np.exp(logits[1]) / np.exp(logits).sum()
    assert top_probability(logits) == pytest.approx(want, rel=1e-6)
