"""Rotary inverse frequencies, the same for every runtime."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from selfspec.model.config import Rope


def inverse_frequencies(rope: Rope, head_dim: int) -> NDArray[np.float32]:
    """Rotary inverse frequencies [head_dim / 2] in float32, scaled as ``rope.kind`` says."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    plain = np.float32(1.0) / np.float32(rope.theta) ** exponents
    if rope.kind == "linear":
        return (plain / np.float32(rope.factor)).astype(np.float32)
    if rope.kind == "llama3":
        wavelength = np.float32(2 * math.pi) / plain
        ratio = np.float32(rope.original_context) / wavelength
        blend = (ratio - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        blend = blend.clip(0.0, 1.0)  # 0 for long wavelengths: fully scaled; 1 for short ones: untouched
        return ((1 - blend) * plain / rope.factor + blend * plain).astype(np.float32)
    return plain.astype(np.float32)
