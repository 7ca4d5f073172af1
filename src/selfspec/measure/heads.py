"""The sizes of trained modules that draft for a model: an exit head, and EAGLE-3.

They are counted from the published shapes, whether or not this version can run them, or from a head that is there.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from selfspec.model.head_file import weight_shapes
from selfspec.runtime.cpu_attached import DEFAULT_BITS
from selfspec.runtime.packing import BITS, KIND_OF_BITS, PRECISIONS, packed_bytes

if TYPE_CHECKING:
    from selfspec.measure.sizes import Sizes
    from selfspec.model.config import ModelConfig
    from selfspec.model.head_file import HeadFile

EAGLE_VOCABULARY = 32_000  # of published EAGLE-3 heads
_KINDS = {precision: kind for kind, precision in PRECISIONS.items()}

Shape = tuple[int, ...]


class Module(NamedTuple):
    """A trained module: ``weights`` in bytes, those of them that a step ``reads``, and how many layers have KV."""

    weights: int
    reads: int
    kv_layers: int


def exit_head(sizes: Sizes) -> Module:
    """Two norms and one attention block between the exit and the model's own head (Kangaroo, arXiv 2404.18911)."""
    d = sizes.config.hidden_size
    held = _bytes(sizes, [*_attention(sizes.config, d), (d,), (d,)])
    return Module(held, held, 1)


def eagle(sizes: Sizes) -> Module:
    """EAGLE-3 (arXiv 2503.01840).

    States of three layers go through one matrix, then one decoder layer, whose attention reads them beside the
    embedding, and a head of its own over a part of the vocabulary. The embedding is shared.
    """
    config = sizes.config
    d, inner = config.hidden_size, config.intermediate_size
    head = (min(EAGLE_VOCABULARY, config.vocab_size), d)
    mlp = [(inner, d), (inner, d), (d, inner)]
    held = _bytes(sizes, [(d, 3 * d), *_attention(config, 2 * d), *mlp, head, *[(d,)] * 4])
    return Module(held, held, 1)


def attached(sizes: Sizes, head: HeadFile) -> Module:
    """A head of one layer as a runtime holds it.

    In the native core its matrices have 8 bits a weight, and rows of the model's LM head no more than that.
    """
    d, own = sizes.config.hidden_size, [shape for shape in weight_shapes(head.facts).values() if len(shape) == 2]
    ids = head.vocabulary
    rows = (sizes.config.vocab_size if ids is None else len(ids), d)
    is_held = ids is None and head.lm_rows is None  # by the model
    if sizes.runtime == "torch":
        held, last = _bytes(sizes, [*weight_shapes(head.facts).values()]), _bytes(sizes, [rows])
    else:
        kind, precision = KIND_OF_BITS[DEFAULT_BITS], sizes.head_precision
        fewer = DEFAULT_BITS if head.lm_rows is not None else min(DEFAULT_BITS, BITS[precision])
        held = sum(packed_bytes(kind, *shape) for shape in own)
        last = packed_bytes(KIND_OF_BITS[fewer], *rows)
    return Module(held + (0 if is_held else last), held + last, int(head.facts.attends))


def _attention(config: ModelConfig, inputs: int) -> list[Shape]:
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return [(queries, inputs), (keys, inputs), (keys, inputs), (config.hidden_size, queries)]


def _bytes(sizes: Sizes, shapes: list[Shape]) -> int:
    """Of matrices and vectors in the precision of the model's layers."""
    if sizes.runtime == "torch":
        return sizes.width * sum(map(prod, shapes))
    kind = _KINDS[sizes.precision.partition(",")[0]]
    return sum(packed_bytes(kind, *shape) if len(shape) == 2 else 4 * shape[0] for shape in shapes)
