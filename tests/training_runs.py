"""Runs of `selfspec.train.heads.trainer` in tests: their events, and a clock for checkpoints."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import torch

from selfspec.train.heads.trainer import accelerator_of, train


def run_of(setup, steps=None, clock=None):
    """The events of the job of a setup that reads the target's states."""
    setup.make_states(lambda _: None)
    job = setup.job(torch.device("cpu"))
    return events_of(job if clock is None else replace(job, clock=clock), steps)


def events_of(job, steps=None):
    """Events of a run, which ends as a kill would after ``steps`` steps."""
    events = []
    for event in train(job, accelerator_of(job.options, "cpu")):
        events.append(event)
        if steps is not None and event.progress.step == steps and event.kind == "step":
            break
    return events


def ticking():
    """A clock of a second a look: with checkpoints after 0.2 minutes one comes every few steps."""
    ticks = count()
    return lambda: float(next(ticks))
