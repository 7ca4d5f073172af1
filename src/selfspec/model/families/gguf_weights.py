"""From the tensors of a GGUF file to the weights of a Hugging Face model: names, shapes, and order of rows."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from selfspec.model.families.base import all_weights
from selfspec.model.families.gguf import family_named, form_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from selfspec.model.config import ModelConfig
    from selfspec.model.families.base import Weight
    from selfspec.model.families.gguf import GgufForm

Array = np.ndarray[Any, Any]
_EXPERT = re.compile(r"expert(\d+)_(\w+)")


class GgufWeight(NamedTuple):
    """A weight of ours, and what it is made of in a GGUF file.

    ``name`` and ``shape`` are ours; each of ``tensors`` has the shape ``stored`` there, rows first.
    ``change`` makes our array of theirs; of block types it works on the rows as they are stored, unless
    ``dense``: then it needs the values.
    """

    name: str
    shape: tuple[int, ...]
    tensors: tuple[str, ...]
    stored: tuple[int, ...]
    change: Callable[[list[Array]], Array]
    dense: bool = False


def gguf_weights(config: ModelConfig) -> list[GgufWeight]:
    """All weights of a model that comes from a GGUF file, in the order of `weight_shapes`."""
    form = form_of(config.family)
    assert form is not None
    layout = family_named(config.family).layouts[config.layout]
    return [_weight(form, weight, shape, layer, config) for weight, shape, layer in all_weights(layout, config)]


def gguf_names(config: ModelConfig) -> dict[str, str]:
    """GGUF name -> canonical name, of the weights that have a tensor for themselves."""
    return {weight.tensors[0]: weight.name for weight in gguf_weights(config) if weight.stored == weight.shape}


def _weight(
    form: GgufForm, weight: Weight, shape: tuple[int, ...], layer: int | None, config: ModelConfig
) -> GgufWeight:
    role, module = weight.role, weight.name.split(".")[-2]
    prefix = "" if layer is None else f"blk.{layer}."
    make = partial(GgufWeight, weight.name, shape)
    if expert := _EXPERT.fullmatch(role):
        experts = config.layer(layer or 0).experts
        assert experts is not None
        tensor = prefix + form.tensor(f"expert_{expert[2]}", module)
        return make((tensor,), (experts.count, *shape), partial(_one, int(expert[1])))
    if role == "experts_gate_up":
        halves = tuple(prefix + form.tensor(f"expert_{part}", module) for part in ("gate", "up"))
        return make(halves, (shape[0], shape[1] // 2, shape[2]), partial(np.concatenate, axis=1))
    tensors = (prefix + form.tensor(role, module),)
    if weight.transposed:
        return make(tensors, shape[::-1], _transposed, dense=True)
    if form.plus_one and len(shape) == 1:
        return make(tensors, shape, _minus_one, dense=True)
    return make(tensors, shape, _order(form, role, config))


def _order(form: GgufForm, role: str, config: ModelConfig) -> Callable[[list[Array]], Array]:
    """What puts the rows of a matrix, or the entries of a bias, into our order."""
    part = role.removesuffix("_bias")
    if form.interleaved and part in ("q", "k"):
        heads = config.num_heads if part == "q" else config.num_kv_heads
        return lambda arrays: half_split(arrays[0], heads)
    if part == "qkv_groups":
        return lambda arrays: grouped(arrays[0], config.num_heads, config.num_kv_heads)
    return partial(_one, None)


def _one(index: int | None, arrays: list[Array]) -> Array:
    """The only array, or an entry of it."""
    (array,) = arrays
    return array if index is None else array[index]


def _transposed(arrays: list[Array]) -> Array:
    return arrays[0].T


def _minus_one(arrays: list[Array]) -> Array:
    found: Array = arrays[0] - arrays[0].dtype.type(1)
    return found


def half_split(rows: Array, heads: int) -> Array:
    """Undo the interleaving of query and key rows [heads * head_dim, ...].

    Some GGUF files keep the two members of a rotated pair in neighbouring rows of a head; Hugging Face models
    keep them half a head apart.
    """
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def grouped(rows: Array, heads: int, kv_heads: int) -> Array:
    """From all queries, all keys, all values to groups: the queries of a key head, the key, the value."""
    each = rows.reshape(heads + 2 * kv_heads, -1, *rows.shape[1:])
    queries = each[:heads].reshape(kv_heads, heads // kv_heads, *each.shape[1:])
    keys, values = each[heads : heads + kv_heads, None], each[heads + kv_heads :, None]
    return np.concatenate([queries, keys, values], axis=1).reshape(rows.shape)
