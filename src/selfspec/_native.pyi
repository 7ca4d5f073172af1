"""The native core (native/*.cpp): packing, and passes over rows. Arrays are contiguous; outputs are in place.

Kinds of packed matrices: "fp32", "bf16", "fp16", "int8", "int4". Wrong shapes raise ValueError, rows that do
not exist IndexError, a lack of memory MemoryError.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

def features() -> list[str]:
    """Instruction sets of this processor that matter here, for `info`."""

def allocate(size: int) -> NDArray[np.uint8]:
    """Zeroed memory in huge pages where the system has them; it appears when it is touched."""

def kernel_sets() -> list[str]:
    """The kernel sets that this processor runs, the fastest first.

    Of "avx512_vnni", "avx512", "avx_vnni", "avx2", "neon_dot", "neon" and "portable", which is always there.
    """

def packed_bytes(kind: str, rows: int, columns: int) -> int:
    """Bytes of a packed matrix of ``rows`` outputs and ``columns`` inputs."""

def pack(kind: str, weights: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
    """Pack weights [rows, columns]; int8 and int4 are rounded to the nearest value of their block of 32 inputs."""

def pack_levels(
    kind: str,
    levels: NDArray[np.uint8],
    scales: NDArray[np.uint16],
    minima: NDArray[np.uint16],
    out: NDArray[np.uint8],
) -> None:
    """Pack what is quantised: levels [rows, columns], bits of fp16 scales and minima [rows, columns / 32]."""

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
    """Keys and values of ``slots`` sequences of up to ``length`` cells, in "float16", "bfloat16" or "float32".

    ``rings``: how many cells of a text each layer must keep apart, 0 for all of them; a ring has whole segments
    of 128.
    """

    def __init__(
        self, rings: Sequence[int], slots: int, length: int, kv_heads: int, width: int, element: str
    ) -> None: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def smallest_ring(self) -> int:
        """The fewest cells of a layer that has fewer than ``length``; 0: none has."""

    def copy_from(self, other: Cache) -> None:
        """Take over what a shorter cache of the same model and precision holds."""

    def move(self, slots: NDArray[np.int64], from_cells: NDArray[np.int64], to_cells: NDArray[np.int64]) -> None:
        """Copy cells in every layer, one after the other."""

_Plan = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], int]
_Rows = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64] | None]

class Model:
    """A decoder and its team of threads. Calls from several threads take turns; after a fork it goes on working.

    ``sizes``: layers, hidden, intermediate, heads, KV heads, head width, vocabulary. ``ropes``: inverse
    frequencies [pairs], whether neighbours turn, and a factor of cosines and sines.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        eps: float,
        ropes: Sequence[tuple[NDArray[np.float32], bool, float]],
        kernels: str,
        threads: int,
    ) -> None: ...
    def set_facts(self, layer: int, facts: Mapping[str, object]) -> None:
        """What a layer computes; before its weights.

        Keys: rope (an index, -1: none), window (0: none), scale and cap of scores, centred (norms subtract the
        mean), norm_heads (else queries and keys are normed over all heads), parallel, beside (attention reads a
        second vector of each row and then the stream's, each through its norm), residual, activation
        ("silu", "gelu", "gelu_tanh", "relu", "clipped" with limit and sharpness), experts, per_token,
        expert_width, shared_width, weighting ("all", "renormed", "chosen"). What is left out is as in Llama.
        """

    def set_linear(self, layer: int, role: str, matrix: Matrix, bias: NDArray[np.float32] | None) -> None:
        """Give a matrix to a role.

        Of a layer "q", "k", "v", "o", "gate", "up", "down", "router"; of its shared expert "shared_gate",
        "shared_up", "shared_down", "shared_router"; else "head", "transform" ([hidden, any]).
        """

    def set_expert(
        self, layer: int, expert: int, role: str, matrix: Matrix, bias: NDArray[np.float32] | None
    ) -> None:
        """Role: "gate", "up", "down"."""

    def set_norm(
        self, layer: int, role: str, weight: NDArray[np.float32], bias: NDArray[np.float32] | None
    ) -> None:
        """Role: "attention", "mlp", "attention_after", "mlp_after", "q", "k" or "beside" of a layer, or "final"."""

    def set_sinks(self, layer: int, sinks: NDArray[np.float32]) -> None:
        """Of each head a score that takes part in the soft-max and has no value."""

    def set_logits(self, scale: float, cap: float, centred: bool) -> None:
        """Factor and soft cap (0: none) of logits; whether the final norm subtracts the mean."""

    @property
    def expert_reads(self) -> int:
        """Experts that all passes so far have read, each once a pass and layer."""

    def run(
        self,
        hidden: NDArray[np.float32],
        plan: _Plan,
        rows: _Rows,
        cache: Cache,
        beside: NDArray[np.float32] | None = None,
    ) -> None:
        """Replace ``hidden`` [R, d] by the residual stream after the steps of the plan.

        ``plan``: steps (twice the layer, plus one for its MLP), for each the index of its tap or -1, the taps
        [taps, R, d], and the experts of each row, 0 for as many as a layer has. ``rows``: slots [R], positions
        [R], lineage [R, D] or None. ``beside`` [R, d]: second vectors, where a layer reads them.
        """

    def transformed(self, hidden: NDArray[np.float32], out: NDArray[np.float32], adds: bool) -> None:
        """The product of "transform" and ``hidden`` [R, any] becomes ``out`` [R, d], or is added to it."""

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

    def sweep(self, arrays: Sequence[NDArray[np.uint8]]) -> None:
        """Read every byte once, as products do but without arithmetic: the floor of a pass."""

    def seconds(self) -> list[float]:
        """Seconds since the last call: norms, qkv, rotary and cache, attention, output, gate and up, down, head.

        Nothing is counted before the first call.
        """
