"""The cost model against the figures of the literature, enumeration, and its own limits."""

import math
from itertools import pairwise

import numpy as np
import pytest

from selfspec.control import (
    best_gamma,
    ceiling,
    draft_cost,
    expected_tokens,
    row_cost,
    shared_share,
    speedup,
)
from selfspec.errors import OptionError


@pytest.mark.parametrize(
    ("exit_layer", "alpha", "gamma", "tokens", "gain"),
    [(8, 0.7, 4, 2.77, 1.39), (4, 0.7, 4, 2.77, 1.85), (4, 0.65, 4, 2.53, 1.68)],
)
def test_published_figures_of_an_early_exit(exit_layer, alpha, gamma, tokens, gain):
    """Guards the formulas against a slip: these rows were computed by hand for a model of 32 layers."""
    c, f = draft_cost(32, exit_layer), shared_share(32, exit_layer)
    assert round(expected_tokens(alpha, gamma), 2) == tokens
    assert round(speedup(alpha, gamma, c, 1.0, f), 2) == gain


def test_published_figures_of_a_measured_cost():
    """Guards the path without layers."""
    assert round(expected_tokens(0.78, 4), 2) == 3.23
    assert round(speedup(0.78, 4, 0.1), 2) == 2.31
    assert round(expected_tokens(0.8, 5), 2) == 3.69


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.9, 0.999999999999, 1.0])
@pytest.mark.parametrize("gamma", [0, 1, 5])
def test_expected_tokens_is_the_mean_over_all_outcomes(alpha, gamma):
    """Guards the bonus token and the full acceptance, which a formula one short would miss."""
    stops = [(n + 1, alpha**n * (1 - alpha)) for n in range(gamma)]
    outcomes = [*stops, (gamma + 1, alpha**gamma)]
    assert expected_tokens(alpha, gamma) == pytest.approx(sum(t * p for t, p in outcomes), abs=1e-9)


def test_no_draft_is_plain_decoding():
    """Guards γ = 0: a speedup other than 1 there would make the controller pick drafts that lose."""
    for v in (1.0, 1.3, [1.0, 1.2]):
        assert speedup(0.5, 0, 0.4, v, 0.2) == 1.0


def test_the_ceiling_bounds_free_drafts():
    """Guards 1/(1-α) as a bound, and α = 1, where there is none."""
    assert ceiling(1.0) == math.inf
    assert ceiling(0.0) == 1.0
    gains = [speedup(0.8, gamma, 0.0) for gamma in range(65)]
    assert all(a < b for a, b in pairwise(gains))
    assert gains[-1] < ceiling(0.8)


def test_the_head_counts_in_every_draft_step():
    """Guards c = (1-H)k/L + H: k/L alone flatters the draft of a small model, whose head is a fifth of it."""
    assert draft_cost(30, 26, 0.2) == pytest.approx(0.8 * 26 / 30 + 0.2)
    assert shared_share(30, 26, 0.2) == pytest.approx(0.8 * 26 / 30)


def test_the_shared_part_pays_no_row_cost():
    """Guards V = f + (1-f) v: the layers that verification resumes after do not run on its rows."""
    assert speedup(0.0, 1, 0.0, 2.0, 0.75) == pytest.approx(1 / 1.25)
    assert speedup(0.0, 1, 0.0, 2.0, 1.0) == 1.0


def test_listed_row_costs_are_read_at_gamma_plus_one():
    """Guards an off-by-one between v(T) and γ."""
    v = [1.0, 1.5, 2.0]
    assert [row_cost(v, rows) for rows in (1, 2, 3)] == v
    assert speedup(1.0, 2, 0.0, v) == pytest.approx(3 / 2.0)
    assert row_cost(np.float32(1.5), 2) == 1.5


def test_a_short_list_is_refused_with_the_length_it_needs():
    """Guards against guessing costs beyond what was measured."""
    with pytest.raises(OptionError, match=r"v has 3 values, v\(1\) to v\(3\).*4 tokens needs 5"):
        speedup(0.7, 4, 0.1, [1.0, 1.1, 1.2])


@pytest.mark.parametrize("alpha", [0.0, 0.4, 0.7, 0.95, 1.0])
@pytest.mark.parametrize("c", [0.0, 0.1, 0.5, 2.0])
def test_the_best_gamma_is_the_best_of_all(alpha, c):
    """Guards the search, 0 included: where drafts lose, not drafting is the answer."""
    best = best_gamma(alpha, c, 1.1, 0.2)
    assert all(speedup(alpha, best, c, 1.1, 0.2) >= speedup(alpha, g, c, 1.1, 0.2) for g in range(65))


def test_the_best_gamma_stays_where_costs_are_known():
    """Guards lists: the search must not run off their end, nor past the limit of the caller."""
    assert best_gamma(1.0, 0.0, [1.0, 1.0, 1.0]) == 2
    assert best_gamma(1.0, 0.0) == 64
    assert best_gamma(1.0, 0.0, max_gamma=7) == 7
    assert best_gamma(0.0, 0.0) == 0


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: expected_tokens(1.1, 4), "alpha is 1.1; it must be from 0 to 1"),
        (lambda: expected_tokens(math.nan, 4), "alpha is nan"),
        (lambda: expected_tokens("0.5", 4), "alpha is 0.5"),
        (lambda: ceiling(-0.1), "alpha is -0.1"),
        (lambda: expected_tokens(0.5, -1), "gamma is -1; it must be an integer from 0"),
        (lambda: expected_tokens(0.5, 65), "gamma is 65"),
        (lambda: expected_tokens(0.5, 1.5), "gamma is 1.5"),
        (lambda: draft_cost(32, 0), "exit layer is 0; with 32 layers it must be an integer from 1 to 31"),
        (lambda: draft_cost(32, 32), "exit layer is 32"),
        (lambda: draft_cost(1, 1), "layers is 1"),
        (lambda: draft_cost(32, 8, 1.0), "head is 1.0"),
        (lambda: draft_cost(32, 8, -0.1), "head is -0.1"),
        (lambda: speedup(0.5, 4, -0.1), "c is -0.1"),
        (lambda: speedup(0.5, 4, math.inf), "c is inf"),
        (lambda: speedup(0.5, 4, 0.1, 0.0), "v is 0.0; it must be a finite number above 0"),
        (lambda: speedup(0.5, 1, 0.1, [1.0, math.nan]), r"v\(2\) is nan"),
        (lambda: speedup(0.5, 1, 0.1, [1.1, 1.2]), r"v\(1\) is 1.1; it must be 1"),
        (lambda: speedup(0.5, 1, 0.1, []), "v has 0 values"),
        (lambda: speedup(0.5, 4, 0.1, 1.0, 1.5), "f is 1.5"),
        (lambda: best_gamma(0.5, 0.1, max_gamma=-1), "gamma is -1"),
        (lambda: best_gamma(0.5, 0.1, []), "v has 0 values"),
    ],
)
def test_wrong_values_are_refused(wrong, says):
    """Guards against a plausible figure from an impossible number, not-a-numbers above all."""
    with pytest.raises(OptionError, match=says) as error:
        wrong()
    assert "\n" not in str(error.value)


def test_the_longest_draft_is_that_of_the_drafters():
    """Guards the second copy of the limit."""
    from selfspec import control, types

    assert control.MAX_GAMMA == types.MAX_GAMMA
