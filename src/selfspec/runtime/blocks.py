"""Blocks of GGUF as levels, scales and minima of 32 inputs: what the int8 and int4 kinds of the core hold.

A value is scale * level + minimum. The layouts are those of ggml (ggml-common.h). Levels are always taken over as
they are; so are the scales, but for those of Q4_K, which are products of two numbers and are rounded to fp16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

INPUTS = 32  # that share a scale


class Levels(NamedTuple):
    """Of ``kind`` int8 or int4: levels uint8 [rows, columns] (int8: bits), the rest fp16 [rows, columns / 32]."""

    kind: str
    levels: NDArray[np.uint8]
    scales: NDArray[np.float16]
    minima: NDArray[np.float16]


def _halves(raw: NDArray[np.uint8]) -> NDArray[np.float16]:
    """The fp16 numbers in the last axis of bytes."""
    return np.ascontiguousarray(raw).view("<f2")


def _nibbles(raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Low ones, then high ones, along the last axis."""
    return np.concatenate([raw & 15, raw >> 4], axis=-1)


def _q8_0(raw: NDArray[np.uint8]) -> tuple[Any, Any, Any]:
    return raw[..., 2:], _halves(raw[..., :2]), None


def _q4_0(raw: NDArray[np.uint8]) -> tuple[Any, Any, Any]:
    scales = _halves(raw[..., :2])
    return _nibbles(raw[..., 2:]), scales, scales * np.float16(-8)  # exact: three binary places up


def _q4_1(raw: NDArray[np.uint8]) -> tuple[Any, Any, Any]:
    return _nibbles(raw[..., 4:]), _halves(raw[..., :2]), _halves(raw[..., 2:4])


def _q5_0(raw: NDArray[np.uint8]) -> tuple[Any, Any, Any]:
    high = np.unpackbits(raw[..., 2:6], axis=-1, bitorder="little")
    return (_nibbles(raw[..., 6:]) | high << 4) - np.uint8(16), _halves(raw[..., :2]), None


def _q4_k(raw: NDArray[np.uint8]) -> tuple[Any, Any, Any]:
    """256 values in eight blocks, whose scales and minima are 6-bit multiples of two numbers."""
    first, second, third = raw[..., 4:8], raw[..., 8:12], raw[..., 12:16]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=-1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1)
    of_scales, of_minima = (_halves(raw[..., at : at + 2]).astype(np.float32) for at in (0, 2))
    pairs = raw[..., 16:].reshape(*raw.shape[:-1], 4, INPUTS)  # of blocks: low nibbles, high nibbles
    return (
        _nibbles(pairs),
        (of_scales * scales).astype(np.float16),
        (of_minima * -minima.astype(np.float32)).astype(np.float16),
    )


class _Type(NamedTuple):
    kind: str
    size: int  # bytes of a block
    inputs: int
    read: Callable[[NDArray[np.uint8]], tuple[Any, Any, Any]]


_TYPES = {
    "Q8_0": _Type("int8", 34, 32, _q8_0),
    "Q5_0": _Type("int8", 22, 32, _q5_0),
    "Q4_0": _Type("int4", 18, 32, _q4_0),
    "Q4_1": _Type("int4", 20, 32, _q4_1),
    "Q4_K": _Type("int4", 144, 256, _q4_k),
}
KIND_OF_BLOCKS = {name: found.kind for name, found in _TYPES.items()}
"""GGUF block types whose levels are taken over as they are."""
EXACT_BLOCKS = frozenset(_TYPES) - {"Q4_K"}
"""Those whose scales are taken over as they are too, so that every value is."""


def levels_of(rows: NDArray[np.uint8], blocks: str) -> Levels:
    """What rows of blocks, uint8 [rows, bytes of a row], hold; ``blocks`` is one of ``KIND_OF_BLOCKS``."""
    found = _TYPES[blocks]
    count, columns = rows.shape[0], rows.shape[1] // found.size * found.inputs
    levels, scales, minima = found.read(rows.reshape(count, -1, found.size))
    scales = scales.reshape(count, -1)
    minima = np.zeros_like(scales) if minima is None else minima.reshape(count, -1)
    return Levels(found.kind, levels.reshape(count, columns), scales, minima)
