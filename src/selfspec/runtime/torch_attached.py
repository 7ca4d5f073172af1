"""Trained heads in torch: the blocks of the runtime, over the head's tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own abbreviation)

from selfspec.model.head_file import EMBEDDING, LM_HEAD
from selfspec.runtime.attached import Attached, embedding_of
from selfspec.runtime.products import linear
from selfspec.runtime.rotary import inverse_frequencies
from selfspec.runtime.torch_block import Block, Norm
from selfspec.runtime.torch_cache import FEWER, TorchCache, memory_for
from selfspec.runtime.torch_placement import Placement, Turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from selfspec.model.head_file import HeadFile
    from selfspec.runtime.base import Cache
    from selfspec.runtime.torch import TorchRuntime
    from selfspec.types import Array, Rows

_ROLES = {f"self_attn.{name}_proj": name for name in "qkvo"} | {
    f"mlp.{name}_proj": name for name in ("gate", "up", "down")
}


class TorchHead(Attached):
    """What heads in torch have in common: their LM head, beside a `TorchRuntime`."""

    _target: TorchRuntime
    _head: Tensor
    _ids: Tensor | None = None  # the draft vocabulary, on the device

    def _take_head(self, own: Tensor | None, lm_head: Tensor) -> int:
        """Say tokens with its ``own`` LM head, else with rows of the target's; the bytes held beside that."""
        if self.vocabulary is not None:
            self._ids = torch.from_numpy(self.vocabulary).to(lm_head.device)
            own = lm_head[self._ids] if own is None else own
        self._head = lm_head if own is None else own
        return 0 if own is None else own.nbytes

    def logits(self, states: Array) -> Array:
        """See `Attached.logits`: as the target's own, a NumPy array where the weights are on a CPU."""
        with self._target.pass_of(f"the logits of {len(states)} rows"):
            out = linear(self._last(states), self._head)
            if out.dtype in (torch.float16, torch.bfloat16):
                out = out.float()
            return out.contiguous().numpy() if out.device.type == "cpu" else out

    def _last(self, states: Array) -> Array:
        """What the LM head reads of the states that `run` gives."""
        return states

    def _columns(self, like: Array) -> Array:
        return self._ids if isinstance(like, torch.Tensor) else self.vocabulary


class TorchAttached(TorchHead):
    """A head in the precision and place of a `TorchRuntime`: as ``like``; ``lm_head`` is the target's."""

    def __init__(self, head: HeadFile, target: TorchRuntime, like: Tensor, lm_head: Tensor) -> None:
        super().__init__(head, target)
        self._target, self._like = target, like
        own_embedding = embedding_of(head, target)
        tensors = {
            name: torch.from_numpy(weight).to(like)
            for name, weight in head.weights.items()
            if name != EMBEDDING or own_embedding is not None
        }
        prefix = head.facts.prefix
        self._norm = self._normed(tensors["norm.weight"])
        self._transform = tensors.get("transform.weight")
        self._fc = tensors.get("fc.weight")
        own = {role: tensors.get(f"{prefix}{name}.weight") for name, role in _ROLES.items()}
        roles = {role: tensor for role, tensor in own.items() if tensor is not None}
        roles |= {f"{n}_norm": tensors[f"{prefix}self_attn.{n}_norm.weight"] for n in "qk" if head.facts.qk_norm}
        if (after := tensors.get(f"{prefix}post_attention_layernorm.weight")) is not None:
            roles["mlp_norm"] = after
        before, beside = (tensors.get(f"{prefix}{name}.weight") for name in ("input_layernorm", "hidden_norm"))
        self._halves: tuple[Norm, Norm] | None = None
        if beside is not None and before is not None:
            self._halves = self._normed(before), self._normed(beside)  # of the token, of the feature
        elif before is not None:
            roles["attention_norm"] = before
        frequencies = torch.from_numpy(inverse_frequencies(self.config.rope, self.config.head_dim))
        turn = Turn(self.config.rope, frequencies.to(like.device))
        self._block = Block(self.config, 0, roles, turn) if head.facts.attends else None
        self._embedding = tensors.get(EMBEDDING)
        held = self._take_head(tensors.pop(LM_HEAD, None), lm_head)
        self.weight_bytes = held + sum(tensor.nbytes for tensor in tensors.values())

    def _normed(self, weight: Tensor) -> Norm:
        return Norm("rms", self.config.norm_eps, weight, None)

    def features(self, states: Array) -> Array:
        """See `Attached.features`."""
        if self._fc is None:
            return states
        with self._target.pass_of(f"features of {len(states)} rows"):
            return linear(states, self._fc)

    def run(self, entering: Array, tokens: Sequence[int], rows: Rows, cache: Cache | None) -> Array:
        """See `Attached.run`."""
        with self._target.pass_of(f"a pass of {len(rows)} rows"):
            if self._block is None:
                return entering if self._transform is None else entering + linear(entering, self._transform)
            assert isinstance(cache, TorchCache)
            reads = entering
            if self._halves is not None:
                token, feature = self._halves
                normed = feature(entering)
                reads = torch.cat((token(self._embedded(tokens)), normed), dim=-1)
                entering = normed if self.facts.norm_before_residual else entering
            placement = Placement(rows, cache, entering.dtype, self._like.device)
            hidden = entering + self._block.attention(reads, placement, cache.store(0))
            return hidden + self._block.mlp(hidden) if self.facts.form == "layer" else hidden

    def _embedded(self, tokens: Sequence[int]) -> Array:
        """By its own embedding, if it has one."""
        if self._embedding is None:
            return self._target.embed(tokens)
        return F.embedding(torch.tensor(tokens, device=self._like.device), self._embedding)

    def _last(self, states: Array) -> Array:
        return self._norm(states)

    def new_cache(self, slots: int, length: int) -> TorchCache:
        """See `Attached.new_cache`."""
        with memory_for(f"the keys and values of a trained head for {slots} x {length} tokens; {FEWER}"):
            return TorchCache.new(self._like, self.config, (slots, length), (0, 1))
