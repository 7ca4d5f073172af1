"""One test per bug of published speculative decoders, where the loop, sampling, drafts and cache are concerned.

docs/bugs.md lists them all, with the tests elsewhere that guard the others. Where it is cheap, a test puts the
published bug into our code afterwards and must see it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from doubles import run, tiny_runtime
from lossless_table import NEW, PROMPT, check_cache
from torch.utils._python_dispatch import TorchDispatchMode
from wild_drafters import script

from selfspec import decode as loop
from selfspec import drafters
from selfspec.context import Context
from selfspec.drafters import steps
from selfspec.drafters.early_exit import EarlyExit
from selfspec.measure.laws import loop_law, p_value, total_variation, transitions
from selfspec.measure.toy import MarkovRuntime
from selfspec.reference import oracle
from selfspec.sampling import Chance, distribution
from selfspec.types import Dense, Draft, Sampling, Verdict

WARPED = Sampling(0.7, top_k=2)
EARLY_EXIT = ("early_exit", {"exit_layer": 2, "gamma": 2})


def distance(drafter=EARLY_EXIT, sampling=WARPED):
    """Total variation between the texts of speculative and of plain decoding, by enumeration of the real loop."""
    runtime = MarkovRuntime()
    laws = (
        loop_law(runtime, ([1], 3), sampling, drafters.create(name, runtime.config, options))
        for name, options in (("plain", {}), drafter)
    )
    return total_variation(*laws)


def judge_by(monkeypatch, verify):
    """Put a verifier in the place of those of chains."""
    for rule in ("verify_chain", "verify_block"):
        monkeypatch.setattr(loop, rule, verify)


# -- the law of what comes out ----------------------------------------------------------------------------


def test_the_bonus_token_of_a_fully_accepted_draft_has_the_cut_law_of_its_row(monkeypatch):
    """SWIFT and ConfLayers draw it from the raw softmax, without temperature and top-p; EAGLE #215 likewise."""
    assert distance() < 1e-12
    target = loop._target

    def raw_at_the_end(text, draft, rows):
        whole = target(text, draft, rows)
        return lambda row: whole(row) if row < len(draft) else distribution(rows[row], Sampling(1.0), None)

    monkeypatch.setattr(loop, "_target", raw_at_the_end)
    assert distance() > 1e-3


def test_a_residual_is_normalised_and_not_put_through_a_softmax(monkeypatch):
    """Transformers PR #28508: the softmax gave every token some mass, those the target excludes too."""
    assert distance() < 1e-12

    def softmaxed(self, other, weight=1.0):
        return Dense.of(np.exp(self._above(other, weight)))

    monkeypatch.setattr(Dense, "minus", softmaxed)
    assert distance() > 1e-3


@pytest.mark.parametrize("bug", ["drafted greedily, scored as sampled", "sampled when cut, scored as uncut"])
def test_a_draft_is_scored_with_the_law_that_it_was_drawn_from(monkeypatch, bug):
    """Draft & Verify and transformers #32867 draft the arg-max; transformers #47932 cut after stating q."""
    assert distance() < 1e-12
    drawn = steps._drawn

    def misstated(law, chance, count, first):
        if bug.startswith("drafted greedily"):
            return [int(np.argmax(law.probs))], [law]
        tokens, laws = drawn(law, chance, count, first)
        return tokens, [Dense.of(law.probs + 0.2) for law in laws]

    monkeypatch.setattr(steps, "_drawn", misstated)
    assert distance() > 1e-3


def test_a_wild_guess_changes_nothing_whether_it_is_the_targets_best_token_or_not(monkeypatch):
    """Saguaro (tanishqkumar/ssd): a guess after a cache miss is accepted when it is the target's arg-max."""

    def worst():
        scripts = [lambda tokens, gamma, guess=guess: [guess] * gamma for guess in range(4)]
        return max(distance(("scripted", {"script": script, "gamma": 2})) for script in scripts)

    assert worst() < 1e-12

    def greedy(draft, target, dice, ends):
        for i, token in enumerate(draft.tokens):
            law = target(i)
            if token != int(np.argmax(law.probs)):
                return Verdict(i, dice.pick(law))
        return Verdict(len(draft), dice.pick(target(len(draft))))

    judge_by(monkeypatch, greedy)
    assert worst() > 1e-3


