"""Fixtures of the measuring tests."""

from __future__ import annotations

import pytest
from measure_doubles import Clock, CostlyRuntime

from selfspec.engine import Engine
from selfspec.measure.timing import Ask


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ask():
    return Ask((1, 2, 3), 10)


@pytest.fixture
def simulated(clock):
    """An engine of known costs, without a tokenizer."""
    return lambda v=1.2: Engine(CostlyRuntime(clock, v), None, "simulated", draft="plain")
