"""Rotary inverse frequencies."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from selfspec.model.config import Rope

Floats: TypeAlias = NDArray[np.float32]
Power: TypeAlias = Callable[[float, Floats], Floats]


def exact_power(base: float, exponents: Floats) -> Floats:
    """Powers of ``base``, rounded to float32 once: the same bits on every processor."""
    return (np.float64(np.float32(base)) ** exponents.astype(np.float64)).astype(np.float32)


def inverse_frequencies(rope: Rope, head_dim: int, power: Power = exact_power) -> Floats:
    """Rotary inverse frequencies [dims / 2] in float32, scaled as ``rope.kind`` says; dims of a head are turned.

    The last bit of a power in float32 depends on library and processor: ``power`` is whose result is wanted.
    """
    dims = rope.dims(head_dim)
    exponents = np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims)
    powers = power(rope.theta, exponents)
    plain = np.float32(1.0) / powers
    if rope.kind == "linear":
        return (plain / np.float32(rope.factor)).astype(np.float32)
    if rope.kind == "llama3":
        # in torch a number ÷ an array is that number times the reciprocals
        wavelength = np.float32(2 * math.pi) * (np.float32(1.0) / plain)
        ratio = np.float32(rope.original_context) * (np.float32(1.0) / wavelength)
        blend = (ratio - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        blend = blend.clip(0.0, 1.0)  # 0 for long wavelengths: fully scaled; 1 for short ones: untouched
        return ((1 - blend) * plain / rope.factor + blend * plain).astype(np.float32)
    if rope.kind == "longrope":
        return (np.float32(1.0) / (np.asarray(rope.factors, dtype=np.float32) * powers)).astype(np.float32)
    if rope.kind == "yarn":
        return _yarn(rope, powers, dims)
    return plain.astype(np.float32)


def _yarn(rope: Rope, powers: Floats, dims: int) -> Floats:
    """Untouched where the original context holds many rotations, divided by the factor where it holds few."""

    def dimension(rotations: float) -> float:
        return dims * math.log(rope.original_context / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    if low == high:
        high += 0.001
    ramp = ((np.arange(dims // 2, dtype=np.float32) - low) / (high - low)).clip(0, 1).astype(np.float32)
    kept = (1 - ramp).astype(np.float32)
    slow = np.float32(1.0) / (np.float32(rope.factor) * powers)
    return (slow * (1 - kept) + np.float32(1.0) / powers * kept).astype(np.float32)
