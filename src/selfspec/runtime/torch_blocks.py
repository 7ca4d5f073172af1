"""One Medusa head in torch: residual blocks over what the target's LM head would read, and an LM head."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own abbreviation)

from selfspec.runtime.products import linear
from selfspec.runtime.torch_attached import TorchHead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from selfspec.model.head_file import HeadFile
    from selfspec.runtime.base import Cache
    from selfspec.runtime.torch import TorchRuntime
    from selfspec.runtime.torch_block import Norm
    from selfspec.types import Array, Rows


class TorchBlocks(TorchHead):
    """In the precision and place of a `TorchRuntime`, whose final ``norm`` and ``lm_head`` these are."""

    def __init__(self, head: HeadFile, target: TorchRuntime, norm: Norm | None, lm_head: Tensor) -> None:
        super().__init__(head, target)
        self._target, self._normed = target, norm
        tensors = {name: torch.from_numpy(weight).to(lm_head) for name, weight in head.weights.items()}
        self._blocks = [
            tuple(tensors[f"0.{j}.linear.{name}"] for name in ("weight", "bias")) for j in range(head.facts.blocks)
        ]
        held = self._take_head(tensors.pop(head.facts.lm_heads[0], None), lm_head)
        self.weight_bytes = held + sum(tensor.nbytes for tensor in tensors.values())

    def features(self, states: Array) -> Array:
        """See `Attached.features`: the target's final norm."""
        with self._target.pass_of(f"the norm of {len(states)} rows"):
            return states if self._normed is None else self._normed(states)

    def run(self, entering: Array, tokens: Sequence[int], rows: Rows, cache: Cache | None) -> Array:  # noqa: ARG002
        """See `Attached.run`."""
        with self._target.pass_of(f"a head over {len(rows)} rows"):
            for weight, bias in self._blocks:
                entering = entering + F.silu(linear(entering, weight) + bias)
            return entering

    def new_cache(self, slots: int, length: int) -> NoReturn:
        """It attends to nothing."""
        raise AssertionError(f"a Medusa head was asked for {slots} x {length} cells")
