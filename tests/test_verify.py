"""Verification by exact enumeration: the law of what comes out is the target's, for any draft."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import numpy as np
import pytest

from selfspec.measure.dice import AllOutcomes
from selfspec.types import Dense, Draft, OneHot, Verdict
from selfspec.verify import verify_chain

SUPPORTS = ["full", "disjoint", "narrow p", "narrow q", "greedy p", "equal"]
CASES = list(product([(3, 1), (3, 2), (3, 3), (4, 1), (4, 2)], SUPPORTS))


def laws(size: int, support: str, seed: int):
    """Two random families of distributions that depend on the whole prefix: p(prefix) and q(prefix)."""

    def masses(kind: int, prefix: tuple[int, ...]) -> np.ndarray:
        random = np.random.default_rng([seed, kind, *[t + 1 for t in prefix]])
        out = random.dirichlet(np.ones(size))
        half = size // 2
        if support == "disjoint":
            out[half:] = 0.0 if kind == 0 else out[half:]
            out[:half] = out[:half] if kind == 0 else 0.0
        if (support, kind) in {("narrow p", 0), ("narrow q", 1)}:
            out[random.integers(size)] = 0.0
        return out / out.sum()

    def p(prefix):
        if support == "greedy p":
            return OneHot(int(np.argmax(masses(0, prefix))))
        return Dense(masses(0, prefix))

    def q(prefix):
        return p(prefix) if support == "equal" else Dense(masses(1, prefix))

    return p, q


def output_law(size, gamma, p, draft_of, verify):
    """P(first gamma + 1 tokens) when ``verify`` judges drafts and the target goes on alone afterwards."""
    out = defaultdict(float)
    for dice in AllOutcomes():
        draft = draft_of(dice)
        verdict = verify(draft, lambda i, d=draft: p(d.tokens[:i]), dice)
        tokens = [*draft.tokens[: verdict.accepted], verdict.bonus]
        while len(tokens) < gamma + 1:
            tokens.append(dice.pick(p(tuple(tokens))))
        out[tuple(tokens)] += dice.weight
    return out


def distance(size, gamma, p, out):
    """Total variation to the target's own law."""
    total = 0.0
    for tokens in product(range(size), repeat=gamma + 1):
        want = np.prod([p(tokens[:i]).probability(t) for i, t in enumerate(tokens)])
        total += abs(out.get(tokens, 0.0) - want)
    return total / 2


def sampled(size, gamma, q):
    def draft_of(dice):
        tokens, made = [], []
        for _ in range(gamma):
            made.append(q(tuple(tokens)))
            tokens.append(dice.pick(made[-1]))
        return Draft(tuple(tokens), tuple(made))

    return draft_of


def deterministic(gamma, q):
    def draft_of(_dice):
        tokens: list[int] = []
        for _ in range(gamma):
            law = q(tuple(tokens))
            tokens.append(law.token if isinstance(law, OneHot) else int(np.argmax(law.probs)))
        return Draft(tuple(tokens))

    return draft_of


@pytest.mark.parametrize(("sizes", "support"), CASES)
def test_sampled_draft_gives_the_targets_law(sizes, support):
    """Guards the ratio test, the residual and the bonus row (HF #32867, #47932, PR #28508)."""
    size, gamma = sizes
    p, q = laws(size, support, 7)
    out = output_law(size, gamma, p, sampled(size, gamma, q), verify_chain)
    assert sum(out.values()) == pytest.approx(1.0, abs=1e-12)
    assert distance(size, gamma, p, out) < 1e-12


@pytest.mark.parametrize(("sizes", "support"), CASES)
def test_deterministic_draft_gives_the_targets_law(sizes, support):
    """Guards against scoring an arg-max draft as if it were sampled (Draft & Verify, TV 0.36)."""
    size, gamma = sizes
    p, q = laws(size, support, 11)
    out = output_law(size, gamma, p, deterministic(gamma, q), verify_chain)
    assert distance(size, gamma, p, out) < 1e-12


