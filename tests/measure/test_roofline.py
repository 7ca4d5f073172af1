"""Bounds of a pass, by hand."""

from __future__ import annotations

import pytest
from doubles import tiny_core, tiny_runtime

from selfspec.measure.passes import Ceiling
from selfspec.measure.roofline import kv_bytes_per_token, roofline


def test_bounds_by_hand():
    """Guards the arithmetic: weights and KV over bandwidth, operations over speed, and the larger one counts."""
    runtime = tiny_runtime()
    config = runtime.config
    ceiling = Ceiling(10**6, 2 * 10**6, 10**9, 10**9, 0.01).to_dict()
    empty, full = roofline(ceiling, runtime, {0: 0.01, 80: 0.02})
    assert (empty["kv_bytes"], full["kv_bytes"]) == (0, 80 * config.kv_values_per_token * 8)
    assert empty["memory_seconds"] == pytest.approx(1e-3)
    assert empty["arithmetic_seconds_per_row"] == pytest.approx(2e-3)
    assert empty["arithmetic_bound_rows"] == pytest.approx(0.5)
    assert empty["share_of_bound"] == pytest.approx(0.2)
    scores = (
        2 * 2 * 80 * config.num_heads * config.head_dim * config.num_layers
    )  # multiply and add; keys and values
    assert full["operations_per_row"] == 2 * 10**6 + scores
    assert full["memory_seconds"] == pytest.approx((10**6 + full["kv_bytes"]) / 10**9)
    assert full["bytes_per_second_reached"] == pytest.approx((10**6 + full["kv_bytes"]) / 0.02)


def test_keys_and_values_are_counted_as_the_runtime_stores_them():
    """Guards the bytes: half precision is half."""
    values = tiny_runtime().config.kv_values_per_token
    assert kv_bytes_per_token(tiny_runtime()) == 8 * values
    assert kv_bytes_per_token(tiny_core("fp32")) == 4 * values
    assert kv_bytes_per_token(tiny_core("int8")) == 2 * values
