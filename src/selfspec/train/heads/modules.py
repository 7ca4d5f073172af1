"""The heads as torch modules, with the names of weights of their files (`selfspec.model.head_file`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own abbreviation)
from torch import nn

from selfspec.runtime.torch_block import Norm as TargetNorm
from selfspec.train.heads.attention import attend, frequencies_of, turned

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec.model.config import NormKind
    from selfspec.model.head_file import HeadFacts
    from selfspec.train.heads.packs import Pack


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., d], normed."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    """Grouped queries with rotary positions, over keys and values of the head's own."""

    def __init__(self, facts: HeadFacts, reads: int) -> None:
        super().__init__()
        self.width, self.frequencies = facts.head_dim, frequencies_of(facts)
        q, kv = facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(reads, size, bias=False) for size in (q, kv, kv))
        self.o_proj = nn.Linear(q, facts.hidden_size, bias=False)

    def queries(self, x: Tensor, positions: Tensor) -> Tensor:
        """Queries [R, H, w] of what is read [R, reads]."""
        return turned(self.q_proj(x).unflatten(-1, (-1, self.width)), positions, self.frequencies)

    def stored(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [R, G, w]."""
        keys, values = (proj(x).unflatten(-1, (-1, self.width)) for proj in (self.k_proj, self.v_proj))
        return turned(keys, positions, self.frequencies), values


class Mlp(nn.Module):
    """Gated by SiLU."""

    def __init__(self, facts: HeadFacts) -> None:
        super().__init__()
        d, inner = facts.hidden_size, facts.intermediate_size
        self.gate_proj, self.up_proj = (nn.Linear(d, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[R, d] -> [R, d]."""
        found: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return found


class Layer(nn.Module):
    """A decoder layer of Llama shape; of EAGLE, which reads two normed inputs; of Kangaroo, without an MLP."""

    def __init__(self, facts: HeadFacts) -> None:
        super().__init__()
        d, is_eagle = facts.hidden_size, facts.kind == "eagle"
        self.input_layernorm = Norm(d, facts.eps)
        if is_eagle:
            self.hidden_norm = Norm(d, facts.eps)
        self.self_attn = Attention(facts, 2 * d if is_eagle else d)
        self.has_mlp = facts.form == "layer"
        if self.has_mlp:
            self.post_attention_layernorm = Norm(d, facts.eps)
            self.mlp = Mlp(facts)

    def after(self, residual: Tensor, found: Tensor) -> Tensor:
        """States [R, d] after the layer, from what enters it and what attention found [R, H, w]."""
        hidden: Tensor = residual + self.self_attn.o_proj(found.flatten(1))
        if self.has_mlp:
            hidden = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return hidden


class ExitHead(nn.Module):
    """Reads the states after k layers at each position: what is drafted has the same inputs, whatever was accepted.

    The states of draft rows are those of the target's own first k layers, so there is nothing to roll out: along an
    accepted draft they equal those of the text. AdaDecode (arXiv 2506.03700; "linear"), Kangaroo (arXiv 2404.18911;
    "attention"), or one decoder layer.
    """

    def __init__(self, facts: HeadFacts) -> None:
        super().__init__()
        self.facts = facts
        if facts.attends:
            self.layer = Layer(facts)
        else:
            self.transform = nn.Linear(facts.hidden_size, facts.hidden_size, bias=False)
        self.norm = Norm(facts.hidden_size, facts.eps)

    def forward(self, pack: Pack, steps: int = 1) -> list[Tensor]:
        """Normed states [M_s, d] of the rows asked in each step; the states of the pack are [N, 1, d]."""
        states, rows = pack.states[:, 0], pack.asked()
        if not self.facts.attends:
            hidden = states[rows] + self.transform(states[rows])
        else:
            read, attention = self.layer.input_layernorm(states), self.layer.self_attn
            stored = attention.stored(read, pack.positions)
            queries = attention.queries(read[rows], pack.positions[rows])
            hidden = self.layer.after(states[rows], attend(queries, stored, (), pack.spans))
        found = self.norm(hidden)
        return [found, *(found[pack.predicted(step)] for step in range(1, steps))]


class Eagle(nn.Module):
    """EAGLE-3 (arXiv 2503.01840): one layer over the next token and fused states of three layers."""

    def __init__(self, facts: HeadFacts) -> None:
        super().__init__()
        self.facts = facts
        self.fc = nn.Linear(3 * facts.hidden_size, facts.hidden_size, bias=False)
        self.midlayer = Layer(facts)
        self.norm = Norm(facts.hidden_size, facts.eps)

    def forward(self, pack: Pack, steps: int = 1) -> list[Tensor]:
        """Normed states [M_s, d] of the rows asked in each step of the training-time test.

        Row j of step 0 reads the target's features at j; in step s the output of row j - 1 in step s - 1 stands in
        their place. The states of the pack are [N, 3, d].
        """
        assert pack.following is not None
        layer, attention = self.midlayer, self.midlayer.self_attn
        token = layer.input_layernorm(pack.following)
        rows, residual = pack.asked(), self.fc(pack.states.flatten(1))
        read = torch.cat((token, layer.hidden_norm(residual)), dim=-1)
        true = attention.stored(read, pack.positions)
        read, residual = read[rows], residual[rows]
        found, own = [], []
        for step in range(steps):
            if step:
                rows, residual = pack.asked(step), residual[pack.followed(step - 1)]
                read = torch.cat((token[rows], layer.hidden_norm(residual)), dim=-1)
                own.append(attention.stored(read, pack.positions[rows]))
            queries = attention.queries(read, pack.positions[rows])
            residual = layer.after(residual, attend(queries, true, own, pack.spans))
            found.append(self.norm(residual))
        return found


class ResidualBlock(nn.Module):
    """x + SiLU(W x + b)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        """[R, d] -> [R, d]."""
        found: Tensor = x + F.silu(self.linear(x))
        return found


class Medusa(nn.ModuleList):
    """Medusa (arXiv 2401.10774): heads side by side on what the target's LM head reads.

    The row of position j is where the token j + 1 was said; head i says the token j + 2 + i. `read_by` gives the
    norm before the target's LM head, which is none of the weights.
    """

    def __init__(self, facts: HeadFacts) -> None:
        size = facts.hidden_size
        super().__init__(
            nn.Sequential(*(ResidualBlock(size) for _ in range(facts.blocks))) for _ in range(facts.drafts)
        )
        self.facts = facts
        self._norm: tuple[NormKind, float] | None = None
        self.weight: Tensor
        self.bias: Tensor | None

    def read_by(self, norm: TargetNorm) -> None:
        """Norm what is read as the target does."""
        self._norm = (norm.kind, norm.eps)
        self.register_buffer("weight", norm.weight, persistent=False)
        self.register_buffer("bias", norm.bias, persistent=False)

    def forward(self, pack: Pack, steps: int = 1) -> list[Tensor]:
        """States [M_s, d] of the tokens that each of the first heads says; the states of the pack are [N, 1, d].

        What stands for a step of a roll-out is the next head: all of a draft read the row that it begins with.
        """
        states = pack.states[:, 0]
        if self._norm is not None:
            states = TargetNorm(*self._norm, self.weight, self.bias)(states)
        heads = list(self)
        assert steps <= len(heads)
        return [heads[i](states[pack.asked(i) - i]) for i in range(steps)]


Head: TypeAlias = ExitHead | Eagle | Medusa


def module_of(facts: HeadFacts) -> Head:
    """The module of a head of these facts, with random weights."""
    kinds: dict[str, type[Head]] = {"eagle": Eagle, "medusa": Medusa, "exit_head": ExitHead}
    return kinds[facts.kind](facts)
