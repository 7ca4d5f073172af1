"""The near-tie rule, and row invariance, on runtimes whose noise is known."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import tiny_runtime

from selfspec.measure.nearties import NearTies, Place, difference
from selfspec.measure.rows import rows_check
from selfspec.measure.toy import MarkovRuntime

PLACE = Place(1, "drafter", 5)


class Noisy(MarkovRuntime):
    """Passes of several rows are off by ``noise`` in token 0, and two tokens are ``gap`` apart."""

    def __init__(self, gap, noise, precision="float32"):
        super().__init__()
        self.precision, self._gap, self._off = precision, gap, noise

    def logits(self, hidden):
        out = np.tile([1.0, 1.0 - self._gap, 0.0, -1.0], (len(hidden), 1))
        out[:, 0] -= self._off * (len(hidden) > 1)
        return out


def kinds(runtime, drafted, plain):
    ties = NearTies(runtime)
    ties.compare([1, 2, 3], drafted, plain, PLACE)
    return [found.kind for found in ties.divergences]


@pytest.mark.parametrize(
    ("gap", "noise", "precision", "kind"),
    [
        (1.9e-5, 1e-5, "float32", "near-tie"),
        (2.1e-5, 1e-5, "float32", "bug"),
        (1e-3, 2e-3, "float32", "bug"),  # so much noise is a bug of the runtime
        (1e-3, 0.0, "float32", "bug"),
        (1e-8, 1e-8, "float64", "bug"),
        (0.2, 0.15, "bfloat16", "near-tie"),
        (0.4, 0.15, "bfloat16", "bug"),
    ],
)
def test_the_gap_is_held_against_the_noise(gap, noise, precision, kind):
    """Guards the rule of design and docs in every precision."""
    assert kinds(Noisy(gap, noise, precision), [2, 1, 3], [2, 0, 3]) == [kind]


def test_a_token_that_is_not_among_the_best_is_a_bug():
    """Guards against a near-tie of two other tokens that would excuse any third one."""
    assert kinds(Noisy(1e-5, 1e-5), [2, 3], [2, 0]) == ["bug"]


def test_a_text_that_ends_elsewhere_is_a_bug():
    """Guards ends: no rounding makes a text shorter without another token."""
    ties = NearTies(Noisy(1e-5, 1e-5))
    ties.compare([1], [0, 1], [0, 1, 2], PLACE)
    (found,) = ties.divergences
    assert (found.index, found.plain_token, found.draft_token, found.kind) == (2, 2, None, "bug")


def test_one_text_in_a_hundred_may_part_at_a_near_tie():
    """Guards the share, and that lower precisions have none."""
    for precision, allowed in (("float32", 2), ("bfloat16", 200)):
        ties = NearTies(Noisy(1e-5, 1e-5, precision))
        for number in range(200):
            ties.compare([1, 2], [0, 1] if number < 2 else [0, 0], [0, 0], PLACE)
        assert (ties.allowed, ties.near_ties, ties.passed) == (allowed, 2, True)
        ties.compare([1, 2], [0, 1], [0, 0], PLACE)
        assert ties.passed == (precision == "bfloat16")


def test_nan_is_no_agreement():
    """Guards comparisons: what a ban leaves out does not count, what is broken does."""
    assert difference(np.array([1.0, -np.inf]), np.array([1.5, 3.0])) == 0.5
    assert difference(np.array([1.0, np.nan]), np.array([1.0, np.nan])) == np.inf


def test_rows_are_reported_and_a_claim_must_hold():
    """Guards row invariance: noise passes below the limit of the precision, and never under a claim."""
    quiet, noisy, loud = (rows_check(Noisy(0.5, noise), [1, 2]) for noise in (0.0, 1e-5, 1e-2))
    assert (quiet.passed, quiet.details["row_invariant"]) == (True, True)
    assert (noisy.passed, noisy.details["row_invariant"]) == (True, False)
    assert noisy.details["largest_difference"] == pytest.approx(1e-5)
    assert loud.passed is False
    claiming = Noisy(0.5, 1e-5)
    claiming.is_row_invariant = True
    assert rows_check(claiming, [1, 2]).passed is False


def test_rows_of_a_transformer_are_the_same_text_in_every_way():
    """Guards the probe itself: what runs another text than the others is not noise."""
    check = rows_check(tiny_runtime(), [5, 17, 3])
    assert check.details["largest_difference"] < 1e-12
    assert len(check.details["difference"]) == 10
