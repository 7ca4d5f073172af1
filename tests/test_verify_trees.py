"""Tree verification by exact enumeration: the law of what comes out, and how many tokens come out."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from test_verify import SUPPORTS, deterministic, laws, sampled

from selfspec.measure.dice import AllOutcomes
from selfspec.sampling import Chance
from selfspec.types import Draft, OneHot, Verdict
from selfspec.verify import verify_chain, verify_tree

# parents of each token; -1 is the pending token
SHAPES = {
    "one": (-1,),
    "chain": (-1, 0),
    "pair": (-1, -1),
    "wide level": (-1, -1, -1),
    "leaf first": (-1, -1, 1),
    "comb": (-1, 0, -1, 0),
    "deep comb": (-1, 0, 1, -1, 0, 1),
    "binary": (-1, -1, 0, 0, 1),
}
SMALL = [(3, name) for name in SHAPES if name != "deep comb"] + [
    (4, n) for n in ("pair", "wide level", "leaf first")
]


def emitted(size, p, draft_of, verify):
    """P(what one round emits): the accepted branch and the bonus token."""
    out = defaultdict(float)
    for dice in AllOutcomes():
        draft = draft_of(dice)
        verdict = verify(draft, lambda row, d=draft: p(d.before(row)), dice)
        branch = range(verdict.accepted) if verdict.branch is None else verdict.branch
        assert verdict.accepted == len(branch)
        out[(*(draft.tokens[i] for i in branch), verdict.bonus)] += dice.weight
    return out


def expected_tokens(out):
    return sum(len(tokens) * weight for tokens, weight in out.items())


def distance(size, p, out):
    """Total variation to the target's own law of as many tokens, the target going on alone where fewer came."""
    length = max(map(len, out))
    total = 0.0
    for tokens in product(range(size), repeat=length):
        steps = [p(tokens[:i]).probability(t) for i, t in enumerate(tokens)]
        got = sum(out.get(tokens[:i], 0.0) * np.prod(steps[i:]) for i in range(1, length + 1))
        total += abs(got - np.prod(steps))
    return total / 2


def siblings(parents, i):
    return [j for j in range(i) if parents[j] == parents[i]]


def sampled_tree(size, parents, q, *, replacement=False):
    """Every token drawn from q of its branch; siblings without replacement have the law of what is left."""

    def draft_of(dice):
        draft = Draft()
        for i, parent in enumerate(parents):
            law = q(draft.before(parent + 1))
            for j in [] if replacement else siblings(parents, i):
                law = law.minus(OneHot(draft.tokens[j]))
            token = dice.pick(law)
            draft = Draft((*draft.tokens, token), (*(draft.laws or ()), law), parents=parents[: i + 1])
        return draft

    return draft_of


def fixed_tree(parents, q, *, duplicate=False):
    """The most likely tokens of q as children, in order; with ``duplicate`` always the first one."""

    def draft_of(_dice):
        draft = Draft(parents=())
        for i, parent in enumerate(parents):
            law = q(draft.before(parent + 1))
            probs = np.eye(8)[law.token] if isinstance(law, OneHot) else law.probs
            rank = 0 if duplicate else len(siblings(parents, i))
            draft = Draft((*draft.tokens, int(np.argsort(-probs)[rank])), parents=parents[: i + 1])
        return draft

    return draft_of


@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize(("size", "shape"), SMALL)
def test_sampled_tree_gives_the_targets_law(size, shape, support):
    """Guards recursive rejection without replacement: the residual, the siblings' laws, and the row of each."""
    p, q = laws(size, support, 5)
    out = emitted(size, p, sampled_tree(size, SHAPES[shape], q), verify_tree)
    assert sum(out.values()) == pytest.approx(1.0, abs=1e-12)
    assert distance(size, p, out) < 1e-12


@pytest.mark.parametrize("shape", ["wide level", "comb", "binary"])
def test_siblings_with_replacement_give_the_targets_law(shape):
    """Guards duplicate siblings: the laws say how they were drawn, so they are exact too."""
    p, q = laws(3, "full", 5)
    out = emitted(3, p, sampled_tree(3, SHAPES[shape], q, replacement=True), verify_tree)
    assert distance(3, p, out) < 1e-12


@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("duplicate", [False, True])
@pytest.mark.parametrize(("size", "shape"), [*SMALL, (3, "deep comb"), (4, "binary")])
def test_deterministic_tree_gives_the_targets_law(size, shape, support, duplicate):
    """Guards the match of children, duplicates included."""
    p, q = laws(size, support, 11)
    out = emitted(size, p, fixed_tree(SHAPES[shape], q, duplicate=duplicate), verify_tree)
    assert distance(size, p, out) < 1e-12


def test_a_sampled_deep_comb_gives_the_targets_law():
    """Guards depth: three levels with a leaf beside each."""
    p, q = laws(3, "narrow p", 2)
    out = emitted(3, p, sampled_tree(3, SHAPES["deep comb"], q), verify_tree)
    assert distance(3, p, out) < 1e-12


