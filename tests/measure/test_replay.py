"""Replayed rounds against the loop itself, and against the enumeration of everything that chance decides."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from doubles import run, tiny_core, tiny_runtime

from selfspec.measure.agreement import measure_agreement
from selfspec.measure.dice import AllOutcomes
from selfspec.measure.replay import replay, survival
from selfspec.rounds import Stats
from selfspec.types import Dense, Draft, Sampling
from selfspec.verify import verify_block, verify_chain

PROMPTS = [[3, 1, 4], [15, 9, 2, 6], [5], [7, 8, 9, 10, 11]]


def counted(runtime, prompt, k, gamma, **more):
    """The text and the sums of the real loop."""
    stats = Stats()
    (text,) = run(
        runtime,
        [prompt],
        "early_exit",
        {"exit_layer": k, "gamma": gamma},
        each_round=lambda _, __, round_: stats.add(round_),
        **more,
    )
    return text, stats


@pytest.mark.parametrize("make", [tiny_runtime, lambda: tiny_core("fp32")], ids=["torch", "cpu"])
@pytest.mark.parametrize("gamma", [1, 3, 5])
def test_greedy_replay_is_the_loop(make, gamma):
    """Guards E[τ]: rounds, and what they accept at every position, are those of the loop, to the last one."""
    runtime, accepted = make(), 0
    for prompt in PROMPTS:
        for k in (1, 3, 4):
            text, stats = counted(runtime, prompt, k, gamma)
            answer = text.tokens[len(prompt) :]
            ratios = measure_agreement(runtime, prompt, answer, [k], Sampling()).ratios
            found = replay(ratios, gamma, has_ended=False)
            assert found.rounds.sum() == stats.rounds
            assert found.rounds[0] @ np.arange(gamma + 1) == stats.drafted
            by_position = found.accepted[0].tolist()
            assert [a for a in by_position if a] == [a for a in stats.accepted_per_position if a]
            accepted += stats.accepted
    assert accepted > 20, "drafts must be accepted now and then, or nothing was compared"


def test_an_answer_that_ended_itself_leaves_no_place_to_a_bonus_token():
    """Guards the last round: it may accept the end-of-text token, and nothing follows."""
    runtime, cut = tiny_runtime(), 0
    for prompt, k, gamma in product(PROMPTS[:2], (3, 4), (1, 4)):
        (whole,) = run(runtime, [prompt])
        for length in (5, 9, 14):
            answer = whole.tokens[len(prompt) : len(prompt) + length]
            places = iter(range(1, 99))
            _, stats = counted(
                runtime, prompt, k, gamma, ends=lambda _, places=places, last=length: next(places) == last
            )
            ratios = measure_agreement(runtime, prompt, answer, [k], Sampling()).ratios
            found = replay(ratios, gamma, has_ended=True)
            assert found.rounds.sum() == stats.rounds
            assert found.accepted.sum() == stats.accepted
            cut += replay(ratios, gamma, has_ended=False).accepted.sum() != stats.accepted
    assert cut, "somewhere the end must have been a draft token, or nothing was guarded"


def laws(seed, size=3, length=2):
    """Random laws of the token after every prefix of up to ``length`` tokens."""
    random = np.random.default_rng(seed)
    return {
        prefix: Dense(random.dirichlet(np.ones(size)))
        for n in range(length + 1)
        for prefix in product(range(size), repeat=n)
    }


def share_of_holding(rule, p, q, count):
    """P(at least ``count`` of two draft tokens hold), over all drafts and all that chance decides."""
    total = 0.0
    for x in product(range(3), repeat=2):
        drawn = q[()].probability(x[0]) * q[x[:1]].probability(x[1])
        draft = Draft(x, (q[()], q[x[:1]]))
        for dice in AllOutcomes():
            verdict = rule(draft, lambda row, x=x: p[x[:row]], dice)
            total += drawn * dice.weight * (verdict.accepted >= count)
    return total


def mean_survival(p, q, count):
    """The same from texts of the target."""
    total = 0.0
    for x in product(range(3), repeat=2):
        mass = [law.probability(token) for law, token in zip((p[()], p[x[:1]]), x, strict=True)]
        drafted = [law.probability(token) for law, token in zip((q[()], q[x[:1]]), x, strict=True)]
        total += np.prod(mass) * survival(np.array([drafted]) / mass)[0, count]
    return total


@pytest.mark.parametrize("seed", range(4))
def test_survival_along_the_targets_text_is_what_block_verification_accepts(seed):
    """Guards predictions for sampled texts, exactly: ratios at the text's own tokens are all that is needed.

    Token by token fewer hold, and this sees it: a replay of the wrong rule would fail here.
    """
    p, q = laws(seed), laws(seed + 100)
    for count in (1, 2):
        assert mean_survival(p, q, count) == pytest.approx(share_of_holding(verify_block, p, q, count), abs=1e-12)
    assert mean_survival(p, q, 2) > share_of_holding(verify_chain, p, q, 2) + 1e-3


def test_the_rounds_of_a_text_are_those_of_every_way_that_chance_may_go():
    """Guards resumption: the expected rounds of a text equal the sum over all sequences of rounds."""

    def expected(ratios, at, gamma):
        n = len(ratios)
        if at >= n:
            return 0.0
        length = min(gamma, n - at - 1)
        holds = [*survival(np.array([ratios[at : at + length]]))[0], 0.0]
        return 1.0 + sum((holds[i] - holds[i + 1]) * expected(ratios, at + i + 1, gamma) for i in range(length + 1))

    ratios = np.random.default_rng(0).gamma(1.0, 1.0, size=9)
    for gamma in (1, 2, 5):
        found = replay(ratios[None], gamma, has_ended=False)
        assert found.rounds.sum() == pytest.approx(expected(list(ratios), 1, gamma))
        assert found.reached[0, 0] + found.rounds[0, 0] == pytest.approx(found.rounds.sum())
