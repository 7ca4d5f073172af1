"""Verification at its edges: what mutants of the module would change (docs/hardening.md)."""

from __future__ import annotations

import numpy as np

from selfspec.sampling import Chance
from selfspec.types import Dense, Draft, OneHot, Verdict
from selfspec.verify import _share, verify_block, verify_tree


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


def test_an_end_in_a_tree_counts_the_branch():
    """Guards the verdict of a text that ends: how many were accepted, and which."""
    draft = Draft((0, 1), parents=(-1, 0))
    assert verify_tree(draft, lambda _: OneHot(0), Chance(0), lambda token: token == 0) == Verdict(1, None, (0,))
