"""Weights as a checkpoint has them, one at a time, before any runtime turns them into its own form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from selfspec.model.safetensors_file import read_header

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

Array = np.ndarray[Any, Any]
BLOCK_TYPES = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k")
"""Block types of GGML whose values can be read."""
_SLAB = 4096  # blocks: up to a million values
_NUMPY = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}


class Stored(NamedTuple):
    """One weight in the precision of its file; ``data`` may be a view of the mapped file.

    ``kind`` is "float64", "float32", "float16", "bfloat16" (``data`` of ``shape``; bfloat16 as uint16), or one of
    ``BLOCK_TYPES`` (``data`` uint8 [..., bytes of a row]). ``origin`` names the weight in messages.
    """

    kind: str
    shape: tuple[int, ...]
    data: Array
    origin: str

    def dense(self) -> Array:
        """The values in float32, of ``shape``; a float64 is rounded."""
        if self.kind == "bfloat16":
            return (self.data.astype(np.uint32) << 16).view(np.float32).reshape(self.shape)
        if self.kind in _NUMPY:
            return np.asarray(self.data, dtype=np.float32).reshape(self.shape)
        return _values(self.data, self.kind).reshape(self.shape)


def _values(data: Array, kind: str) -> Array:
    """The values of rows of blocks, float32, flat.

    Slab by slab: the library keeps all its pieces until it joins them, which would double the memory. Blocks do
    not depend on each other, so a slab is given to it as 16 long rows, which is one step for it.
    """
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    block_type = GGMLQuantizationType[kind.upper()]
    values, size = GGML_QUANT_SIZES[block_type]
    blocks = np.ascontiguousarray(data).reshape(-1, size)
    out = np.empty((len(blocks), values), dtype=np.float32)
    for begin in range(0, len(blocks), _SLAB):
        slab = blocks[begin : begin + _SLAB]
        rows = 16 if len(slab) % 16 == 0 else 1
        out[begin : begin + len(slab)] = dequantize(slab.reshape(rows, -1), block_type).reshape(-1, values)
    return out


def from_safetensors(files: Mapping[str, Path]) -> Iterator[tuple[str, Stored]]:
    """The weights of checked safetensors ``files`` (weight name -> file), in that order, mapped."""
    headers = {path: read_header(path) for path in set(files.values())}
    for name, path in files.items():
        info = headers[path].tensors[name]
        data = np.memmap(path, _NUMPY[info.dtype], "r", info.begin, info.shape)
        yield name, Stored(info.dtype, info.shape, data, f"{name} in {path.name}")
