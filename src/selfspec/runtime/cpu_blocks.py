"""One Medusa head in the native core: its products are the core's; SiLU, sums and the norm of a row are NumPy's."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import numpy as np

from selfspec.model.head_file import LM_HEAD
from selfspec.runtime.cpu_attached import DEFAULT_BITS, CpuHead, lm_head_of
from selfspec.runtime.packing import KIND_OF_BITS, floats, native, pack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from selfspec.model.head_file import HeadFile
    from selfspec.runtime.base import Cache
    from selfspec.runtime.cpu import CpuRuntime
    from selfspec.runtime.cpu_attached import Place
    from selfspec.runtime.packing import Packed
    from selfspec.types import Array, Rows

    Floats = NDArray[np.float32]

_IDENTITY = 2.0**40
"""The core norms what its head reads: x * w / sqrt(mean of squares + eps). With this eps, and its root as every
weight, that is x to the last bit, while the mean of squares is below 2^15."""


class CpuBlocks(CpuHead):
    """A head packed in ``bits``: a model without layers for each block, the last of which has the LM head."""

    def __init__(self, head: HeadFile, target: CpuRuntime, lm_head: Packed, bits: int | None, place: Place) -> None:
        super().__init__(head, target)
        kind = KIND_OF_BITS[DEFAULT_BITS if bits is None else bits]
        c, self.weight_bytes = self.config, 0
        sizes = (1, c.hidden_size, c.intermediate_size, c.num_heads, c.num_kv_heads, c.head_dim, c.vocab_size)
        self._blocks = []
        for j in range(head.facts.blocks):
            block = native().Model(sizes, _IDENTITY, [], place.kernels, place.threads)
            matrix = pack(head.weights[f"0.{j}.linear.weight"], kind)
            block.set_linear(0, "transform", matrix.matrix(), floats(head.weights[f"0.{j}.linear.bias"]))
            self.weight_bytes += matrix.data.nbytes
            self._blocks.append(block)
        rows = lm_head_of(head.weights.get(f"0.{LM_HEAD}"), self.vocabulary, lm_head, kind)
        self._model = self._blocks[-1]
        self._model.set_norm(0, "final", np.full(c.hidden_size, _IDENTITY**0.5, np.float32), None)
        self._model.set_linear(0, "head", rows.matrix(), None)
        self.weight_bytes += 0 if rows is lm_head else rows.data.nbytes
        norm = [target.weight(f"final_norm{part}") for part in ("", "_bias")]
        self._norm: tuple[str, Floats | None, Floats | None] = (target.config.layer(0).norm, norm[0], norm[1])
        self._eps = np.float32(target.config.norm_eps)

    def features(self, states: Array) -> Floats:
        """See `Attached.features`: the target's final norm."""
        kind, weight, bias = self._norm
        x = floats(states)
        if weight is None:
            return x
        if kind.startswith("layer"):
            x = x - x.mean(axis=1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + self._eps)
        x = x * (weight + np.float32(1.0) if kind == "rms_plus_one" else weight)
        return floats(x if bias is None else x + bias)

    def run(self, entering: Array, tokens: Sequence[int], rows: Rows, cache: Cache | None) -> Floats:  # noqa: ARG002
        """See `Attached.run`."""
        x = floats(entering)
        for block in self._blocks:
            inner = np.empty_like(x)
            block.transformed(x, inner, False)
            x = x + inner / (np.float32(1.0) + np.exp(-inner.clip(-80.0, None)))
        return x

    def new_cache(self, slots: int, length: int) -> NoReturn:
        """It attends to nothing."""
        raise AssertionError(f"a Medusa head was asked for {slots} x {length} cells")