def test_no_random_number_decides_twice(monkeypatch):
    """Draft & Verify tests the acceptance with the number that already stopped the draft (chi-square, 1e-6)."""
    sampling, runtime = Sampling(1.0), MarkovRuntime()

    def chance_of_it():
        exits = drafters.create(EARLY_EXIT[0], runtime.config, EARLY_EXIT[1])
        return p_value(transitions(runtime, sampling, exits, texts=12), runtime.transition(sampling))

    assert chance_of_it() > 1e-6
    pick = Chance.pick

    class Remembering:
        def __init__(self, random):
            self._random, self.last = random, 0.5

        def random(self):
            self.last = self._random.random()
            return self.last

    def remembered(self, *law):
        if not isinstance(self._random, Remembering):
            self._random = Remembering(self._random)
        return pick(self, *law)

    monkeypatch.setattr(Chance, "pick", remembered)
    monkeypatch.setattr(Chance, "accept", lambda self, probability: self._random.last < probability)
    assert chance_of_it() < 1e-6


# -- drafts -----------------------------------------------------------------------------------------------


def test_an_early_exit_drafts_nothing_past_an_end_of_text(monkeypatch):
    """Transformers #47912, LayerSkip's break: what follows an end in a draft is work for nothing, or output."""
    seen: list[Draft] = []
    propose = EarlyExit.propose

    def recorded(self, context, texts, gammas):
        drafts = propose(self, context, texts, gammas)
        seen.extend(drafts)
        return drafts

    monkeypatch.setattr(EarlyExit, "propose", recorded)
    runtime = MarkovRuntime()
    runtime.config = replace(runtime.config, eos_token_ids=(2,))
    run(runtime, [[i % 4] for i in range(9)], "early_exit", {"exit_layer": 2, "gamma": 6}, sampling=Sampling(1.0))
    assert any(2 in draft.tokens[:5] for draft in seen)
    assert all(2 not in draft.tokens[:-1] for draft in seen)


def test_an_error_while_drafting_leaves_the_model_whole(monkeypatch):
    """Transformers' assistant_early_exit: after one failed draft the model kept the depth of the exit for good."""

    class Broken(Exception):
        pass

    def outcome(runtime):
        with pytest.raises(Broken):
            run(runtime, [PROMPT], "early_exit", {"exit_layer": 2}, new_tokens=NEW)
        try:
            (text,) = run(runtime, [PROMPT], new_tokens=NEW)
        except (AssertionError, IndexError):
            return None
        return text.tokens[len(PROMPT) :]

    def logits_fail_once(runtime):
        logits, calls = runtime.logits, []

        def failing(hidden):
            calls.append(hidden)
            if len(calls) == 4:
                raise Broken
            return logits(hidden)

        runtime.logits = failing
        return runtime

    expected = oracle(tiny_runtime(), PROMPT, NEW, Chance(0))
    assert outcome(logits_fail_once(tiny_runtime())) == expected

    def shortened(self, context, texts, gammas):
        context.runtime.config = replace(context.runtime.config, num_layers=2)
        raise Broken

    monkeypatch.setattr(EarlyExit, "propose", shortened)
    assert outcome(tiny_runtime()) != expected


# -- the cache --------------------------------------------------------------------------------------------


def text_and_acceptance(runtime, drafter, options, **more):
    commits = []

    def each_round(context, texts, round_):
        check_cache(context, texts, round_)
        commits.extend(round_.commits)

    (text,) = run(runtime, [PROMPT], drafter, options, new_tokens=NEW, each_round=each_round, **more)
    return text.tokens[len(PROMPT) :], commits


