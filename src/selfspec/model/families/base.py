"""What a family is: its architectures, what its config.json says, and what its weights are called."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from selfspec.model.config import Layer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from selfspec.model.config import ModelConfig, Recurrence
    from selfspec.model.reading import Fields


class Weight(NamedTuple):
    """One weight of a model or of each layer.

    ``role`` is what the weight does, in the words of the runtimes; ``name`` what it is called. ``dims`` names
    its dimensions as they are stored (see ``sizes_of``). ``only_if`` is the switch of its `Layer` or of
    ``ModelConfig`` that it depends on ("" always, "!x" if x is off, "x y" if both are on). ``transposed``
    weights are stored [in, out]. ``each``: there is one for every expert, whose number stands for "{e}" in its
    role and name.
    """

    role: str
    name: str
    dims: tuple[str, ...]
    only_if: str = ""
    transposed: bool = False
    each: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """One way in which the weights of a family are called: those of the model, and those of each layer."""

    globals: tuple[Weight, ...]
    per_layer: tuple[Weight, ...]
    prefix: str = "model.layers."


@dataclass(frozen=True, slots=True)
class Family:
    """What distinguishes one architecture.

    ``layouts`` are tried in order; the first is that of checkpoints. ``keys`` says what a fact is called in
    this family's config.json where it is not called as in Llama's, ``defaults`` what transformers takes for
    keys that are left out; a null there is a null. ``refused`` maps keys to the only values under which the
    family computes what we compute. ``facts`` completes a `ModelConfig` that has its sizes. ``ignored``
    matches tensors that may be there and that nothing needs. ``model_type`` is that of config.json where it is
    not the name. ``rope_by_type``: config.json may have a rotary embedding for each type of layer, which
    ``facts`` reads.
    """

    name: str
    architectures: tuple[str, ...]
    layouts: tuple[Layout, ...]
    facts: Callable[[Fields, ModelConfig], ModelConfig] = lambda _fields, config: config
    keys: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    refused: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    ignored: str = r"(model\.layers\.\d+\.self_attn|model)\.rotary_emb\.inv_freq"
    model_type: str = ""
    rope_by_type: bool = False

    def key(self, fact: str) -> str:
        """What a fact is called in config.json."""
        return self.keys.get(fact, fact)


# -- lists of weights -------------------------------------------------------------------------------------


def linear(role: str, name: str, dims: tuple[str, str], bias: str | None = None, **more: Any) -> tuple[Weight, ...]:
    """A matrix, and its bias: never (None), always (""), or by a switch beside that of the matrix."""
    matrix = Weight(role, f"{name}.weight", dims, **more)
    if bias is None:
        return (matrix,)
    width = dims[1] if matrix.transposed else dims[0]
    only_if = f"{matrix.only_if} {bias}".strip()
    return (matrix, Weight(f"{role}_bias", f"{name}.bias", (width,), only_if, each=matrix.each))


def norm(role: str, name: str, dim: str = "d", only_if: str = "", *, bias: bool = False) -> tuple[Weight, ...]:
    """A norm's weight, and its bias."""
    weight = Weight(role, f"{name}.weight", (dim,), only_if)
    return (weight, Weight(f"{role}_bias", f"{name}.bias", (dim,), only_if)) if bias else (weight,)


def ends(
    prefix: str = "model.",
    *,
    embedding: str = "embed_tokens",
    last: str = "norm",
    bias: bool = False,
    head: str = "lm_head.weight",
) -> tuple[Weight, ...]:
    """Embedding, final norm and head."""
    return (
        Weight("embedding", f"{prefix}{embedding}.weight", ("V", "d")),
        *norm("final_norm", f"{prefix}{last}", bias=bias),
        Weight("head", head, ("V", "d"), "!tied_head"),
    )


# -- the weights of a model -------------------------------------------------------------------------------


