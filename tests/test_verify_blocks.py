"""Block verification by exact enumeration: the law, ends, failing rows, and never fewer tokens than a chain."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import numpy as np
import pytest
from test_verify import SUPPORTS, deterministic, laws, sampled
from test_verify_trees import distance, emitted, expected_tokens

from selfspec.errors import ConstraintError
from selfspec.measure.dice import AllOutcomes
from selfspec.sampling import Chance
from selfspec.types import Dense, Draft, Verdict
from selfspec.verify import verify_block, verify_chain


@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("sizes", [(3, 1), (3, 2), (3, 3), (4, 2)])
def test_block_verification_gives_the_targets_law_and_never_fewer_tokens(sizes, support):
    """Guards h, the weights and the weighted residual, against the token-level rule on the same drafts."""
    size, gamma = sizes
    for seed in range(3):
        p, q = laws(size, support, seed)
        block = emitted(size, p, sampled(size, gamma, q), verify_block)
        assert sum(block.values()) == pytest.approx(1.0, abs=1e-12)
        assert distance(size, p, block) < 1e-12
        chain = emitted(size, p, sampled(size, gamma, q), verify_chain)
        assert expected_tokens(block) > expected_tokens(chain) - 1e-12


def test_block_verification_gains_tokens():
    """Guards that the rule is more than the token-level one: 3 % on this toy, as published on models."""
    gains = []
    for seed in range(5):
        p, q = laws(3, "full", seed)
        draft = sampled(3, 3, q)
        gains.append(expected_tokens(emitted(3, p, draft, verify_block)))
        gains[-1] /= expected_tokens(emitted(3, p, draft, verify_chain))
    assert min(gains) >= 1.0
    assert np.mean(gains) > 1.02


def test_block_verification_of_a_deterministic_draft_is_that_of_a_chain():
    """Guards the random numbers of plain decoding: there is nothing to gain and a promise to break."""
    p, q = laws(4, "full", 3)
    draft = deterministic(2, q)(None)
    for seed in range(20):
        verdicts = [
            verify(draft, lambda i: p(draft.tokens[:i]), Chance(seed)) for verify in (verify_block, verify_chain)
        ]
        assert verdicts[0] == verdicts[1]


def block_with_unweighted_residual(draft, target, dice):
    class Unweighted(Dense):
        def minus(self, other, weight=1.0):
            return Dense(self.probs).minus(other)

    return verify_block(draft, lambda i: Unweighted(target(i).probs), dice)


def block_with_token_weights(draft, target, dice):
    """h from the product of ratios without the clipping at 1."""
    weights = np.cumprod(
        [target(i).probability(t) / draft.laws[i].probability(t) for i, t in enumerate(draft.tokens)]
    )
    held = max((i + 1 for i, weight in enumerate(weights) if dice.accept(weight)), default=0)
    law = target(held)
    return Verdict(held, dice.pick(law.minus(draft.laws[held]) if held < len(draft) else law))


@pytest.mark.parametrize("broken", [block_with_unweighted_residual, block_with_token_weights])
def test_enumeration_catches_broken_block_verifiers(broken):
    """The negative controls of block verification."""
    p, q = laws(4, "full", 0)
    assert distance(4, p, emitted(4, p, sampled(4, 2, q), broken)) > 0.005


END = 2


def law_of_texts(p, draft_of, verify, rounds=2):
    """P(text) when ``verify`` judges one draft after another until a token is END or there are three tokens."""
    out = defaultdict(float)
    for dice in AllOutcomes():
        tokens, asked = [], []
        while len(tokens) < 3 and END not in tokens:
            draft = draft_of(dice, tuple(tokens), 2 - len(tokens))

            def target(row, done=tuple(tokens), draft=draft):
                return p(done + draft.before(row))

            def ends(token, asked=asked):
                asked.append(token)
                return token == END

            verdict = verify(draft, target, dice, ends)
            tokens += draft.tokens[: verdict.accepted]
            assert asked == tokens
            if verdict.bonus is not None:
                tokens.append(verdict.bonus)
                asked.append(verdict.bonus)
        out[tuple(tokens)] += dice.weight
    return out


def no_row_after_the_end(p):
    def target(prefix):
        if END in prefix:
            raise ConstraintError("a row that plain decoding never computes")
        return p(prefix)

    return target


def sampled_from(q):
    def draft_of(dice, done, count):
        tokens, made = (), ()
        while len(tokens) < count:
            made = (*made, q(done + tokens))
            tokens = (*tokens, dice.pick(made[-1]))
        return Draft(tokens, made)

    return draft_of


def dropping_the_last(draft, target, dice, ends):
    """Leaves out the token whose row fails, instead of that row."""
    known = 0
    try:
        while known < len(draft):
            target(known + 1)
            known += 1
    except ConstraintError:
        pass
    return verify_block(Draft(draft.tokens[:known], draft.laws[:known]), target, dice, ends)


def text_distance(p, out):
    total = 0.0
    for tokens in product(range(3), repeat=3):
        text = tokens[: tokens.index(END) + 1] if END in tokens else tokens
        if END in tokens[:2] and any(tokens[len(text) :]):
            continue
        total += abs(out.pop(text, 0.0) - np.prod([p(text[:i]).probability(t) for i, t in enumerate(text)]))
    return total / 2 + sum(out.values())


@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("verify", [verify_block, verify_chain])
def test_rows_past_the_end_are_no_errors_and_change_no_law(verify, support):
    """Guards blocks that look ahead: a row that fails where plain decoding never comes, and ends in the draft."""
    p, q = laws(3, support, 4)
    out = law_of_texts(no_row_after_the_end(p), sampled_from(q), verify)
    assert sum(out.values()) == pytest.approx(1.0, abs=1e-12)
    assert text_distance(p, out) < 1e-12


def test_enumeration_catches_a_block_that_drops_the_token_before_a_failing_row():
    """The negative control: shortening a draft by what a drawn token led to is a bias."""
    p, q = laws(3, "full", 4)
    assert text_distance(p, law_of_texts(no_row_after_the_end(p), sampled_from(q), dropping_the_last)) > 0.01


@pytest.mark.parametrize("failing", range(3))
def test_a_row_that_the_text_comes_to_is_an_error(failing):
    """Guards the other side: what plain decoding cannot answer, a block cannot either."""

    def target(row):
        if row == failing:
            raise ConstraintError("no token is left")
        return sure

    sure = Dense(np.array([1.0, 0.0]))
    with pytest.raises(ConstraintError):
        verify_block(Draft((0, 0), (sure, sure)), target, Chance(0))
