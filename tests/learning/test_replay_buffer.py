"""What is kept of verifications: bounded, the newest held out, and how drafts would fare in them."""

from __future__ import annotations

import numpy as np
import pytest

from selfspec.learning import trial
from selfspec.learning.linear import Weights, normed
from selfspec.learning.replay import HELD_OUT, KEPT, Kept, Laws, Replay, digest, lessons, row_bytes
from selfspec.learning.trial import Draft, acceptance


def laws(rows):
    return Laws(np.zeros((rows, KEPT), np.int32), np.zeros((rows, KEPT), np.float32))


def filled(count, size, width=4):
    replay = Replay(width, size)
    for number in range(count):
        replay.add(np.full((1, width), number, np.float32), laws(1), 0.0)
    return replay


def test_the_buffer_is_as_large_as_was_said_however_much_comes():
    """Guards memory: ten times as many rows as there is room for, and none too many."""
    size = 64 * row_bytes(4) + 3
    replay = filled(0, size)
    before = replay.nbytes
    assert before <= size
    for _ in range(640):
        replay.add(np.zeros((1, 4), np.float32), laws(1), 0.0)
    assert (len(replay), replay.nbytes) == (64, before)


@pytest.mark.parametrize("count", [16, 64, 100, 5000])
def test_what_judges_was_not_learned_from(count):
    """Guards the trial: newest rows are held out, and never drawn; older ones all are, sooner or later."""
    replay = filled(count, 3000 * row_bytes(4))
    judges = set(replay.judges().states[:, 0].astype(int))
    drawn = set(replay.drawn(20_000, np.random.default_rng(0)).states[:, 0].astype(int))
    held = min(min(count, 3000) // 4, HELD_OUT)
    assert judges == set(range(count - held, count))
    assert not judges & drawn
    assert drawn <= set(range(max(0, count - 3000), count - held))
    assert len(drawn) >= 0.99 * (min(count, 3000) - held)


def test_a_row_that_is_judged_now_was_in_no_earlier_step():
    """Guards the moving border: what was ever drawn is never held out again, also while the buffer fills."""
    replay, ever = Replay(4, 1000 * row_bytes(4)), set()
    random = np.random.default_rng(1)
    for number in range(3000):
        replay.add(np.full((1, 4), number, np.float32), laws(1), 0.0)
        if number > 4:
            ever |= set(replay.drawn(5, random).states[:, 0].astype(int))
            assert not ever & set(replay.judges().states[:, 0].astype(int))


def test_rows_that_are_no_numbers_are_left_out():
    """Guards the head: one state or law that is no number would end in every weight."""
    replay = Replay(4, 100 * row_bytes(4))
    states = np.array([[1, 2, 3, 4], [np.nan, 0, 0, 0], [np.inf, 0, 0, 0], [5, 6, 7, 8]], np.float32)
    found = laws(4)
    found.logs[3, 0] = np.nan
    replay.add(states, found, 0.0)
    assert len(replay) == 1
    assert (replay.states[0] == [1, 2, 3, 4]).all()


@pytest.mark.parametrize(("size", "spread"), [(8, 1.0), (3000, 0.001), (3000, 5.0), (3000, 1.0)])
def test_a_law_is_its_likeliest_tokens(size, spread):
    """Guards the digest: tokens in order, their log probabilities over the whole vocabulary."""
    rows = np.random.default_rng(size).normal(0, spread, (20, size)).astype(np.float32)
    found = digest(rows)
    exact = rows - np.log(np.exp(rows.astype(np.float64)).sum(axis=1, keepdims=True))
    for tokens, logs, row, law in zip(found.tokens, found.logs, rows, exact, strict=True):
        count = int(np.isfinite(logs).sum())
        assert count == min(KEPT, int((row > row.max() - 12).sum()))
        assert (tokens[:count] == np.argsort(-row, kind="stable")[:count]).all()
        assert logs[:count] == pytest.approx(law[tokens[:count]], abs=1e-4)


def test_of_equal_logits_the_first_is_the_likeliest():
    """Guards greedy texts, where the target takes the first of equals."""
    row = np.zeros((1, 50), np.float32)
    row[0, [7, 30]] = 2.0
    assert digest(row).tokens[0, :2].tolist() == [7, 30]


def test_lessons_are_laws_over_the_draft_vocabulary():
    """Guards masses: what cannot be drafted has none, the rest is a law; a row without any teaches nothing."""
    tokens, logs = np.zeros((2, KEPT), np.int32), np.full((2, KEPT), -np.inf, np.float32)
    tokens[0, :3], logs[0, :3] = [5, 2, 9], np.log([0.5, 0.3, 0.1])
    tokens[1, :1], logs[1, :1] = [9], np.log([0.9])
    places = np.full(12, -1)
    places[[2, 5]] = [0, 1]
    kept = Kept(np.zeros((2, 4), np.float32), Laws(tokens, logs), np.zeros(2, np.float32))
    found = lessons(kept, places)
    assert found.places[0, :2].tolist() == [1, 0]
    assert found.masses[0, :3] == pytest.approx([0.625, 0.375, 0.0])
    assert (found.masses[1] == 0).all()


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.2])
@pytest.mark.parametrize("trimmed", [False, True])
def test_acceptance_is_that_of_verification(monkeypatch, temperature, trimmed):
    """Guards the trial, by adding up all tokens: equal likeliest ones, or the mass that two laws share."""
    monkeypatch.setattr(trial, "BLOCK", 5)
    monkeypatch.setattr(trial, "WORK", 3 * 2 * 6 * 6)
    random, size, d = np.random.default_rng(3), 14, 6
    head = random.normal(0, 1, (size, d)).astype(np.float32)
    weights = Weights(random.normal(0, 0.2, (d, d)).astype(np.float32), np.ones(d, np.float32))
    states = random.normal(0, 1, (10, d)).astype(np.float32)
    target = (normed(weights, 1e-5, states) @ head.T + random.normal(0, 1, (10, size))).astype(np.float32)
    rows = Kept(states, digest(target), np.full(10, temperature, np.float32))
    tokens = np.array([0, 1, 3, 6, 7, 8, 11]) if trimmed else np.arange(size)
    work = acceptance(Draft(weights, 1e-5, tokens), lambda chosen: head[chosen], rows)
    while True:
        try:
            next(work)
        except StopIteration as end:
            found = end.value
            break
    z = normed(weights, 1e-5, states) @ head.T
    z[:, np.setdiff1d(np.arange(size), tokens)] = -np.inf
    if temperature:
        p, q = (np.exp(x / temperature) for x in (target, z))
        p, q = p / p.sum(axis=1, keepdims=True), q / q.sum(axis=1, keepdims=True)
        expected = np.minimum(p, q).sum(axis=1).mean()
    else:
        expected = (target.argmax(axis=1) == z.argmax(axis=1)).mean()
    assert found == pytest.approx(expected, abs=2e-3)
