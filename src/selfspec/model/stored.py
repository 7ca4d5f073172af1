"""Weights as a checkpoint has them, one at a time, before any runtime turns them into its own form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from selfspec.errors import UnsupportedModelError
from selfspec.model.safetensors_file import read_header

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

Array = np.ndarray[Any, Any]
_NUMPY = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}


class Stored(NamedTuple):
    """One weight in the precision of its file; ``data`` may be a view of the mapped file.

    ``kind`` is "float64", "float32", "float16", "bfloat16" (``data`` [n, k] or [n]; bfloat16 as uint16), or a
    block type of GGML in lower case such as "q4_1" (``data`` uint8 [n, bytes of a row]). ``origin`` names the
    weight in messages.
    """

    kind: str
    shape: tuple[int, ...]
    data: Array
    origin: str

    def dense(self) -> Array:
        """The values in float32, of ``shape``; a float64 is rounded.

        Raises
        ------
        UnsupportedModelError
            A block type that cannot be read.
        """
        if self.kind == "bfloat16":
            return (self.data.astype(np.uint32) << 16).view(np.float32).reshape(self.shape)
        if self.kind in _NUMPY:
            return np.asarray(self.data, dtype=np.float32).reshape(self.shape)
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        try:
            array: Array = dequantize(self.data, GGMLQuantizationType[self.kind.upper()])
        except NotImplementedError as error:
            raise UnsupportedModelError(
                f"{self.origin} has the quantisation {self.kind.upper()}, which cannot be read; take a file with "
                "Q4, Q5, Q6, Q8, F16 or BF16 weights"
            ) from error
        return array.reshape(self.shape)


def from_safetensors(files: Mapping[str, Path]) -> Iterator[tuple[str, Stored]]:
    """The weights of checked safetensors ``files`` (weight name -> file), in that order, mapped."""
    headers = {path: read_header(path) for path in set(files.values())}
    for name, path in files.items():
        info = headers[path].tensors[name]
        data = np.memmap(path, _NUMPY[info.dtype], "r", info.begin, info.shape)
        yield name, Stored(info.dtype, info.shape, data, f"{name} in {path.name}")