def test_greedy_is_the_limit_of_small_temperatures():
    """Guards the one-hot branch: it must be what the sampled branch tends to."""
    logits = np.array([0.3, 1.0, 0.9, -1.0])
    for token in range(4):
        dense = Dense.of(np.exp((logits - 1.0) / 1e-3))
        assert dense.probability(token) == pytest.approx(OneHot(1).probability(token), abs=1e-12)


def test_residual_of_equal_laws_falls_back_to_the_target():
    """Guards 0/0 where rounding leaves p - q nothing (transformers keeps that division)."""
    p = Dense(np.array([0.5, 0.5, 0.0]))
    q = Dense(p.probs.copy())
    assert p.minus(q) is p
    assert p.minus(OneHot(0)).probability(1) == 1.0
    assert Dense(np.array([1.0, 0.0])).minus(OneHot(0)).probability(0) == 1.0


def test_target_is_asked_left_to_right_and_no_further_than_needed():
    """Guards lazy rows: processors and grammars must see exactly the calls of plain decoding."""
    asked = []

    def target(i):
        asked.append(i)
        return OneHot([5, 6, 9, 1][i])

    assert verify_chain(Draft((5, 6, 7)), target, AllOutcomesOnce()) == Verdict(2, 9)
    assert asked == [0, 1, 2]


def test_nothing_is_asked_after_the_token_that_ends_the_text():
    """Guards the end inside an accepted run: a row past it is one that plain decoding never computes."""
    asked, ended = [], []

    def target(i):
        asked.append(i)
        return OneHot([5, 6, 7, 1][i])

    def ends(token):
        ended.append(token)
        return token == 6

    assert verify_chain(Draft((5, 6, 7)), target, AllOutcomesOnce(), ends) == Verdict(2, None)
    assert (asked, ended) == ([0, 1], [5, 6])


class AllOutcomesOnce:
    """Dice for certain decisions only."""

    def accept(self, probability):
        assert probability in (0.0, 1.0)
        return probability == 1.0

    def pick(self, law):
        return law.token


def accept_everything(draft, target, dice):
    return Verdict(len(draft), dice.pick(target(len(draft))))


def accept_too_much(draft, target, dice):
    for i, token in enumerate(draft.tokens):
        ratio = target(i).probability(token) / draft.laws[i].probability(token)
        if not dice.accept(min(1.0, 1.5 * ratio)):
            return Verdict(i, dice.pick(target(i).minus(draft.laws[i])))
    return Verdict(len(draft), dice.pick(target(len(draft))))


def bonus_without_residual(draft, target, dice, ends=None):
    for i, token in enumerate(draft.tokens):
        if not dice.accept(target(i).probability(token) / draft.laws[i].probability(token)):
            return Verdict(i, dice.pick(target(i)))
    return Verdict(len(draft), dice.pick(target(len(draft))))


def bonus_of_the_wrong_row(draft, target, dice):
    verdict = verify_chain(draft, target, dice)
    return Verdict(verdict.accepted, dice.pick(target(0))) if verdict.accepted == len(draft) else verdict


@pytest.mark.parametrize(
    "broken", [accept_everything, accept_too_much, bonus_without_residual, bonus_of_the_wrong_row]
)
def test_enumeration_catches_broken_verifiers(broken):
    """The negative control: a suite that passes these proves nothing."""
    p, q = laws(4, "full", 7)
    out = output_law(4, 2, p, sampled(4, 2, q), broken)
    assert distance(4, 2, p, out) > 0.01


def test_enumeration_catches_an_argmax_draft_scored_as_sampled():
    """The negative control of the draft's side: q must be the law that was sampled (HF #47932)."""
    p, q = laws(4, "full", 7)

    def draft_of(_dice):
        token = int(np.argmax(q(()).probs))
        return Draft((token,), (q(()),))

    assert distance(4, 1, p, output_law(4, 1, p, draft_of, verify_chain)) > 0.01
