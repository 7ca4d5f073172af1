"""Every processor and warper, row by row, against transformers' own; and what is refused."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch
from constraints import PROCESSORS, SIZE, WARPERS, references, settings, some, warpers

from selfspec.errors import ConstraintError, ModelError, OptionError
from selfspec.processors import ORDER, process
from selfspec.sampling import distribution
from selfspec.types import Prefix, Sampling

BACKENDS = [(library, dtype) for library in ("numpy", "torch") for dtype in ("float32", "float64")]


def rows(random, dtype, count=12):
    """Random logits, and prefixes over few enough tokens that everything repeats."""
    for _ in range(count):
        size = int(random.integers(1, 40))
        tokens = [int(t) for t in random.integers(0, random.choice([4, SIZE]), size=size)]
        prompt = int(random.choice([size, random.integers(1, size + 1)]))
        text = tokens[: int(random.integers(prompt, size + 1))]
        logits = (random.normal(size=SIZE) * 3).astype(dtype)
        yield logits, Prefix(text, prompt, tokens[len(text) :])


def native(logits, library):
    return logits.copy() if library == "numpy" else torch.from_numpy(logits.copy())


def theirs(logits, sampling, prefix):
    scores, tokens = torch.from_numpy(logits.copy())[None], torch.tensor([prefix.tokens])
    for processor in references(sampling, prefix):
        scores = processor(tokens, scores)
    return scores


def check(logits, sampling, prefix, library):
    given = native(logits, library)
    got = process(given, sampling, prefix)
    assert np.array_equal(np.asarray(given), logits), "the given logits were changed"
    assert got.dtype == given.dtype
    np.testing.assert_allclose(np.asarray(got), theirs(logits, sampling, prefix)[0].numpy(), rtol=3e-7)


@pytest.mark.parametrize(("library", "dtype"), BACKENDS)
@pytest.mark.parametrize("name", PROCESSORS)
def test_alone_as_in_transformers(name, library, dtype):
    """Guards the semantics of one processor: what it counts, what it bans, and when it begins."""
    random = np.random.default_rng([1, *name.encode()])
    for logits, prefix in rows(random, dtype):
        check(logits, Sampling(**settings(random, [name])), prefix, library)


@pytest.mark.parametrize("name", PROCESSORS)
def test_every_setting_of_these_tests_changes_something(name):
    """Guards the tests: settings that do nothing would compare nothing."""
    random = np.random.default_rng([2, *name.encode()])
    changed = 0
    for logits, prefix in rows(random, "float64", count=60):
        sampling = Sampling(**settings(random, [name]))
        changed += not np.array_equal(process(logits, sampling, prefix), logits)
    assert changed >= 6


@pytest.mark.parametrize(("library", "dtype"), BACKENDS)
@pytest.mark.parametrize("number", range(30))
def test_together_as_in_transformers(number, library, dtype):
    """Guards the order: penalties before bans, forced tokens before suppressed ones, cuts last."""
    random = np.random.default_rng([3, number])
    names = ["temperature", *some(random, PROCESSORS), *some(random, WARPERS)]
    for logits, prefix in rows(random, dtype, count=6):
        sampling = Sampling(**settings(random, names))
        check(logits, sampling, prefix, library)
        law = distribution(native(logits, library), sampling, prefix)
        scores = theirs(logits, sampling, prefix).double()
        for warper in warpers(sampling):
            scores = warper(None, scores)
        want = torch.softmax(scores[0], -1).numpy()
        np.testing.assert_allclose(np.asarray(law.probs), want, rtol=1e-5, atol=1e-12)
        greedy = Sampling(**settings(random, names) | {"temperature": 0.0})
        token = distribution(native(logits, library), greedy, prefix).token
        assert token == int(theirs(logits, greedy, prefix)[0].argmax())


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("name", WARPERS)
@pytest.mark.parametrize("size", [5, 997, 20_000])
def test_cuts_as_in_transformers(name, size, library):
    """Guards the short cuts of the cuts: what is left out before sorting is never something that is kept."""
    random = np.random.default_rng([4, size, *name.encode()])
    for scale in (0.01, 1.0, 5.0):
        value = WARPERS[name](random)
        sampling = Sampling(**{"temperature": 1.0, name: min(value, size) if name == "top_k" else value})
        logits = random.normal(size=size) * scale
        scores = torch.from_numpy(logits)[None]
        for warper in warpers(sampling):
            scores = warper(None, scores)
        law = distribution(native(logits, library), sampling, Prefix((), 0))
        np.testing.assert_allclose(np.asarray(law.probs), torch.softmax(scores[0], -1).numpy(), rtol=1e-8)


def test_user_processors_come_after_all_others_and_before_the_cuts():
    """Guards transformers' order: its own processors, the custom ones, then the warpers."""
    seen = []

    def first(tokens, logits):
        seen.append((tokens, logits.copy()))
        return logits + np.array([0.0, 9.0, 0.0, 0.0])

    def second(_tokens, logits):
        seen.append(logits.copy())
        return logits

    sampling = Sampling(1.0, top_k=1, processors=(first, second), suppress_tokens=[3])
    law = distribution(np.array([2.0, 0.0, 1.0, 9.0]), sampling, Prefix([5], 1, [6]))
    assert seen[0][0] == (5, 6)
    assert list(seen[0][1]) == [2.0, 0.0, 1.0, -np.inf]
    assert list(seen[1]) == [2.0, 9.0, 1.0, -np.inf]
    assert law.probability(1) == 1.0


def test_every_field_of_sampling_is_applied():
    """Guards against an option that is accepted and ignored."""
    known = {*ORDER, *WARPERS, "eos_token_ids", "coupled"}
    assert {f.name for f in fields(Sampling)} == known


