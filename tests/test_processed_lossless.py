"""Losslessness with penalties, bans, forced tokens and user callables: each draft row has its own prefix."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import run
from lossless_table import CHAINS, NEW, PROMPT, drafter
from wild_drafters import SIZE

from selfspec import drafters
from selfspec.context import Text
from selfspec.measure.laws import loop_law
from selfspec.measure.toy import MarkovRuntime
from selfspec.reference import oracle
from selfspec.sampling import Chance
from selfspec.types import Prefix, Sampling


@pytest.fixture(scope="module")
def runtime() -> MarkovRuntime:
    """Ten times faster than a transformer, and the loop around it is the same."""
    return MarkovRuntime(SIZE, num_layers=5, seed=1)


def all_right(runtime, sampling, plain):
    """The text with a draft of eight tokens that plain decoding has."""
    options = drafter("right", runtime, [PROMPT + plain], 8)
    (text,) = run(runtime, [PROMPT], *options, new_tokens=NEW, sampling=sampling)
    return text.tokens[len(PROMPT) :]


def test_each_row_of_a_draft_is_processed_with_its_own_prefix(runtime, monkeypatch):
    """Guards against one prefix for the whole block (LayerSkip): penalties and bans would miss the draft itself.

    The second half is the negative control: with that bug, these very settings give another text.
    """
    free = oracle(runtime, PROMPT, NEW, Chance(0))
    late = max(i for i in range(2, 8) if free[i] not in free[:i])  # an end-of-text token that is allowed there
    cases = {}
    for options in (
        {"no_repeat_ngram_size": 1},
        {"repetition_penalty": 3.0},
        {"frequency_penalty": 2.0},
        {"presence_penalty": 2.0},
        {"min_tokens": late, "eos_token_ids": [free[late]]},
        {"forced_tokens": {3: 50, 9: 51}},
    ):
        sampling = Sampling(**options)
        cases[sampling] = plain = oracle(runtime, PROMPT, NEW, Chance(0), sampling)
        assert all_right(runtime, sampling, plain) == plain

    monkeypatch.setattr(Text, "prefix", lambda self, _draft: Prefix(list(self.tokens), self.prompt_length))
    for sampling, plain in cases.items():
        assert all_right(runtime, sampling, plain) != plain, sampling.changed


class Recorder:
    """A callable with state: what it does depends on how often it was called, and it keeps every call."""

    def __init__(self):
        self.calls = []

    def __call__(self, tokens, logits):
        self.calls.append(tuple(tokens))
        logits = logits.copy()
        logits[int(logits.argmax()) if len(self.calls) % 3 == 0 else tokens[-1]] -= 2.0
        return logits


@pytest.mark.parametrize("gamma", range(9))
@pytest.mark.parametrize("name", CHAINS)
def test_a_stateful_callable_sees_exactly_the_calls_of_plain_decoding(runtime, name, gamma):
    """Guards lazy rows and the drafter's law: no call for rejected rows, for drafting, or after the end."""

    def generated(ends):
        seen = Recorder()
        sampling = Sampling(repetition_penalty=1.3, processors=(seen,))
        options = drafter(name, runtime, [PROMPT + plain], gamma)
        (text,) = run(runtime, [PROMPT], *options, new_tokens=NEW, sampling=sampling, ends=ends)
        return text.tokens[len(PROMPT) :], text.finish_reason, seen.calls

    free = Recorder()
    plain = oracle(runtime, PROMPT, NEW, Chance(0), Sampling(repetition_penalty=1.3, processors=(free,)))
    assert free.calls == [(*PROMPT, *plain[:i]) for i in range(NEW)]
    assert generated(lambda _: False) == (plain, "length", free.calls)
    for stop in (2, 7, 12):
        new = plain[: plain.index(plain[stop]) + 1]
        want = new, "stop", free.calls[: len(new)]
        assert generated(lambda t, e=new[-1]: t == e) == want


@pytest.mark.parametrize("exit_layer", [1, 3])
def test_a_sampled_draft_never_calls_the_users_callables(runtime, exit_layer):
    """Guards the same where drafts are sampled: one call per committed token, in order, whatever was drafted."""
    seen = Recorder()
    sampling = Sampling(1.0, top_k=20, presence_penalty=1.0, processors=(seen,))
    options = {"exit_layer": exit_layer, "gamma": 5}
    (text,) = run(runtime, [PROMPT], "early_exit", options, new_tokens=40, sampling=sampling)
    assert seen.calls == [tuple(text.tokens[:n]) for n in range(len(PROMPT), len(text.tokens))]


def law_of(runtime, drafter, options, sampling, new=4):
    """P(new tokens) of the real loop, by replaying every random decision that it can make."""
    return loop_law(runtime, ([1], new), sampling, drafters.create(drafter, runtime.config, options))


def never_the_same_twice(tokens, logits):
    logits = logits.copy()
    logits[tokens[-1]] = -np.inf
    return logits


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 3.0, "frequency_penalty": 1.5, "top_k": 2},
        {"no_repeat_ngram_size": 2, "top_k": 2},
        {"processors": (never_the_same_twice,), "top_p": 0.85},
        {"forced_tokens": {1: 2}, "begin_suppress_tokens": [0], "typical_p": 0.6},
        {"bad_words": [(1, 2), (3,)], "logit_bias": {0: 1.5}, "min_p": 0.2},
    ],
    ids="+".join,
)
def test_sampled_drafts_have_the_law_of_plain_decoding(options):
    """Guards the law exactly, through the real loop, also where the drafter leaves the callables out."""
    runtime, sampling = MarkovRuntime(), Sampling(1.0, **options)
    plain = law_of(runtime, "plain", {}, sampling)
    law = law_of(runtime, "early_exit", {"exit_layer": 2, "gamma": 2}, sampling)
    assert len(plain) > 6
    assert set(law) == set(plain)
    assert all(law[key] == pytest.approx(plain[key], abs=1e-12) for key in plain)


def test_a_draft_ends_where_its_constraints_contradict_each_other(runtime):
    """Guards an error that plain decoding does not have: the draft ran past the end, the text did not."""
    sampling = Sampling(forced_tokens={5: 50}, suppress_tokens=[50])
    plain = oracle(runtime, PROMPT, 5, Chance(0), sampling)
    for name in CHAINS:
        options = drafter(name, runtime, [PROMPT + plain], 8)
        (text,) = run(runtime, [PROMPT], *options, new_tokens=NEW, sampling=sampling, ends=lambda t: t == plain[3])
        assert text.tokens[len(PROMPT) :] == plain[: plain.index(plain[3]) + 1]
