"""LayerSkip's schedules by table, and how often layers are left out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from selfspec.train.schedules import Curriculum, dropout_rates, exit_weights, kept


@pytest.mark.parametrize(
    ("layers", "most", "over_time", "share", "expected"),
    [
        (3, 0.2, "constant", 0.0, [0.0, 0.2 * (math.sqrt(2) - 1), 0.2]),
        (5, 0.1, "constant", 0.7, [0.0, 0.1 * (2**0.25 - 1), 0.1 * (2**0.5 - 1), 0.1 * (2**0.75 - 1), 0.1]),
        (3, 0.2, "exponential", 0.0, [0.0, 0.0, 0.0]),
        (2, 0.2, "exponential", 0.5, [0.0, 0.2 * (math.sqrt(2) - 1)]),
        (2, 0.2, "exponential", 1.0, [0.0, 0.2]),
        (1, 0.2, "constant", 1.0, [0.0]),
    ],
)
def test_dropout_rates(layers, most, over_time, share, expected):
    np.testing.assert_allclose(dropout_rates(layers, most, over_time, share), expected, atol=1e-12)


def test_layers_are_left_out_as_often_as_they_should_be():
    """χ² of the counts of 11 layers against their rates, and of pairs of layers against independence.

    Guards draws that samples or layers share. With 22 degrees of freedom χ² is above 51 once in 2,500 seeds.
    """
    rates = dropout_rates(12, 0.4, "constant", 0.0)
    masks = np.concatenate([kept(rates, 8, 3, step) for step in range(1500)], axis=1)
    assert masks[0].all()
    count = masks.shape[1]
    chi = 0.0
    for layer in range(1, 12):
        out, p = float((~masks[layer]).sum()), rates[layer]
        chi += (out - count * p) ** 2 / (count * p * (1 - p))
        other = 1 + layer % 11
        both, q = float((~masks[layer] & ~masks[other]).sum()), p * rates[other]
        chi += (both - count * q) ** 2 / (count * q * (1 - q))
    assert chi < 51
    np.testing.assert_array_equal(kept(rates, 8, 3, 7), kept(rates, 8, 3, 7))
    assert (kept(rates, 8, 3, 7) != kept(rates, 8, 4, 7)).any()


@pytest.mark.parametrize(
    ("curriculum", "exits", "step", "share", "expected"),
    [
        (Curriculum("rotational", 3), (1, 2, 3, 4, 5, 6, 7), 0, 0.0, [1, 4, 7, 8]),
        (Curriculum("rotational", 3), (1, 2, 3, 4, 5, 6, 7), 1, 0.0, [2, 5, 8]),
        (Curriculum("rotational", 3), (1, 2, 3, 4, 5, 6, 7), 2, 0.0, [3, 6, 8]),
        (Curriculum("rotational", 3), (1, 2, 3, 4, 5, 6, 7), 3, 0.0, [1, 4, 7, 8]),
        (Curriculum("rotational", 2), (4, 6), 1, 0.9, [6, 8]),
        (Curriculum("rotational", 1), (4, 6), 5, 0.0, [4, 6, 8]),
        (Curriculum("gradual", gradual=0.5), (1, 4, 7), 0, 0.0, [8]),
        (Curriculum("gradual", gradual=0.5), (1, 4, 7), 0, 0.125, [7, 8]),  # (8 - 6) / 8 of a half
        (Curriculum("gradual", gradual=0.5), (1, 4, 7), 0, 0.3125, [4, 7, 8]),
        (Curriculum("gradual", gradual=0.5), (1, 4, 7), 0, 0.4999, [4, 7, 8]),
        (Curriculum("gradual", gradual=0.5), (1, 4, 7), 0, 0.5, [1, 4, 7, 8]),
        (Curriculum("none"), (1, 4, 7), 0, 0.0, [1, 4, 7, 8]),
        (Curriculum("rotational"), (), 3, 0.2, [8]),
    ],
)
def test_curricula(curriculum, exits, step, share, expected):
    assert curriculum.active(exits, 8, step, share) == expected


@pytest.mark.parametrize(
    ("active", "kind", "scale", "expected"),
    [
        ([1, 2, 4], "sum", 1.0, [1 / 14, 3 / 14, 10 / 14]),
        ([1, 2, 4], "linear", 1.0, [1 / 7, 2 / 7, 4 / 7]),
        ([1, 2, 4], "uniform", 0.5, [0.25, 0.25, 0.5]),
        ([1, 2, 4], "sum", 0.5, [0.5 / 12, 1.5 / 12, 10 / 12]),
        ([4], "sum", 0.1, [1.0]),
    ],
)
def test_exit_weights(active, kind, scale, expected):
    np.testing.assert_allclose(exit_weights(active, 4, kind, scale), expected, atol=1e-12)
