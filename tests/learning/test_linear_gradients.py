"""The mathematics of a linear head: by hand, against differences, and against the head that decoding runs."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import tiny_core, tiny_runtime
from random_heads import nearly_untrained, random_facts

from selfspec.learning import linear
from selfspec.learning.linear import Adam, Lessons, Weights, gradients, normed
from selfspec.types import Rows

EPS = 1e-5


def drawn(rows=5, d=6, tokens=9, kept=4, seed=0):
    random = np.random.default_rng(seed)
    weights = Weights(random.normal(0, 0.3, (d, d)), random.uniform(0.5, 1.5, d))
    places = np.stack([random.permutation(tokens)[:kept] for _ in range(rows)])
    masses = random.dirichlet(np.ones(kept), rows)
    masses[1] = 0.0  # a row that teaches nothing
    masses[2, 1:] = 0.0
    masses[2, 0] = 1.0  # a law of one token
    return weights, random.normal(0, 1, (tokens, d)), Lessons(random.normal(0, 2, (rows, d)), places, masses)


def test_loss_and_gradients_by_hand():
    """Guards every sign and factor: two entries, two tokens, W = 0, worked out on paper."""
    weights = Weights(np.zeros((2, 2)), np.ones(2))
    lesson = Lessons(np.array([[3.0, 4.0]]), np.array([[0]]), np.array([[1.0]]))
    loss, found = gradients(weights, np.eye(2), 0.0, lesson)
    # r = 1/sqrt(12.5), n = (0.848528, 1.131371), q0 = 1/(1 + e^0.282843)
    q = 1.0 / (1.0 + np.exp(0.2828427))
    assert loss == pytest.approx(-np.log(q))
    assert found.norm == pytest.approx([(q - 1.0) * 0.8485281, (1.0 - q) * 1.1313708])
    dg = 0.2828427 * np.array([(q - 1.0) - 3 * 0.08 * (1.0 - q) / 2, (1.0 - q) - 4 * 0.08 * (1.0 - q) / 2])
    assert found.transform == pytest.approx(np.outer(dg, [3.0, 4.0]), rel=1e-5)


@pytest.mark.parametrize("part", ["transform", "norm"])
def test_gradients_are_differences(part):
    """Guards the chain rule through the norm, for every single weight."""
    weights, rows, lessons = drawn()
    _, found = gradients(weights, rows, EPS, lessons)
    values, h = getattr(weights, part), 1e-6
    for at in np.ndindex(values.shape):
        sides = []
        for step in (h, -h):
            moved = weights.copy()
            getattr(moved, part)[at] += step
            sides.append(gradients(moved, rows, EPS, lessons)[0])
        assert getattr(found, part)[at] == pytest.approx((sides[0] - sides[1]) / (2 * h), abs=1e-7)


def test_a_row_without_mass_teaches_nothing():
    """Guards rows whose tokens the draft vocabulary has not: they would pull towards nothing at all."""
    weights, rows, lessons = drawn()
    without = Lessons(*(np.delete(part, 1, axis=0) for part in lessons))
    (loss, found), (least, same) = (gradients(weights, rows, EPS, given) for given in (lessons, without))
    assert loss == pytest.approx(least)
    assert found.transform == pytest.approx(same.transform)
    assert found.norm == pytest.approx(same.norm)


def test_a_token_that_is_named_twice_counts_once_for_each():
    """Guards places that fill up a row: they have no mass, and may repeat a token that has."""
    weights, rows, lessons = drawn()
    longer = Lessons(
        lessons.states,
        np.concatenate([lessons.places, lessons.places[:, :1]], axis=1),
        np.concatenate([lessons.masses, np.zeros((5, 1))], axis=1),
    )
    one, other = gradients(weights, rows, EPS, lessons), gradients(weights, rows, EPS, longer)
    assert one[0] == pytest.approx(other[0])
    assert one[1].transform == pytest.approx(other[1].transform)


def test_a_step_is_adam(monkeypatch):
    """Guards the optimiser against the published rule, in pieces, with a scale of its own for each column."""
    monkeypatch.setattr(linear, "PIECE", 2)
    start = Weights(np.array([[1.0, -2.0], [0.5, 0.0]]), np.array([1.0, 1.0]))
    scale = np.array([0.1, 2.0])
    adam = Adam(start.copy(), scale, 0.01)
    m = v = 0.0
    expected = start.transform.copy()
    for step, g in enumerate((np.array([[1.0, -3.0], [0.2, 5.0]]), np.array([[-2.0, 1.0], [0.1, 4.0]])), start=1):
        for _ in adam.step(Weights(g, np.zeros(2))):
            pass
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        expected -= 0.01 * scale * (m / (1 - 0.9**step)) / np.sqrt(v / (1 - 0.99**step))
    assert adam.weights.transform == pytest.approx(expected, rel=1e-6)
    assert (adam.weights.norm == start.norm).all()


@pytest.mark.parametrize("make", [tiny_runtime, lambda: tiny_core("fp32")])
def test_what_is_trained_is_what_decoding_runs(make):
    """Guards the formula: the learner's logits are those of the attached head, over the same draft vocabulary."""
    runtime, tokens = make(), np.array([0, 4, 9, 33, 60])
    head = nearly_untrained(tiny_runtime(), random_facts("exit_head", "linear", taps=(2,)), tokens)
    states = np.random.default_rng(0).normal(0, 3, (7, 32)).astype(np.float32)
    attached = runtime.attach(head, 32 if runtime.name == "cpu" else None)
    entering = states if runtime.name == "cpu" else __import__("torch").from_numpy(states).double()
    out = attached.run(entering, [0] * 7, Rows.of([0] * 7, range(7)), None)
    weights = Weights(head.weights["transform.weight"], head.weights["norm.weight"])
    mine = normed(weights, head.facts.eps, states) @ runtime.head_rows(tokens).T
    assert np.abs(attached.logits(out) - mine).max() < 1e-4 * np.abs(mine).max()
    assert np.array_equal(runtime.head_rows(tokens), runtime.weight("head")[tokens])
