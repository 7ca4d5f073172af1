"""Sampling at its edges: what mutants of the module would change (docs/hardening.md)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from selfspec.errors import ConstraintError
from selfspec.sampling import Chance, distribution, score
from selfspec.types import Dense, Prefix, Sampling

NOWHERE = Prefix((), 0)
BACKENDS = pytest.mark.parametrize("backend", [np.asarray, torch.from_numpy])


@BACKENDS
def test_a_score_is_of_the_raw_law(backend):
    """Guards log probabilities: of the token asked for, of the likeliest in order, ties to the lower id."""
    logits = np.array([1.0, 3.0, 3.0, -math.inf, 2.0], dtype=np.float32)
    logs = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    found = score(backend(logits), 4, 3)
    assert found.logprob == pytest.approx(logs[4], abs=1e-12)
    assert [token for token, _ in found.top] == [1, 2, 4]
    assert [value for _, value in found.top] == pytest.approx(logs[[1, 2, 4]].tolist(), abs=1e-12)
    assert score(backend(logits), 1, 0).top == ()
    assert len(score(backend(logits), 1, 9).top) == 5


def test_a_score_of_large_logits_and_many_ties():
    """Guards against an overflow before the largest is taken off, and ties in whatever order a sort leaves them."""
    found = score(np.array([1000.0, 999.0]), 1, 1)
    assert found.logprob == pytest.approx(-1 - math.log1p(math.exp(-1)), abs=1e-9)
    tied = score(np.tile([0.0, 1.0, 0.5], 200), 0, 500).top
    assert [token for token, _ in tied] == [*range(1, 600, 3), *range(2, 600, 3), *range(0, 300, 3)]


def kept(probabilities, **options):
    """The tokens that cuts leave of a law."""
    law = distribution(np.log(np.asarray(probabilities)), Sampling(1.0, **options), NOWHERE)
    return [token for token in range(len(probabilities)) if law.probability(token) > 0]


def test_typical_sampling_looks_at_what_other_cuts_have_kept():
    """Guards the order of cuts: some that top-p left out are nearer to the entropy than the likeliest."""
    law = [0.3, *[0.03] * 20, *[0.029] * 8]
    assert kept(law, top_p=0.79) == [*range(21)]
    assert kept(law, top_p=0.79, typical_p=0.9) == [*range(21)]


def test_typical_sampling_keeps_unlikely_tokens_near_the_entropy():
    """Guards the bound of the sort: twice the entropy, where most of the mass is in unlikely tokens."""
    assert kept([0.19, *[0.009] * 90], typical_p=0.05) == [*range(1, 91)]


def test_what_holds_the_share_exactly_is_enough():
    """Guards the fewest tokens: where their mass is the share itself (exactly, here), no further one is kept."""
    assert kept([0.5, 0.25, 0.25], top_p=0.5) == [0]
    assert kept([0.5, 0.25, 0.125, 0.125], typical_p=0.25) == [1]


def test_a_share_that_roundings_never_reach_keeps_everything():
    """Guards typical_p just below 1: two sums differ by a rounding, and no token comes behind the last."""
    for seed in range(40):
        law = np.random.default_rng(seed).dirichlet(np.ones(32))
        assert kept(law, typical_p=1.0 - 2.0**-53) == [*range(32)]


class Zeros:
    """A generator whose numbers are the smallest there are."""

    def random(self):
        return 0.0


def test_what_has_no_probability_is_never_accepted():
    """Guards against a token that the target cannot say: a uniform number may be 0."""
    chance = Chance(0)
    chance._random = Zeros()
    assert chance.accept(0.0) is False
    assert chance.accept(1e-300) is True


def test_numbers_that_were_looked_at_ahead_are_the_next_ones():
    """Guards what a device decides: it sees the stream's next numbers, and those that it used are used up."""
    plain = Chance(3).ahead(6)
    chance, law = Chance(3), Dense.of(np.ones(10_000))
    assert chance.ahead(0) == ()
    assert chance.ahead(4) == plain[:4]
    assert chance.ahead(2) == plain[:2]
    chance.skip(3)
    assert chance.pick(law) == law.pick(plain[3])
    assert chance.pick(law) == law.pick(plain[4])
    assert chance.ahead(1) == (plain[5],)
    one, other = Chance(3), Chance(3)
    one.ahead(5)
    assert [one.pick(law) for _ in range(7)] == [other.pick(law) for _ in range(7)]


def test_numbers_are_those_of_philox():
    """Guards seeds from release to release: the stream is NumPy's, and the first where none is named."""
    for chance, key in ((Chance(3), 0), (Chance(3, 0), 0), (Chance(3, 5), 5)):
        stream = np.random.Generator(np.random.Philox(np.random.SeedSequence(3, spawn_key=(key,))))
        assert chance.ahead(4) == tuple(stream.random(4))


def test_noise_is_philox_at_the_position():
    """Guards seeds from release to release: the numbers are those of the published generator, 52 bits of each."""
    for position in (0, 7, 2**40):
        numbers = (
            np.random.Philox(np.random.SeedSequence(4, spawn_key=(2, 0))).advance(position << 64).random_raw(50)
        )
        want = [((int(number) >> 12) * 2 + 1) / 2**53 for number in numbers]
        assert Chance(4, 2).uniform(position, 50, np.arange(50)).tolist() == want
        assert Chance(4, 2).uniform(position, 50, np.array([49, 3])).tolist() == [want[49], want[3]]


class Extremes:
    """Bits of a generator that gives the smallest and the largest number."""

    state = None

    def random_raw(self, size):
        return np.array([0, 2**64 - 1], dtype=np.uint64)


def test_noise_is_never_0_nor_1():
    """Guards the logarithm of its logarithm."""
    chance = Chance(0)
    chance._noise = Extremes()
    assert chance.uniform(0, 2, np.arange(2)).tolist() == [2.0**-53, 1.0 - 2.0**-53]


class Nothing:
    """A grammar that allows no token."""

    def allowed(self, prefix):
        return np.zeros(3, dtype=bool)


def test_a_grammar_that_leaves_nothing_is_named_as_one():
    """Guards the words: users gave a grammar, not a constraint."""
    for more, words in (
        ({}, "under the grammar; relax"),
        ({"logit_bias": {1: 2.0}}, "logit_bias and the grammar;"),
    ):
        with pytest.raises(ConstraintError, match=words):
            distribution(np.zeros(3), Sampling(constraint=Nothing(), **more), NOWHERE)
