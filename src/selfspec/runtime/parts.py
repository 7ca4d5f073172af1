"""The weights of every family as the native core reads them: fused ones cut, transposed ones turned.

The core has one role for each matrix [out, in] and each vector, whatever a family stores them as. A `Part` says
which part of which stored weight plays a role; its ``key`` is the weight's own name where that is all of it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from selfspec.model.families import sizes_of, weights_by_role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from selfspec.model.config import Layer, ModelConfig
    from selfspec.model.families import Weight
    from selfspec.model.stored import Stored

_MATRICES = ("q", "k", "v", "o", "gate", "up", "down", "shared_gate", "shared_up", "shared_down")
_ROUTERS = ("router", "shared_router")
_NORMS = ("attention_norm", "mlp_norm", "attention_after", "mlp_after", "q_norm", "k_norm", "final_norm")
ROLES = {*_MATRICES, *_ROUTERS, *_NORMS, "sinks", "embedding", "positions", "head"}
"""What the core knows beside experts; each may have a bias."""
_PLAIN = ("float64", "float32", "float16", "bfloat16")

_Rows: TypeAlias = "slice | NDArray[np.int64]"
_ALL = slice(None)


class Part(NamedTuple):
    """What one role of the core is made of.

    ``name`` is the stored weight; of it, ``expert`` is the index on the first axis (None: there is no such axis),
    the rest is ``transposed`` or not, and ``rows`` are taken. ``shape`` is that of the result.
    """

    role: str
    key: str
    name: str
    shape: tuple[int, ...]
    expert: int | None = None
    transposed: bool = False
    rows: _Rows = _ALL

    @property
    def is_vector(self) -> bool:
        """Whether it stays an array in float32: norms, biases, sinks, positions."""
        return len(self.shape) == 1 or self.role == "positions"

    @property
    def is_exact(self) -> bool:
        """Whether it is never rounded to fewer bits than 32: vectors, and what chooses experts."""
        return self.is_vector or self.role in _ROUTERS

    @property
    def belongs_to_expert(self) -> bool:
        """Whether only rows that have this expert read it."""
        return self.role.startswith("expert")

    def of(self, weight: Stored) -> Stored:
        """Cut it from the stored ``weight``; a view, unless blocks have to be opened to be turned."""
        data, kind, count = weight.data, weight.kind, weight.shape[0]
        if self.transposed and kind not in _PLAIN:
            data, kind = weight.dense(), "float32"
        return weight._replace(kind=kind, shape=self.shape, data=self.cut(data, count))

    def cut(self, data: NDArray[Any], count: int) -> NDArray[Any]:
        """The part of the stored numbers, of which ``count`` is the length of the first axis."""
        if self.expert is not None:
            data = (
                data.reshape(count, -1, data.shape[-1])[self.expert] if len(self.shape) == 2 else data[self.expert]
            )
        if self.transposed:
            data = data.swapaxes(-1, -2)
        return data[self.rows]


@lru_cache(maxsize=4)  # of the models at hand
def parts_of(config: ModelConfig) -> tuple[dict[str, Part], ...]:
    """The parts of embedding, final norm and head by role, and then those of each layer."""
    ends = {part.role: part for weight in weights_by_role(config).values() for part in _cut(config, weight, 0)}
    layers = [
        {part.role: part for weight in weights_by_role(config, i).values() for part in _cut(config, weight, i)}
        for i in range(config.num_layers)
    ]
    return (ends, *layers)


def parts_by_name(config: ModelConfig) -> dict[str, list[Part]]:
    """Name of a stored weight -> the parts it is cut into."""
    found: dict[str, list[Part]] = {}
    for parts in parts_of(config):
        for part in parts.values():
            found.setdefault(part.name, []).append(part)
    return found


def head_of(config: ModelConfig) -> Part:
    """The LM head, which is the embedding where they are one."""
    return parts_of(config)[0]["embedding" if config.tied_head else "head"]


def part_of(config: ModelConfig, role: str, layer: int | None = None) -> Part | None:
    """What plays a role in a layer, or (None) at the ends, where a tied head is the embedding; None: nothing."""
    if role == "head" and layer is None:
        return head_of(config)
    return parts_of(config)[0 if layer is None else layer + 1].get(role)


def is_known(role: str) -> bool:
    """Whether the core has an operator for the weights of a role of a family."""
    return role.removesuffix("_bias") in {*ROLES, "qkv", "qkv_groups", "gate_up"} or role.startswith("expert")


def _cut(config: ModelConfig, weight: Weight, layer: int) -> Iterator[Part]:
    facts = config.layer(layer)
    sizes = sizes_of(config, facts)
    stored = tuple(sizes[dim] for dim in weight.dims)
    base, bias = weight.role.removesuffix("_bias"), "_bias" if weight.role.endswith("_bias") else ""
    for role, expert, rows in _pieces(base, config, facts):
        shape = stored if expert is None else stored[1:]
        shape = shape[::-1] if weight.transposed else shape
        length = len(range(shape[0])[rows]) if isinstance(rows, slice) else len(rows)
        key = weight.name if role == base else f"{weight.name}:{role}"
        yield Part(role + bias, key, weight.name, (length, *shape[1:]), expert, weight.transposed, rows)


def _pieces(role: str, config: ModelConfig, facts: Layer) -> Iterator[tuple[str, int | None, _Rows]]:
    """The roles of the core in a weight of this role, the expert each is of, and its rows."""
    if role == "qkv":
        q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        yield from (("q", None, slice(q)), ("k", None, slice(q, q + kv)), ("v", None, slice(q + kv, None)))
    elif role == "qkv_groups":
        # for each key head its queries, itself and its value
        each, width = config.num_heads // config.num_kv_heads, config.head_dim
        rows = np.arange(config.num_kv_heads * (each + 2) * width).reshape(config.num_kv_heads, each + 2, width)
        for name, cut in (("q", rows[:, :each]), ("k", rows[:, each]), ("v", rows[:, each + 1])):
            yield name, None, cut.reshape(-1)
    elif role == "gate_up":
        yield from _halves("", None, config.intermediate_size)
    elif role.startswith("experts_"):
        assert facts.experts is not None
        for e in range(facts.experts.count):
            if role == "experts_down":
                yield f"expert{e}_down", e, _ALL
            elif role == "experts_gate_up":
                yield from _halves(f"expert{e}_", e, facts.experts.width)
            else:
                assert role == "experts_gate_up_pairs", role
                yield from ((f"expert{e}_gate", e, slice(0, None, 2)), (f"expert{e}_up", e, slice(1, None, 2)))
    else:
        yield role, None, _ALL


def _halves(prefix: str, expert: int | None, width: int) -> Iterator[tuple[str, int | None, slice]]:
    yield f"{prefix}gate", expert, slice(width)
    yield f"{prefix}up", expert, slice(width, None)