def sizes_of(config: ModelConfig, layer: Layer) -> dict[str, int]:
    """The dimensions of weights by name.

    d hidden, h one head, q queries, kv keys or values, qkv all three, ff MLP, V vocabulary, P learned
    positions, n heads; E experts, xf the width of one, sf that of the shared one; 2x is twice x, 3x
    three times. Of a recurrence: t taps, c channels, rv all values, rh one head of them, rn how many heads.
    """
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    experts = layer.experts
    widths = {
        "d": config.hidden_size,
        "q": q,
        "ff": config.intermediate_size,
        "xf": experts.width if experts else 0,
        "sf": experts.shared_width if experts else 0,
    }
    return {
        "h": config.head_dim,
        "n": config.num_heads,
        "kv": kv,
        "qkv": q + 2 * kv,
        "V": config.vocab_size,
        "P": config.context_length + (config.position_offset or 0),
        "E": experts.count if experts else 0,
        "1": 1,
        **widths,
        **{f"{times}{name}": times * size for times in (2, 3) for name, size in widths.items()},
        **(_recurrent_sizes(layer.recurrence) if layer.recurrence else {}),
    }


def _recurrent_sizes(recurrence: Recurrence) -> dict[str, int]:
    channels, values, heads = recurrence.channels, recurrence.value_width, recurrence.value_heads
    return {
        "t": recurrence.taps,
        "c": channels,
        "rv": values,
        "rh": recurrence.value_dim,
        "rn": heads,
        "2rn": 2 * heads,
        "c+rv": channels + values,
    }


def is_on(weight: Weight, config: ModelConfig, layer: Layer) -> bool:
    """Whether this model has the weight."""
    for given in weight.only_if.split():
        switch = given.lstrip("!")
        found = getattr(layer, switch) if hasattr(layer, switch) else getattr(config, switch)
        if bool(found) == given.startswith("!"):
            return False
    return True


def layer_weights(layout: Layout, config: ModelConfig, index: int) -> Iterator[Weight]:
    """The weights of one layer, with full names."""
    layer = config.layer(index)
    for weight in layout.per_layer:
        if not is_on(weight, config, layer):
            continue
        named = weight._replace(name=f"{layout.prefix}{index}.{weight.name}")
        if weight.each:
            assert layer.experts is not None
            for e in range(layer.experts.count):
                yield named._replace(role=named.role.format(e=e), name=named.name.format(e=e))
        else:
            yield named


def global_weights(layout: Layout, config: ModelConfig) -> Iterator[Weight]:
    """Embedding, final norm, head."""
    return (weight for weight in layout.globals if is_on(weight, config, config.layer(0)))


def all_weights(layout: Layout, config: ModelConfig) -> Iterator[tuple[Weight, tuple[int, ...], int | None]]:
    """All weights with their shapes as stored: those of the model (None), then those of each layer."""
    for layer in (None, *range(config.num_layers)):
        sizes = sizes_of(config, config.layer(layer or 0))
        found = global_weights(layout, config) if layer is None else layer_weights(layout, config, layer)
        for weight in found:
            yield weight, tuple(sizes[dim] for dim in weight.dims), layer


class Counts(NamedTuple):
    """Numbers of weights: all, of the mean layer, of that what a row reads, and of head and final norm."""

    total: int
    layer: int
    active_layer: int
    head: int


@lru_cache(maxsize=64)
def count(layout: Layout, config: ModelConfig) -> Counts:
    """Count the weights of a model."""
    ends = {w.role: _size(w, config, config.layer(0)) for w in global_weights(layout, config)}
    total = active = 0
    for index in range(config.num_layers):
        layer = config.layer(index)
        for weight in layer_weights(layout, config, index):
            size = _size(weight, config, layer)
            total += size
            is_expert = weight.role.startswith("expert")
            active += size * layer.experts.per_token // layer.experts.count if is_expert and layer.experts else size
    head = ends.get("head", ends["embedding"]) + sum(n for role, n in ends.items() if role.startswith("final_norm"))
    return Counts(total + sum(ends.values()), total // config.num_layers, active // config.num_layers, head)


def _size(weight: Weight, config: ModelConfig, layer: Layer) -> int:
    sizes = sizes_of(config, layer)
    return prod(sizes[dim] for dim in weight.dims)


# -- facts ------------------------------------------------------------------------------------------------


def with_layers(config: ModelConfig, **facts: Any) -> ModelConfig:
    """The model with these facts in every layer; a list has one value for each layer."""

    def of(index: int) -> Layer:
        return Layer(
            **{"rope": config.rope} | {k: v[index] if isinstance(v, list) else v for k, v in facts.items()}
        )

    made = [of(index) for index in range(config.num_layers)]
    alike = all(layer == made[0] for layer in made)
    return replace(config, layers=tuple(made[:1] if alike else made))
