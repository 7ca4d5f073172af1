"""The multi-token module of a checkpoint in torch: a block of the runtime, and what is around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from selfspec.model.mtp import module_of
from selfspec.runtime.products import linear
from selfspec.runtime.torch_attached import TorchHead
from selfspec.runtime.torch_block import Block, Norm
from selfspec.runtime.torch_cache import FEWER, TorchCache, memory_for
from selfspec.runtime.torch_placement import Placement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from selfspec.runtime.base import Cache
    from selfspec.runtime.torch import TorchRuntime
    from selfspec.runtime.torch_placement import Turn
    from selfspec.types import Array, Rows


class TorchMtp(TorchHead):
    """A module with its ``tensors`` by name; ``norm``, ``lm_head`` and ``turn`` are the target's.

    What `run` gives is normed: it enters the next row in place of the target's state, and the LM head.
    """

    def __init__(
        self,
        target: TorchRuntime,
        tensors: Mapping[str, Tensor],
        norm: Norm | None,
        lm_head: Tensor,
        turn: Turn | None,
    ) -> None:
        module = module_of(target.config, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
        self.config, self.vocabulary = module.config, None
        self._size = target.config.vocab_size
        self._target, self._final, self._head = target, norm, lm_head
        layer = {
            role: tensors[weight.name].transpose(-1, -2) if weight.transposed else tensors[weight.name]
            for role, weight in module.layer.items()
        }
        self._block = Block(self.config, 0, layer, turn)
        around = {role: tensors[weight.name] for role, weight in module.around.items()}
        self._fc = around["fc"]
        kind, eps = self.config.layer(0).norm, self.config.norm_eps
        self._of_token, self._of_state, self._norm = (
            Norm(kind, eps, around[role], None) for role in ("token_norm", "state_norm", "norm")
        )
        used = [*layer.values(), *around.values()]
        self.weight_bytes = sum(tensor.nbytes for tensor in used)

    def features(self, states: Array) -> Array:
        """See `Attached.features`: the target's final norm."""
        with self._target.pass_of(f"the norm of {len(states)} rows"):
            return states if self._final is None else self._final(states)

    def run(self, entering: Array, tokens: Sequence[int], rows: Rows, cache: Cache | None) -> Array:
        """See `Attached.run`."""
        with self._target.pass_of(f"a pass of {len(rows)} rows"):
            assert isinstance(cache, TorchCache)
            reads = torch.cat((self._of_token(self._target.embed(tokens)), self._of_state(entering)), dim=-1)
            hidden = linear(reads, self._fc)
            placement = Placement(rows, cache, hidden.dtype, hidden.device)
            hidden = hidden + self._block.attention(hidden, placement, cache.store(0))
            return self._norm(hidden + self._block.mlp(hidden))

    def new_cache(self, slots: int, length: int) -> TorchCache:
        """See `Attached.new_cache`."""
        with memory_for(f"the keys and values of a multi-token module for {slots} x {length} tokens; {FEWER}"):
            return TorchCache.new(self._fc, self.config, (slots, length), (0, 1))
