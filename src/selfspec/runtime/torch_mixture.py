"""A mixture of experts in torch; only the experts that some row has are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from selfspec.errors import OptionError
from selfspec.runtime.products import linear

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from selfspec.model.config import Layer


class Mixture:
    """The experts of one layer, its router, and the expert that every row has, if there is one.

    ``tensors`` by role: ``router``; of all experts together ``experts_gate_up`` [experts, out, in]
    (``experts_gate_up_pairs`` where gate and up alternate) and ``experts_down``, or ``expert{e}_gate``, ``_up``
    and ``_down`` of each.
    """

    def __init__(self, facts: Layer, tensors: Mapping[str, Tensor], activation: Callable[[Tensor], Tensor]) -> None:
        assert facts.experts is not None
        self._facts = facts.experts
        self._tensors = tensors
        self._activation = activation

    def __call__(self, x: Tensor, per_token: int | None = None) -> Tensor:
        """What the experts make of ``x`` [R, d]; ``per_token`` overrides how many each row has."""
        chosen, weights = self._routed(x, self._checked(per_token))
        out = torch.zeros_like(x)
        for expert in torch.unique(chosen).tolist():
            rows, places = torch.where(chosen == expert)
            made = self._expert(expert, x[rows]) * weights[rows, places, None]
            out.index_add_(0, rows, made.to(out.dtype))
        return out if not self._facts.shared_width else out + self._shared(x)

    def _checked(self, per_token: int | None) -> int:
        if per_token is None:
            return self._facts.per_token
        if not 1 <= per_token <= self._facts.count:
            raise OptionError(
                f"experts is {per_token}; this model has {self._facts.count}, so it must be 1 to that"
            )
        return per_token

    def _routed(self, x: Tensor, per_token: int) -> tuple[Tensor, Tensor]:
        """The experts of each row and their weights, both [R, per_token]."""
        logits = linear(x, self._tensors["router"], self._tensors.get("router_bias"))
        if self._facts.weighting.startswith("chosen"):
            best, chosen = torch.topk(logits, per_token, dim=-1)
            narrow = self._facts.weighting == "chosen_float32"
            return chosen, best.softmax(dim=-1, dtype=torch.float32 if narrow else None).to(x.dtype)
        best, chosen = torch.topk(logits.softmax(dim=-1, dtype=torch.float32), per_token, dim=-1)
        if self._facts.weighting == "renormed":
            best = best / best.sum(dim=-1, keepdim=True)
        return chosen, best.to(x.dtype)

    def _expert(self, expert: int, x: Tensor) -> Tensor:
        gate, up = self._gate_and_up(expert, x)
        limit = self._facts.clamp
        if limit is None:
            inner = self._activation(gate) * up
        else:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            inner = (up + 1) * (gate * torch.sigmoid(gate * self._facts.sharpness))
        if "experts_down" in self._tensors:
            return self._of(expert, "experts_down", inner)
        return linear(inner, self._tensors[f"expert{expert}_down"])

    def _gate_and_up(self, expert: int, x: Tensor) -> tuple[Tensor, Tensor]:
        if "experts_gate_up" in self._tensors:
            gate, up = self._of(expert, "experts_gate_up", x).chunk(2, dim=-1)
            return gate, up
        if "experts_gate_up_pairs" in self._tensors:
            both = self._of(expert, "experts_gate_up_pairs", x)
            return both[..., ::2], both[..., 1::2]
        gate, up = (linear(x, self._tensors[f"expert{expert}_{role}"]) for role in ("gate", "up"))
        return gate, up

    def _of(self, expert: int, role: str, x: Tensor) -> Tensor:
        """A product with the part of a joint tensor that belongs to one expert."""
        bias = self._tensors.get(f"{role}_bias")
        return linear(x, self._tensors[role][expert], None if bias is None else bias[expert])

    def _shared(self, x: Tensor) -> Tensor:
        tensors = self._tensors
        inner = self._activation(linear(x, tensors["shared_gate"])) * linear(x, tensors["shared_up"])
        return torch.sigmoid(linear(x, tensors["shared_router"])) * linear(inner, tensors["shared_down"])