@pytest.mark.parametrize(
    "draft_of", [sampled(3, 2, laws(3, "full", 1)[1]), deterministic(2, laws(3, "full", 1)[1])]
)
def test_a_chain_is_a_tree_of_one_branch(draft_of):
    """Guards one rule for both: same verdict from the same random numbers."""
    p, _ = laws(3, "full", 1)
    for seed in range(50):
        chance = Chance(seed, 1)
        draft = draft_of(chance)
        both = []
        for tree, verify in ((None, verify_chain), ((-1, 0), verify_tree), (None, verify_tree)):
            given = replace(draft, parents=tree)
            both.append(verify(given, lambda row, t=draft.tokens: p(t[:row]), Chance(seed))[:2])
        assert both[0] == both[1] == both[2]


def test_a_deterministic_tree_spends_the_random_numbers_of_plain_decoding():
    """Guards the promise for look-up trees: one draw per token that is emitted, whatever the draft."""
    p, q = laws(4, "full", 9)
    draft = fixed_tree(SHAPES["binary"], q)(None)
    lengths = set()
    for seed in range(40):
        verdict = verify_tree(draft, lambda row: p(draft.before(row)), Chance(seed))
        got = [*(draft.tokens[i] for i in verdict.branch), verdict.bonus]
        chance, plain = Chance(seed), []
        while len(plain) < len(got):
            plain.append(chance.pick(p(tuple(plain))))
        assert got == plain
        lengths.add(len(got))
    assert lengths == {1, 2, 3}


def test_target_is_asked_along_the_accepted_branch_only():
    """Guards lazy rows in trees: processors and grammars must see exactly the calls of plain decoding."""
    asked = []

    def target(row):
        asked.append(row)
        return OneHot({0: 6, 2: 8, 4: 1}[row])

    draft = Draft((5, 6, 7, 8), parents=(-1, -1, 1, 1))
    assert verify_tree(draft, target, Chance(0)) == Verdict(2, 1, (1, 3))
    assert asked == [0, 2, 4]


def test_siblings_gain_tokens_and_those_without_replacement_more():
    """Guards the point of a tree, in tokens per round."""
    p, q = laws(4, "full", 7)
    one, again, other = (
        expected_tokens(emitted(4, p, sampled_tree(4, parents, q, replacement=replacement), verify_tree))
        for parents, replacement in (((-1,), False), ((-1, -1), True), ((-1, -1), False))
    )
    assert one < again < other


def test_widths_and_branches_of_drafts():
    """Guards the counts per depth, and the prefix that a row's distribution is asked with."""
    assert Draft((1, 2, 3)).widths == (1, 1, 1)
    assert Draft().widths == Draft(parents=()).widths == ()
    comb = Draft((1, 2, 3, 4, 5), parents=(-1, 0, -1, 0, 0))
    assert comb.widths == (2, 3)
    assert [comb.before(row) for row in range(6)] == [(), (1,), (1, 2), (3,), (1, 4), (1, 5)]
    assert Draft((1, 2)).before(2) == (1, 2)
    with pytest.raises(AssertionError):
        Draft((1, 2), parents=(1, -1))


def untouched_laws(size, parents, q):
    """Siblings drawn without replacement, but q is not updated: each claims the law of the first."""

    def draft_of(dice):
        draft = sampled_tree(size, parents, q)(dice)
        return replace(draft, laws=tuple(q(draft.before(parent + 1)) for parent in parents))

    return draft_of


def claimed_without_replacement(size, parents, q):
    """Siblings drawn with replacement that claim the laws of ones without."""

    def draft_of(dice):
        draft = sampled_tree(size, parents, q, replacement=True)(dice)
        made = []
        for i, law in enumerate(draft.laws):
            rest = law
            others = [draft.tokens[j] for j in siblings(parents, i) if draft.tokens[j] != draft.tokens[i]]
            for token in others:
                rest = rest.minus(OneHot(token))
            made.append(rest)
        return replace(draft, laws=tuple(made))

    return draft_of


@pytest.mark.parametrize("broken", [untouched_laws, claimed_without_replacement])
@pytest.mark.parametrize("shape", ["pair", "comb"])
def test_enumeration_catches_siblings_of_another_law(broken, shape):
    """The negative controls of the draft's side: a law that is not the one drawn from."""
    p, q = laws(3, "full", 7)
    assert distance(3, p, emitted(3, p, broken(3, SHAPES[shape], q), verify_tree)) > 0.005


def bonus_of_the_parents_row(draft, target, dice):
    verdict = verify_tree(draft, target, dice)
    if not verdict.branch:
        return verdict
    parent = draft.parents[verdict.branch[-1]]
    return verdict._replace(bonus=dice.pick(target(parent + 1)))


def bonus_without_residual(draft, target, dice):
    verdict = verify_tree(draft, target, dice)
    return verdict._replace(bonus=dice.pick(target(verdict.branch[-1] + 1 if verdict.branch else 0)))


def residual_not_updated(draft, target, dice):
    """Every sibling is tested against p itself."""
    for i, token in enumerate(draft.tokens):
        if dice.accept(target(0).probability(token) / draft.laws[i].probability(token)):
            return Verdict(1, dice.pick(target(i + 1)), (i,))
    return Verdict(0, dice.pick(target(0).minus(draft.laws[-1])), ())


@pytest.mark.parametrize("broken", [bonus_of_the_parents_row, bonus_without_residual, residual_not_updated])
def test_enumeration_catches_broken_tree_verifiers(broken):
    """The negative controls: a suite that passes these proves nothing."""
    p, q = laws(3, "full", 7)
    assert distance(3, p, emitted(3, p, sampled_tree(3, SHAPES["pair"], q), broken)) > 0.01
