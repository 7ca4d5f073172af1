"""Sub-layers of the torch runtime in part: some heads of attention, some channels of an MLP.

Weights are read through views, range by range, and never copied: products of a range of outputs are put side by
side, products of a range of inputs are added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from selfspec.plans import spans_of
from selfspec.runtime.products import linear

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from selfspec.plans import Spans
    from selfspec.runtime.torch_block import Norm
    from selfspec.runtime.torch_cache import Store
    from selfspec.runtime.torch_placement import Placement, Scores, Turn


class Facts(NamedTuple):
    """What a layer does with its heads: turn them, weigh what they see, norm queries and keys one by one."""

    turn: Turn | None
    scores: Scores
    q_norm: Norm | None
    k_norm: Norm | None


def uncut_heads(tensors: Mapping[str, Tensor], qk_norm: str, *, is_recurrent: bool) -> str:
    """Why heads of a layer cannot be left out, for people; "" if they can."""
    if is_recurrent:
        return "recurrent layers, whose heads carry a state"
    if qk_norm == "width":
        return "norms over all heads at once"
    if "qkv" in tensors or "q" in tensors:
        return ""
    return (
        "gates among its queries" if "q_and_gate" in tensors else "queries, keys and values in one matrix by groups"
    )


class Heads:
    """Attention with the query heads in ``kept``, of ``shape`` (heads, KV heads, width)."""

    def __init__(
        self, tensors: Mapping[str, Tensor], kept: Spans, shape: tuple[int, int, int], facts: Facts
    ) -> None:
        heads, kv_heads, width = shape
        each = heads // kv_heads
        numbers = [head for start, stop in kept for head in range(start, stop)]
        groups = sorted({head // each for head in numbers})
        self._tensors, self._facts, self._width = tensors, facts, width
        self._count, self._groups = len(numbers), torch.tensor(groups, device=tensors["o"].device)
        # of a fused matrix queries come first, then keys, then values
        offsets = {"q": 0, "k": heads, "v": heads + kv_heads} if "qkv" in tensors else dict.fromkeys("qkv", 0)
        wanted = {"q": kept, "k": spans_of(groups), "v": spans_of(groups)}
        self._rows = {role: _scaled(spans, width, offsets[role]) for role, spans in wanted.items()}
        self._columns = _scaled(kept, width)
        counts = [sum(head // each == group for head in numbers) for group in groups]
        self._runs = _runs(groups, counts)
        sinks = facts.scores.sinks
        self._sinks = None if sinks is None else sinks[torch.tensor(numbers, device=sinks.device)]

    def __call__(self, x: Tensor, placement: Placement, store: Store) -> Tensor:
        """What these heads add, for normed states [R, d]."""
        rows, width = len(x), self._width
        q, k, v = (self._projected(x, role).view(rows, -1, width) for role in "qkv")
        if self._facts.q_norm is not None and self._facts.k_norm is not None:
            q, k = self._facts.q_norm(q), self._facts.k_norm(k)
        if self._facts.turn is not None:
            q, k = torch.split(
                placement.turned(torch.cat((q, k), dim=1), self._facts.turn), [q.shape[1], k.shape[1]], dim=1
            )
        places = placement.places(store.keys.shape[1])[:, None]
        store.keys[placement.slots[:, None], places, self._groups] = k
        store.values[placement.slots[:, None], places, self._groups] = v
        found = torch.cat([self._seen(run, q, placement, store) for run in self._runs], dim=1).flatten(1)
        return _summed(found, self._tensors["o"], self._columns, self._tensors.get("o_bias"))

    def _seen(self, run: _Run, q: Tensor, placement: Placement, store: Store) -> Tensor:
        """What the queries of some neighbouring groups find: one call, over views of their keys and values."""
        scores = self._facts.scores
        if self._sinks is not None:
            scores = scores._replace(sinks=self._sinks[run.queries])
        return placement.attend(
            q[:, run.queries], store.keys[:, :, run.groups], store.values[:, :, run.groups], scores
        )

    def _projected(self, x: Tensor, role: str) -> Tensor:
        name = role if role in self._tensors else "qkv"
        return _beside(x, self._tensors[name], self._rows[role], self._tensors.get(f"{name}_bias"))


class _Run(NamedTuple):
    """Neighbouring groups with equally many queries: which of the kept queries, and which KV heads."""

    queries: slice
    groups: slice


def _runs(groups: Sequence[int], counts: Sequence[int]) -> list[_Run]:
    runs: list[_Run] = []
    first = start = 0
    for i in range(1, len(groups) + 1):
        if i < len(groups) and groups[i] == groups[i - 1] + 1 and counts[i] == counts[start]:
            continue
        queries = counts[start] * (i - start)
        runs.append(_Run(slice(first, first + queries), slice(groups[start], groups[i - 1] + 1)))
        first, start = first + queries, i
    return runs


def channels(
    tensors: Mapping[str, Tensor], kept: Spans, activation: Callable[[Tensor], Tensor], x: Tensor
) -> Tensor:
    """What the channels in ``kept`` of a dense MLP add, for normed states [R, d]."""
    if "gate_up" in tensors:
        bias, half = tensors.get("gate_up_bias"), tensors["gate_up"].shape[0] // 2
        gate, up = (_beside(x, tensors["gate_up"], _scaled(kept, 1, offset), bias) for offset in (0, half))
        inner = activation(gate) * up
    else:
        made = {
            role: _beside(x, tensors[role], kept, tensors.get(f"{role}_bias"))
            for role in ("gate", "up")
            if role in tensors
        }
        inner = activation(made["gate"]) * made["up"] if "gate" in made else activation(made["up"])
    return _summed(inner, tensors["down"], kept, tensors.get("down_bias"))


def _scaled(spans: Spans, width: int, offset: int = 0) -> Spans:
    """Ranges of heads as ranges of rows."""
    return tuple(((offset + start) * width, (offset + stop) * width) for start, stop in spans)


def _beside(x: Tensor, weight: Tensor, rows: Spans, bias: Tensor | None) -> Tensor:
    """Some outputs of a product, side by side."""
    parts = [linear(x, weight[a:b], None if bias is None else bias[a:b]) for a, b in rows]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _summed(x: Tensor, weight: Tensor, columns: Spans, bias: Tensor | None) -> Tensor:
    """A product over some inputs, which ``x`` [R, in] has side by side."""
    out, first = None, 0
    for a, b in columns:
        part = linear(x[:, first : first + b - a], weight[:, a:b])
        out, first = part if out is None else out + part, first + b - a
    assert out is not None
    return out if bias is None else out + bias
