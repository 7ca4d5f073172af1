"""Times of passes, the ceilings, and peak memory."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from doubles import tiny_runtime
from measure_doubles import CostlyRuntime

from selfspec.measure.memory import PeakMemory
from selfspec.measure.passes import Ceiling, measure_ceiling, pass_seconds


def test_a_pass_of_known_cost_is_timed_as_that(clock):
    """Guards v(T): rows and context reach the runtime, and only the given clock is read."""
    runtime = CostlyRuntime(clock, v=1.7)
    assert pass_seconds(runtime, 1, clock=clock) == pytest.approx(1.0)
    assert pass_seconds(runtime, 5, context=9, clock=clock) == pytest.approx(1.7)


def test_the_ceiling_is_bandwidth_over_bytes():
    """Guards the arithmetic of both ceilings, by hand."""
    ceiling = Ceiling(10**6, 2 * 10**6, 10**9, 10**10, 0.1)
    assert ceiling.memory_tokens_per_second == 1000.0
    assert ceiling.arithmetic_tokens_per_second == 5000.0
    assert ceiling.break_even_rows == 5.0


def test_the_machine_and_a_real_runtime_are_measured():
    """Guards the numbers that go in: bytes are those of layers and head, in the runtime's precision."""
    runtime = tiny_runtime(dtype="float32")
    found = measure_ceiling(runtime)
    config = runtime.config
    weights = config.num_layers * config.layer_parameters + config.head_parameters
    assert (found.weight_bytes, found.operations) == (4 * weights, 2 * weights)
    assert set(found.to_dict()) >= {"memory_tokens_per_second", "pass_seconds"}
    assert all(np.isfinite(value) and value > 0 for value in found.to_dict().values())


@pytest.mark.skipif(sys.platform != "linux", reason="the mark can be set back on Linux only")
def test_the_peak_is_that_of_the_run():
    """Guards memory by column: what was freed before the reset is not in the next peak."""
    memory = PeakMemory()
    if not memory.is_per_run:
        pytest.skip("this system does not let the mark be set back")
    before = memory.peak_bytes()
    block = np.ones(64 << 20, dtype=np.uint8)
    assert memory.peak_bytes() - before > 50 << 20
    del block
    memory.reset()
    assert memory.peak_bytes() - before < 32 << 20
