"""One layer of the torch runtime, from its facts and its tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own abbreviation)

from selfspec.runtime.products import linear
from selfspec.runtime.torch_cuts import Facts, Heads, channels, uncut_heads
from selfspec.runtime.torch_mixture import Mixture
from selfspec.runtime.torch_placement import Scores
from selfspec.runtime.torch_recurrent import Recurrent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from selfspec.model.config import Activation, ModelConfig, NormKind
    from selfspec.plans import Part, Spans
    from selfspec.runtime.torch_cache import Store
    from selfspec.runtime.torch_placement import Placement, Turn

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


class Norm(NamedTuple):
    """A norm with its weights."""

    kind: NormKind
    eps: float
    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` [..., d], normed, in its own precision.

        Statistics are in float32 whatever the precision, as transformers computes them, but in "layer"; the
        kinds differ in where they round to the precision of ``x``.
        """
        if self.kind == "layer":
            return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        wide = x.float()
        if self.kind == "layer_wide":
            wide = wide - wide.mean(-1, keepdim=True)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        if self.kind == "rms":
            return self.weight * wide.to(x.dtype)
        if self.kind == "rms_wide":
            return (self.weight * wide).to(x.dtype)
        weight = self.weight.float()
        return (wide * (weight + 1.0 if self.kind == "rms_plus_one" else weight)).to(x.dtype)


def norm_of(config: ModelConfig, kind: NormKind, tensors: Mapping[str, Tensor], role: str) -> Norm | None:
    """The norm of a role, if the model has it."""
    if role not in tensors:
        return None
    return Norm(kind, config.norm_eps, tensors[role], tensors.get(f"{role}_bias"))