def test_a_rejection_costs_no_cached_token_and_no_later_acceptance(monkeypatch):
    """Aprender PR #2014: a roll-back emptied the cache, so drafts became wrong and the text damaged."""
    runtime = tiny_runtime()
    expected = oracle(runtime, PROMPT, NEW, Chance(0))
    options = {"script": script("mixed", [PROMPT + expected]), "gamma": 4}
    tokens, commits = text_and_acceptance(runtime, "scripted", options)
    assert tokens == expected
    rejected = [commit.accepted < commit.drafted for commit in commits]
    whole = [commit.accepted == commit.drafted > 0 for commit in commits]
    assert any(before and after for before, after in zip(rejected, whole[1:], strict=False))
    commit = Context.commit

    def emptied(self, text, draft, verdict):
        done = commit(self, text, draft, verdict)
        if verdict.accepted < len(draft):
            for stored in (*self.cache.keys, *self.cache.values):
                stored[text.slot] = 0.0
        return done

    monkeypatch.setattr(Context, "commit", emptied)
    with pytest.raises(AssertionError):
        text_and_acceptance(runtime, "scripted", options)


def test_a_fully_accepted_draft_leaves_no_gap_in_the_cache(monkeypatch):
    """Drafts with a cache of their own (Kangaroo, gpt-fast) lack the last token's keys when all were accepted."""
    runtime = tiny_runtime()
    for part in ("self_attn.o_proj", "mlp.down_proj"):
        runtime.weights[
            f"model.layers.4.{part}.weight"
        ].zero_()  # the last layer adds nothing: an exit before it is always right
    expected = oracle(runtime, PROMPT, NEW, Chance(0))
    options = {"exit_layer": 4, "gamma": 3}
    tokens, commits = text_and_acceptance(runtime, "early_exit", options)
    assert tokens == expected
    assert all(commit.accepted == commit.drafted for commit in commits)
    commit = Context.commit

    def gapped(self, text, draft, verdict):
        done = commit(self, text, draft, verdict)
        if verdict.accepted == len(draft) > 0:
            for stored in (*self.cache.keys[:4], *self.cache.values[:4]):
                stored[text.slot, text.cached - 1] = 0.0
        return done

    monkeypatch.setattr(Context, "commit", gapped)
    with pytest.raises(AssertionError):
        text_and_acceptance(runtime, "early_exit", options)


class NewMemory(TorchDispatchMode):
    """The largest tensor, in numbers, that an operation makes; views of what is there cost nothing."""

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        there = {t.untyped_storage().data_ptr() for t in args if isinstance(t, torch.Tensor)}
        for made in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() not in there:
                self.largest = max(self.largest, made.numel())
        return out


def test_a_round_copies_no_cache(monkeypatch):
    """SWIFT, ConfLayers and CAS-Spec clone all keys and values every round: the longer the text, the dearer."""
    runtime = tiny_runtime()
    length = 1000  # of the cache: one layer's keys are far more numbers than anything a round needs

    def largest(drafter):
        memory = NewMemory()

        def each_round(_context, _texts, round_):
            memory.largest *= round_.index > 0  # the prefill, and the cache itself

        with memory:
            run(runtime, [PROMPT, [1]], *drafter, new_tokens=[8, length], each_round=each_round, ends=stop)
        return memory.largest

    counts: list[int] = []

    def stop(token):
        counts.append(token)
        return len(counts) % 16 == 0

    keys = 2 * length * 2 * 8
    for drafter in (EARLY_EXIT, ("ngram", {"adaptive": False, "siblings": 2})):
        counts.clear()
        assert 0 < largest(drafter) < keys / 4
    score = Context.score

    def cloning(self, texts, drafts):
        kept = [stored.clone() for stored in self.cache.keys]
        assert kept
        return score(self, texts, drafts)

    monkeypatch.setattr(Context, "score", cloning)
    counts.clear()
    assert largest(EARLY_EXIT) >= keys
