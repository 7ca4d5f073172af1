"""Weights as the native core reads them: packed matrices in NumPy arrays, which may be views of a memory map.

A model for the core is a mapping from the keys of parts (`runtime.parts`) to these: `Packed` for the matrices,
float32 arrays for norms, biases and other vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from selfspec.errors import RuntimeMissingError
from selfspec.runtime.blocks import levels_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

KINDS = ("fp32", "bf16", "fp16", "int8", "int4")
KIND_OF_DTYPE = {"float64": "fp32", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""How a stored precision is packed; float64 is narrowed."""
KIND_OF_BITS = {32: "fp32", 16: "bf16", 8: "int8", 4: "int4"}
PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8", "int4": "int4"}
BITS = {"float32": 32, "bfloat16": 16, "float16": 16, "int8": 8, "int4": 4}
"""Of a weight, by precision."""


def native() -> Any:
    """The extension module.

    Raises
    ------
    RuntimeMissingError
        The package was installed without it.
    """
    try:
        from selfspec import _native
    except ImportError as error:
        raise RuntimeMissingError(
            "the cpu runtime is not built in this installation, because there was no C++20 compiler: install one "
            "and then selfspec again, or use runtime torch"
        ) from error
    return _native


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A matrix of ``rows`` outputs and ``columns`` inputs, packed for the core.

    ``kind``: "fp32", "bf16" and "fp16" hold the weights as they are; "int8" and "int4" blocks of 32 inputs with
    a scale (int4: and a minimum) in fp16. ``data`` is uint8 [packed_bytes(kind, rows, columns)], aligned
    to 4 bytes at least and best to 64; it is used where it lies. Its layout is described in native/kinds.h.
    """

    kind: str
    rows: int
    columns: int
    data: NDArray[np.uint8]

    def matrix(self) -> Any:
        """The core's handle on it."""
        return native().Matrix(self.kind, self.rows, self.columns, self.data)

    def unpack(self, rows: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """The values that the matrix stands for, of some or all rows: float32 [rows, columns]."""
        index = np.arange(self.rows) if rows is None else rows
        out = np.empty((len(index), self.columns), dtype=np.float32)
        native().unpack_rows(self.matrix(), index, out)
        return out

    def take(self, rows: NDArray[np.int64]) -> Packed:
        """A matrix of the given rows, bit for bit: a trimmed head."""
        data = allocate(packed_bytes(self.kind, len(rows), self.columns))
        native().take_rows(self.matrix(), np.ascontiguousarray(rows, dtype=np.int64), data)
        return Packed(self.kind, len(rows), self.columns, data)


PackedWeights: TypeAlias = "dict[str, Packed | NDArray[np.float32]]"


def floats(values: Any) -> NDArray[np.float32]:
    """Numbers as the core reads them; themselves where they are so already."""
    return np.ascontiguousarray(values, dtype=np.float32)


def packed_bytes(kind: str, rows: int, columns: int) -> int:
    """Bytes of a packed matrix; rows are padded to 16 and columns to 32."""
    return int(native().packed_bytes(kind, rows, columns))


def allocate(size: int) -> NDArray[np.uint8]:
    """Zeroed memory for weights, aligned, in huge pages where the system has them and it is large enough."""
    memory: NDArray[np.uint8] = native().allocate(size)
    return memory


def pack(weights: NDArray[Any], kind: str, out: NDArray[np.uint8] | None = None) -> Packed:
    """Pack weights [rows, columns] of any float type, into ``out`` if it is given."""
    rows, columns = weights.shape
    data = allocate(packed_bytes(kind, rows, columns)) if out is None else out
    native().pack(kind, np.ascontiguousarray(weights, dtype=np.float32), data)
    return Packed(kind, rows, columns, data)


def pack_blocks(rows: NDArray[np.uint8], blocks: str, out: NDArray[np.uint8] | None = None) -> Packed:
    """Pack rows of GGUF blocks, uint8 [rows, bytes of a row]; ``blocks`` is one of ``KIND_OF_BLOCKS``.

    Query and key rows must be in half-split order already (``gguf_weights.half_split`` works on them too).
    """
    found = levels_of(rows, blocks)
    count, columns = found.levels.shape
    data = allocate(packed_bytes(found.kind, count, columns)) if out is None else out
    words = (np.ascontiguousarray(part).view(np.uint16) for part in (found.scales, found.minima))
    native().pack_levels(found.kind, np.ascontiguousarray(found.levels), *words, data)
    return Packed(found.kind, count, columns, data)