class Block:
    """The two parts of a layer: each gives what it adds to the residual stream.

    ``tensors`` are those of the layer by role (`selfspec.model.families`), matrices as [out, in].
    """

    def __init__(self, config: ModelConfig, index: int, tensors: Mapping[str, Tensor], turn: Turn | None) -> None:
        facts = config.layer(index)
        self._config = config
        self.is_parallel = facts.parallel != "no"
        self._tensors = tensors
        self._turn = turn
        self._scores = Scores(facts.window, facts.scale, facts.soft_cap, tensors.get("sinks"))
        self._residual_scale = facts.residual_scale
        self._activation = ACTIVATIONS[facts.activation]
        self._qk_norm = facts.qk_norm

        def norm(role: str) -> Norm | None:
            return norm_of(config, facts.norm, tensors, role)

        self._before = norm("attention_norm")
        self._mlp_before = self._before if facts.parallel == "shared" else norm("mlp_norm")
        self._after, self._mlp_after = norm("attention_after"), norm("mlp_after")
        self._q_norm, self._k_norm = norm("q_norm"), norm("k_norm")
        recurrence = facts.recurrence
        self._recurrent = None if recurrence is None else Recurrent(recurrence, tensors, config.norm_eps)
        self._mixture = None if facts.experts is None else Mixture(facts, tensors, self._activation)
        self._cut: dict[Spans, Heads] = {}

    def _linear(self, x: Tensor, role: str) -> Tensor:
        return linear(x, self._tensors[role], self._tensors.get(f"{role}_bias"))

    def uncut(self, part: Part) -> str:
        """Why a part of it cannot be left out, for people; "" where heads or channels are apart."""
        if part == "mlp":
            return "" if self._mixture is None else "experts in the place of channels"
        return uncut_heads(self._tensors, self._qk_norm, is_recurrent=self._recurrent is not None)

    def attention(self, x: Tensor, placement: Placement, store: Store, kept: Spans | None = None) -> Tensor:
        """What attention adds, or what stands in its place, for states [R, d]; later rows find it in ``store``.

        ``kept``: with these heads only.
        """
        if self._before is not None:
            x = self._before(x)
        if kept is not None:
            out = self._heads(kept)(x, placement, store)
        elif self._recurrent is None:
            out = self._attended(x, placement, store)
        else:
            assert store.states is not None
            out = self._recurrent(x, placement.runs, store.states)
        return self._added(out, self._after)

    def _attended(self, x: Tensor, placement: Placement, store: Store) -> Tensor:
        heads, v, gate = self._projected(x)
        if self._turn is not None:
            heads = placement.turned(heads, self._turn)
        q, k = torch.split(heads, [self._config.num_heads, self._config.num_kv_heads], dim=1)
        keys, values = store.keys, store.values
        places = placement.places(keys.shape[1])
        keys[placement.slots, places] = k
        values[placement.slots, places] = v
        found = placement.attend(q, keys, values, self._scores).flatten(1)
        return self._linear(found if gate is None else found * torch.sigmoid(gate), "o")

    def _heads(self, kept: Spans) -> Heads:
        if kept not in self._cut:
            shape = (self._config.num_heads, self._config.num_kv_heads, self._config.head_dim)
            self._cut[kept] = Heads(
                self._tensors, kept, shape, Facts(self._turn, self._scores, self._q_norm, self._k_norm)
            )
        return self._cut[kept]

    def mlp(self, x: Tensor, experts: int | None = None, kept: Spans | None = None) -> Tensor:
        """What the MLP adds, for states [R, d].

        ``experts`` overrides how many each row has; ``kept``: with these channels only.
        """
        if self._mlp_before is not None:
            x = self._mlp_before(x)
        if kept is not None:
            out = channels(self._tensors, kept, self._activation, x)
        else:
            out = self._dense(x) if self._mixture is None else self._mixture(x, experts)
        return self._added(out, self._mlp_after)

    def _added(self, out: Tensor, norm: Norm | None) -> Tensor:
        if norm is not None:
            out = norm(out)
        return out if self._residual_scale == 1.0 else out * self._residual_scale

    def _dense(self, x: Tensor) -> Tensor:
        if "gate" in self._tensors:
            inner = self._activation(self._linear(x, "gate")) * self._linear(x, "up")
        elif "gate_up" in self._tensors:
            gate, up = self._linear(x, "gate_up").chunk(2, dim=-1)
            inner = self._activation(gate) * up
        else:
            inner = self._activation(self._linear(x, "up"))
        return self._linear(inner, "down")

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Queries and keys [R, heads + KV heads, width], values [R, KV heads, width], and gates of what is found.

        Queries and keys stay together until they are turned: on a CPU every small operation costs microseconds.
        """
        config, rows = self._config, len(x)
        width, kv_heads = config.head_dim, config.num_kv_heads
        if "qkv" in self._tensors:
            together = self._linear(x, "qkv").view(rows, -1, width)
            return together[:, :-kv_heads], together[:, -kv_heads:], None
        if "qkv_groups" in self._tensors:
            return (*self._grouped(self._linear(x, "qkv_groups")), None)
        gate = None
        if "q_and_gate" in self._tensors:
            q, gate = (
                part.flatten(1) for part in self._linear(x, "q_and_gate").view(rows, -1, 2 * width).chunk(2, -1)
            )
        else:
            q = self._linear(x, "q")
        k, v = self._linear(x, "k"), self._linear(x, "v")
        if self._q_norm is not None and self._k_norm is not None:
            if self._qk_norm == "head":
                q, k = q.view(rows, -1, width), k.view(rows, -1, width)
            q, k = self._q_norm(q), self._k_norm(k)
        return torch.cat((q, k), dim=1).view(rows, -1, width), v.view(rows, kv_heads, width), gate

    def _grouped(self, qkv: Tensor) -> tuple[Tensor, Tensor]:
        """One product that has for each key head its queries, itself and its value."""
        kv_heads, width = self._config.num_kv_heads, self._config.head_dim
        each = self._config.num_heads // kv_heads
        groups = qkv.view(len(qkv), kv_heads, each + 2, width)
        queries = groups[:, :, :each].reshape(len(qkv), -1, width)
        return torch.cat((queries, groups[:, :, each]), dim=1), groups[:, :, each + 1]