def test_a_row_without_processors_builds_no_prefix():
    """Guards plain decoding's speed: a long text is not copied for nobody."""

    class Unread(list):
        def __iter__(self):
            raise AssertionError("read")

    distribution(np.array([0.0, 1.0]), Sampling(0.5, top_k=1), Prefix(Unread([1, 2]), 1))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_contradictory_constraints_are_named(temperature):
    """Guards the error: the user's request is at fault, not the weights, and it says which parts of it."""
    sampling = Sampling(temperature, forced_tokens={1: 2}, suppress_tokens=[2], repetition_penalty=1.1)
    with pytest.raises(
        ConstraintError, match="new token 2 under repetition_penalty and forced_tokens and suppress_"
    ):
        distribution(np.zeros(4), sampling, Prefix([1], 1, [1]))
    distribution(np.zeros(4), sampling, Prefix([1], 1))


def test_a_users_nan_is_not_blamed_on_the_weights():
    """Guards the same for callables, and damaged weights still are."""
    sampling = Sampling(processors=[lambda _tokens, logits: logits * np.nan])
    with pytest.raises(OptionError, match="nan after processors"):
        distribution(np.zeros(4), sampling, Prefix([1], 1))
    with pytest.raises(ModelError, match="weights"):
        distribution(np.array([np.nan, 1.0]), sampling, Prefix([1], 1))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda logits: None, "NoneType"),
        (lambda logits: logits.tolist(), "list"),
        (lambda logits: logits[:7], r"shape \(7,\)"),
        (lambda logits: logits[None], r"shape \(1, 61\)"),
        (torch.as_tensor, "Tensor"),
    ],
)
def test_a_processor_that_returns_something_else_is_one_clear_error(made, words):
    """Guards a forgotten `return`, and fewer logits, which were taken for a smaller vocabulary."""
    sampling = Sampling(processors=[lambda tokens, logits: made(logits)])
    with pytest.raises(OptionError, match=f"<lambda> returned .*{words}.* ndarray of shape"):
        process(np.zeros(61), sampling, Prefix([1], 1))


def test_settings_are_hashable_and_do_not_follow_their_sources():
    """Guards against a request that changes while it runs."""
    bias, words = {5: 1.0, 2: -1}, [[1, 2]]
    sampling = Sampling(logit_bias=bias, bad_words=words, suppress_tokens=np.array([3]))
    bias[9] = 1.0
    words[0].append(3)
    assert sampling.logit_bias == ((2, -1.0), (5, 1.0))
    assert sampling.bad_words == ((1, 2),)
    assert sampling == Sampling(logit_bias=[(5, 1), (2, -1)], bad_words=((1, 2),), suppress_tokens=(3,))
    assert len({sampling, Sampling(logit_bias={5: 1, 2: -1}, bad_words=[[1, 2]], suppress_tokens=[3])}) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"min_p": 1.5}, "min_p is 1.5; it must be 0"),
        ({"min_p": float("nan")}, "min_p is nan"),
        ({"typical_p": 0.0}, "typical_p is 0.0"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; it must be a positive number"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty is inf"),
        ({"presence_penalty": 3}, "presence_penalty is 3; it must be -2 to 2"),
        ({"frequency_penalty": "1"}, "frequency_penalty is '1'; it must be a number"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size is -1"),
        ({"no_repeat_ngram_size": 1.5}, "an integer"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"min_length": True}, "min_length is True"),
        ({"logit_bias": {5: float("inf")}}, "logit_bias has the bias inf"),
        ({"logit_bias": {5: float("nan")}}, "logit_bias has the bias nan"),
        ({"logit_bias": {5: "1"}}, "logit_bias has the bias '1'"),
        ({"logit_bias": {"5": 1.0}}, "logit_bias has '5'; it must be 0 or a positive integer"),
        ({"logit_bias": [(5, 1.0), (5, 2.0)]}, "logit_bias has 5 twice"),
        ({"logit_bias": [5, 1.0]}, "logit_bias has 5; it must be a mapping"),
        ({"logit_bias": 5}, "logit_bias is 5; it must be a list"),
        ({"bad_words": [[]]}, "bad_words has an empty word"),
        ({"bad_words": [5]}, "bad_words is 5; it must be a list"),
        ({"bad_words": ["no"]}, "bad_words is 'no'"),
        ({"forced_tokens": {-1: 5}}, "forced_tokens has -1"),
        ({"forced_tokens": {0: 2.5}}, "forced_tokens has 2.5"),
        ({"suppress_tokens": [True]}, "suppress_tokens has True"),
        ({"suppress_tokens": (t for t in (1, 2))}, "it must be a list"),
        ({"begin_suppress_tokens": [-3]}, "begin_suppress_tokens has -3"),
        ({"processors": [5]}, "processors has 5; it must be a callable"),
    ],
)
def test_wrong_values_are_one_clear_line(options, words):
    """Guards against values that would quietly mean something else."""
    with pytest.raises(OptionError, match=words) as caught:
        Sampling(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"logit_bias": {61: 1.0}},
        {"bad_words": [[3, 61]]},
        {"forced_tokens": {3: 61}},
        {"suppress_tokens": [61]},
        {"begin_suppress_tokens": [61]},
    ],
)
def test_tokens_outside_the_vocabulary_are_refused(options):
    """Guards against an index error in mid-text."""
    with pytest.raises(OptionError, match=f"{next(iter(options))} has token 61; this model's tokens are 0 to 60"):
        Sampling(**options).require_vocabulary(61)
    Sampling(**options).require_vocabulary(62)
