"""Verification at its edges: what mutants of the module would change (docs/hardening.md)."""

from __future__ import annotations

import numpy as np
import pytest

from selfspec.sampling import Chance
from selfspec.types import Dense, Draft, OneHot, Verdict
from selfspec.verify import _share, verify_block, verify_chain, verify_tree


def law(*masses):
    return Dense.of(np.asarray(masses, dtype=np.float64))


def test_a_block_asks_for_no_row_behind_a_token_that_cannot_hold():
    """Guards what a block costs and may see: the second token has no mass, so the third row is not asked for."""
    targets = [law(1, 1), law(1, 0), law(1, 1), law(1, 1)]
    asked = []
    draft = Draft((0, 1, 0), laws=[law(1, 1), law(1, 1), law(1, 1)])
    verdict = verify_block(draft, lambda row: asked.append(row) or targets[row], Chance(0))
    assert asked == [0, 1]
    assert verdict.accepted <= 1


def test_a_share_of_nothing_is_nothing():
    """Guards 0 / 0, which rounding leaves where a draft's law is the target's."""
    assert _share(OneHot(1), OneHot(1), 1.0) == 0.0
    assert _share(law(1, 1), law(1, 1), 1.0) == 0.0


class Refusing:
    """Dice that accept nothing and remember what they were asked."""

    def __init__(self):
        self.asked = []

    def accept(self, probability):
        self.asked.append(probability)
        return False

    def pick(self, law):
        return int(np.argmax(law.probs))


def test_a_block_spends_a_number_for_each_length_that_it_tries_and_none_for_no_token():
    """Guards equal seeds: that nothing holds is no question, and a number for it would shift the stream."""
    dice = Refusing()
    targets = [law(1, 3), law(1, 3), law(1, 1)]
    verdict = verify_block(Draft((0, 0), laws=[law(1, 1), law(1, 1)]), targets.__getitem__, dice)
    assert verdict == Verdict(0, 1)
    assert dice.asked == [0.25, 0.0]  # w_2, and h_1 = R / (R + 1 - w_1) with (w_1 p - q)+ = 0


def test_a_draft_that_its_law_cannot_give_is_a_bug_of_ours():
    """Guards drafters: such a token would be a division by zero, or one that is accepted always."""
    draft = Draft((0,), laws=[law(0, 1)])
    with pytest.raises(AssertionError, match=r"^a draft token that its law cannot give"):
        verify_chain(draft, lambda _: law(1, 1), Chance(0))


def test_an_end_in_a_tree_counts_the_branch():
    """Guards the verdict of a text that ends: how many were accepted, and which."""
    draft = Draft((0, 1), parents=(-1, 0))
    assert verify_tree(draft, lambda _: OneHot(0), Chance(0), lambda token: token == 0) == Verdict(1, None, (0,))
