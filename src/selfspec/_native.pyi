"""The native core (native/*.cpp): packing, and passes over rows. Arrays are contiguous; outputs are in place.

Kinds of packed matrices: "fp32", "bf16", "fp16", "int8", "int4". Wrong shapes raise ValueError, rows that do
not exist IndexError, a lack of memory MemoryError.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

def features() -> list[str]:
    """Instruction sets of this processor that matter here, for `info`."""

def allocate(size: int) -> NDArray[np.uint8]:
    """Zeroed memory in huge pages where the system has them; it appears when it is touched."""

def kernel_sets() -> list[str]:
    """The kernel sets that this processor runs, the fastest first: "avx2", "portable"."""

def packed_bytes(kind: str, rows: int, columns: int) -> int:
    """Bytes of a packed matrix of ``rows`` outputs and ``columns`` inputs."""

def pack(kind: str, weights: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
    """Pack weights [rows, columns]; int8 and int4 are rounded to the nearest value of their block of 32 inputs."""

def pack_blocks(blocks: str, rows: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Pack rows of GGUF blocks ("Q8_0" to int8; "Q4_0", "Q4_1" to int4), values taken over exactly."""

class Matrix:
    """A packed matrix; it holds on to ``data`` and never copies it."""

    def __init__(self, kind: str, rows: int, columns: int, data: NDArray[np.uint8]) -> None: ...

def unpack_rows(matrix: Matrix, rows: NDArray[np.int64], out: NDArray[np.float32]) -> None:
    """Rows of a packed matrix as float32 [len(rows), columns]."""

def take_rows(matrix: Matrix, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
    """A packed matrix of the given rows, bit for bit."""

def largest(logits: NDArray[np.float32], index: NDArray[np.int64], logit: NDArray[np.float32]) -> None:
    """Of each row of logits [R, V] the k largest in falling order, the first of equals first: out [R, k]."""

class Cache:
    """Keys and values of ``slots`` sequences of up to ``length`` cells; ``half`` keeps them in fp16, else fp32."""

    def __init__(self, layers: int, slots: int, length: int, kv_heads: int, width: int, half: bool) -> None: ...
    @property
    def nbytes(self) -> int: ...
    def copy_from(self, other: Cache) -> None:
        """Take over what a shorter cache of the same model and precision holds."""

_Plan = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]
_Rows = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64] | None]

class Model:
    """A decoder and its team of threads. Calls from several threads take turns; after a fork it goes on working.

    ``sizes``: layers, hidden, intermediate, heads, KV heads, head width, vocabulary.
    """

    def __init__(
        self, sizes: Sequence[int], eps: float, frequencies: NDArray[np.float32], kernels: str, threads: int
    ) -> None: ...
    def set_linear(self, layer: int, role: str, matrix: Matrix, bias: NDArray[np.float32] | None) -> None:
        """Role: "q", "k", "v", "o", "gate", "up", "down" of a layer, or "head"."""

    def set_norm(self, layer: int, role: str, weight: NDArray[np.float32]) -> None:
        """Role: "attention" or "mlp" of a layer, or "final"."""

    def run(self, hidden: NDArray[np.float32], plan: _Plan, rows: _Rows, cache: Cache) -> None:
        """Replace ``hidden`` [R, d] by the residual stream after the steps of the plan.

        ``plan``: steps (twice the layer, plus one for its MLP), for each the index of its tap or -1, and the
        taps [taps, R, d]. ``rows``: slots [R], positions [R], lineage [R, D] or None.
        """

    def logits(self, hidden: NDArray[np.float32], out: NDArray[np.float32], head: Matrix | None) -> None:
        """Final norm and head: out [R, rows of the head]; ``head`` None is the model's own."""

    def best(
        self,
        hidden: NDArray[np.float32],
        index: NDArray[np.int64],
        logit: NDArray[np.float32],
        lse: NDArray[np.float32],
        head: Matrix | None,
    ) -> None:
        """The largest logit of each row, its index (the first of equals), and log-sum-exp of all of them."""

    def move(
        self, cache: Cache, slots: NDArray[np.int64], from_cells: NDArray[np.int64], to_cells: NDArray[np.int64]
    ) -> None:
        """Copy cells of the cache in every layer, one after the other."""

    def sweep(self, arrays: Sequence[NDArray[np.uint8]]) -> None:
        """Read every byte once, as products do but without arithmetic: the floor of a pass."""

    def seconds(self) -> list[float]:
        """Seconds since the last call: norms, qkv, rotary and cache, attention, output, gate and up, down, head.

        Nothing is counted before the first call.
        """
