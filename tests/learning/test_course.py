"""What is learned: better heads are kept, worse ones and those that are no numbers are not."""

from __future__ import annotations

import numpy as np
import pytest

from selfspec.learning import course as module
from selfspec.learning.course import STEPS, VISITS, Course
from selfspec.learning.linear import Adam, Weights, gradients, normed
from selfspec.learning.replay import row_bytes
from selfspec.model.head_file import HeadFacts, HeadFile

D, V = 12, 40


class World:
    """A target whose laws a linear head can learn: its states are those of the exit, turned."""

    def __init__(self, seed=0, sharp=4.0):
        self.random = np.random.default_rng(seed)
        self.head = self.random.normal(0, 1, (V, D)).astype(np.float32)
        self.turn = Weights(
            self.random.normal(0, 0.6, (D, D)).astype(np.float32), np.full(D, sharp / 4, np.float32)
        )
        self.used = []

    def start(self, vocabulary=None):
        facts = HeadFacts("exit_head", "linear", (2,), D)
        weights = {"transform.weight": np.zeros((D, D), np.float32), "norm.weight": np.ones(D, np.float32)}
        return HeadFile(facts, weights, vocabulary)

    def rows(self, count):
        states = self.random.normal(0, 2, (count, D)).astype(np.float32)
        return states, (normed(self.turn, 1e-5, states) @ self.head.T).astype(np.float32)

    def course(self, rows=600, temperature=0.0):
        made = Course(self.start(), 2000 * row_bytes(D), V, lambda tokens: self.head[tokens], self.used.append)
        for _ in range(rows // 8):
            made.take(*self.rows(8), temperature)
        return made


def ran(course, rounds=1):
    for _ in range(rounds):
        assert course.has_work
        for _ in course.work():
            pass


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_acceptance_rises_and_better_heads_are_offered(temperature):
    """Guards the whole of it: a head that begins as nothing comes to say what the target says."""
    world = World()
    course = world.course(1200, temperature)
    ran(course, 9)
    counts = course.counts
    assert counts.first_alpha < 0.45
    assert counts.alpha > counts.first_alpha + 0.25
    assert counts.kept == len(world.used) > 0
    assert counts.steps == 9 * STEPS
    assert course.head is world.used[-1]
    assert (course.head.facts.card["learned"]["rows"]) <= counts.rows


def test_a_worse_head_is_thrown_away(monkeypatch):
    """Guards drafting: steps into the wrong direction change nothing that drafts, and the next try is as before."""
    world = World()
    course = world.course()
    ran(course, 3)
    good, used = course.head, len(world.used)
    step = Adam.step
    monkeypatch.setattr(Adam, "step", lambda self, g: step(self, Weights(-30 * g.transform, -30 * g.norm)))
    rate = course._rate
    ran(course)
    assert course.head is good
    assert (len(world.used), course.counts.thrown_away) == (used, 1)
    assert (course._weights.transform == good.weights["transform.weight"]).all()
    assert course._rate < rate
    monkeypatch.setattr(Adam, "step", step)
    for _ in range(50):
        course.take(*world.rows(8), 0.0)
    ran(course, 3)
    assert len(world.used) > used  # it has not given up


def test_an_equal_head_is_no_better(monkeypatch):
    """Guards "rose": a candidate that learned nothing does not become the head."""
    world = World()
    course = world.course()
    ran(course, 2)
    monkeypatch.setattr(Adam, "step", lambda *_: iter(()))
    before = len(world.used)
    course._seen[:] = 0.0  # the same draft vocabulary
    course._seen[course.head.vocabulary] = 1.0
    ran(course)
    assert len(world.used) == before


@pytest.mark.parametrize("where", ["gradient", "states"])
def test_what_is_no_number_changes_nothing(monkeypatch, where):
    """Guards the head against NaN: of a gradient that overflows, or of rows that are none."""
    world = World()
    course = world.course()
    if where == "gradient":

        def bad(*given):
            loss, found = gradients(*given)
            return loss, found._replace(norm=np.full_like(found.norm, np.nan))

        monkeypatch.setattr(module, "gradients", bad)
        ran(course)
        assert world.used == []
        assert course.counts.thrown_away == 1
    else:
        states, logits = world.rows(8)
        course.take(states * np.float32(np.nan), logits, 0.0)
        course.take(states, logits * np.float32(np.nan), 0.0)
        assert np.isfinite(course._seen).all()
        ran(course)
    assert np.isfinite(course.head.weights["transform.weight"]).all()
    assert course._weights.is_finite


def test_there_is_an_end_to_what_a_row_teaches():
    """Guards an idle server: without new rows it learns from each a few times, then rests."""
    course = World().course(600)
    rounds = 0
    while course.has_work:
        ran(course)
        rounds += 1
    assert rounds * STEPS * module.BATCH <= 600 * VISITS
    assert rounds >= 600 * VISITS // (STEPS * module.BATCH) - 1
    course.take(*World().rows(8), 0.0)
    assert not course.has_work


def test_it_begins_when_there_is_enough():
    """Guards the first trial: a handful of rows says nothing about a head."""
    course = World().course(248)
    assert not course.has_work
    course.take(*World().rows(8), 0.0)
    assert course.has_work


def test_the_draft_vocabulary_is_what_was_seen(monkeypatch):
    """Guards trimming: tokens of laws and prompts, the most seen ones where there are too many; no others."""
    monkeypatch.setattr(module, "MOST_TOKENS", 10)
    world = World()
    course = world.course(600)
    course.read(np.array([39, 39, 39]))
    seen = course._seen.copy()
    ran(course)
    found = world.used[-1].vocabulary
    assert len(found) == 10
    assert (np.diff(found) > 0).all()
    assert seen[found].min() >= np.sort(seen)[-10]
    few = Course(world.start(), 2000 * row_bytes(D), V, lambda tokens: world.head[tokens], world.used.append)
    few.read(np.array([3, 7]))
    logits = np.full((8, V), -30.0, np.float32)
    logits[:, 5] = 10.0
    few.take(world.rows(8)[0], logits, 0.0)
    few._choose_tokens()
    assert few._tokens.tolist() == [3, 5, 7]


def test_pieces_of_work_are_short(monkeypatch):
    """Guards the engine: of a large model there are a few rows between two pauses, not a step or a trial."""
    sizes = []

    def counted(*given):
        sizes.append(len(given[3].states))
        return gradients(*given)

    monkeypatch.setattr(module, "gradients", counted)
    monkeypatch.setattr("selfspec.learning.trial.WORK", 10 * (6 * D * D + 4 * V * D))
    world = World()
    course = world.course()
    pieces = sum(1 for _ in course.work())
    assert max(sizes) <= 12
    assert sum(sizes) == STEPS * module.BATCH
    assert pieces >= len(sizes) + STEPS
