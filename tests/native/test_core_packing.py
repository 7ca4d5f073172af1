"""Packed matrices: what they stand for, and that GGUF blocks are taken over exactly."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from selfspec.runtime.blocks import levels_of
from selfspec.runtime.packing import Packed, allocate, pack, pack_blocks, packed_bytes

SHAPES = [(16, 32), (1, 1), (17, 33), (203, 100)]


def matrix(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
def test_exact_kinds_give_back_what_was_packed(shape):
    """Guards the layouts and their padding."""
    weights = matrix(shape)
    assert np.array_equal(pack(weights, "fp32").unpack(), weights)
    half = weights.astype(np.float16)
    assert np.array_equal(pack(half, "fp16").unpack(), half)
    bfloat = (weights.view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert np.array_equal(pack(bfloat, "bf16").unpack(), bfloat)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("kind", "levels"), [("int8", 254), ("int4", 15)])
def test_integer_kinds_round_to_the_nearest_level_of_their_block(kind, levels, shape):
    """Guards the quantisation: no error above half a step of the block, plus the rounding of scales to fp16."""
    weights = matrix(shape)
    error = np.abs(pack(weights, kind).unpack() - weights)
    for start in range(0, shape[1], 32):
        block = weights[:, start : start + 32]
        padding = np.zeros((shape[0], int(block.shape[1] < 32)), np.float32)  # zeros belong to a padded block
        block = np.concatenate([block, padding], axis=1)
        span = 2 * np.abs(block).max(axis=1) if kind == "int8" else np.ptp(block, axis=1)
        limit = span / levels * 0.5 + 2e-3 * np.abs(block).max(axis=1)
        assert (error[:, start : start + 32] <= limit[:, None] + 1e-7).all()


def test_halves_round_as_numpy_does():
    """Guards the scalar conversion: every half, the middles between two, subnormals, the ends of the range."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    values = np.concatenate([halves, (halves[1:] + halves[:-1]) / 2, [65519.0, 65520.0, 1e-8, 3e-8, 1e9]])
    values = np.concatenate([values, -values]).astype(np.float32)[None]
    with np.errstate(over="ignore"):
        want = values.astype(np.float16).astype(np.float32)
    assert np.array_equal(pack(values, "fp16").unpack(), want)


@pytest.mark.parametrize("blocks", ["Q8_0", "Q4_0", "Q4_1", "Q5_0"])
@pytest.mark.parametrize("shape", [(16, 32), (5, 96), (203, 64)])
def test_gguf_blocks_are_taken_over_exactly(blocks, shape):
    """Guards against a second quantisation: the values are those of the gguf package, to the last bit."""
    type_ = gguf.GGMLQuantizationType[blocks]
    raw = quantize(matrix(shape), type_)
    assert np.array_equal(pack_blocks(raw, blocks).unpack(), dequantize(raw, type_))


def test_packing_goes_where_it_is_told():
    """Guards the memory-mapped cache: nothing is copied, and the size is the one announced."""
    data = allocate(packed_bytes("int4", 40, 70))
    assert data.ctypes.data % 64 == 0
    assert pack(matrix((40, 70)), "int4", data).data is data
    assert len(data) == 3 * 3 * 320
    with pytest.raises(ValueError, match="wrong size"):
        pack(matrix((40, 70)), "int8", data)
    with pytest.raises(ValueError, match="no packed matrix"):
        Packed("int8", 40, 70, data).matrix()


def test_read_only_bytes_are_enough():
    """Guards weights in a read-only memory map."""
    data = pack(matrix((40, 70)), "bf16").data
    data.flags.writeable = False
    assert Packed("bf16", 40, 70, data).unpack().shape == (40, 70)


def test_levels_of_q4_k_are_kept_and_scales_are_rounded_once():
    """Guards K-quants: 4 bits stay the same 4 bits; products of two scales are rounded to fp16, nothing more."""
    random = np.random.default_rng(3)
    raw = random.integers(0, 256, (37, 2, 144), dtype=np.uint8)
    raw[..., :4] = (random.random((37, 2, 2)) * 0.01 + 1e-3).astype(np.float16).view(np.uint8)
    raw = raw.reshape(37, -1)
    want = dequantize(raw, gguf.GGMLQuantizationType.Q4_K)
    packed = pack_blocks(raw, "Q4_K")
    assert packed.kind == "int4"
    found = levels_of(raw, "Q4_K")
    scales, minima = (np.repeat(part.astype(np.float32), 32, axis=1) for part in (found.scales, found.minima))
    assert np.array_equal(packed.unpack(), found.levels * scales + minima)
    limit = 2.0**-11 * (np.abs(found.levels * scales) + np.abs(minima)) * 1.001
    assert (np.abs(packed.unpack() - want) <= limit).all()
    assert not np.array_equal(packed.unpack(), want)  # or the rounding need not be stated
