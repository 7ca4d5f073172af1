"""Per-architecture facts, as data: which checkpoints are understood, and what their weights are called.

Canonical weight names are those of the Hugging Face implementation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from selfspec.errors import CorruptModelError, UnsupportedModelError
from selfspec.model.config import DTYPE_BYTES, ModelConfig, Rope
from selfspec.model.reading import Fields, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MOST_LAYERS = 10_000
ROPE_KINDS = ("default", "linear", "llama3")


class Weight(NamedTuple):
    """One weight of a model or of each layer.

    ``dims`` names its dimensions: d hidden, q query width, kv key/value width, ff MLP width, V vocabulary.
    ``only_if`` is the switch of ``ModelConfig`` that it depends on ("" always, "!x" if x is off). ``rotary``
    is the head count of weights whose rows GGUF files keep in interleaved rotary order.
    """

    name: str
    gguf: str
    dims: tuple[str, ...]
    only_if: str = ""
    rotary: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """What distinguishes one architecture.

    ``refused`` maps keys of config.json to the only values under which the family computes what we compute.
    ``ignored`` matches tensors that may be there and that nothing needs.
    """

    name: str
    architectures: tuple[str, ...]
    gguf: str
    globals: tuple[Weight, ...]
    per_layer: tuple[Weight, ...]
    refused: Mapping[str, tuple[object, ...]]
    ignored: str


LLAMA = Family(
    name="llama",
    architectures=("LlamaForCausalLM",),
    gguf="llama",
    globals=(
        Weight("model.embed_tokens.weight", "token_embd.weight", ("V", "d")),
        Weight("model.norm.weight", "output_norm.weight", ("d",)),
        Weight("lm_head.weight", "output.weight", ("V", "d"), "!tied_head"),
    ),
    per_layer=(
        Weight("input_layernorm.weight", "attn_norm.weight", ("d",)),
        Weight("self_attn.q_proj.weight", "attn_q.weight", ("q", "d"), rotary="num_heads"),
        Weight("self_attn.k_proj.weight", "attn_k.weight", ("kv", "d"), rotary="num_kv_heads"),
        Weight("self_attn.v_proj.weight", "attn_v.weight", ("kv", "d")),
        Weight("self_attn.o_proj.weight", "attn_output.weight", ("d", "q")),
        Weight("post_attention_layernorm.weight", "ffn_norm.weight", ("d",)),
        Weight("mlp.gate_proj.weight", "ffn_gate.weight", ("ff", "d")),
        Weight("mlp.up_proj.weight", "ffn_up.weight", ("ff", "d")),
        Weight("mlp.down_proj.weight", "ffn_down.weight", ("d", "ff")),
        Weight("self_attn.q_proj.bias", "attn_q.bias", ("q",), "attention_bias", "num_heads"),
        Weight("self_attn.k_proj.bias", "attn_k.bias", ("kv",), "attention_bias", "num_kv_heads"),
        Weight("self_attn.v_proj.bias", "attn_v.bias", ("kv",), "attention_bias"),
        Weight("self_attn.o_proj.bias", "attn_output.bias", ("d",), "attention_bias"),
        Weight("mlp.gate_proj.bias", "ffn_gate.bias", ("ff",), "mlp_bias"),
        Weight("mlp.up_proj.bias", "ffn_up.bias", ("ff",), "mlp_bias"),
        Weight("mlp.down_proj.bias", "ffn_down.bias", ("d",), "mlp_bias"),
    ),
    refused={
        "hidden_act": ("silu",),
        "quantization_config": (),
        "sliding_window": (),
        "partial_rotary_factor": (1, 1.0),
        "rope_interleaved": (False,),
    },
    ignored=r"(model\.layers\.\d+\.self_attn|model)\.rotary_emb\.inv_freq",
)

FAMILIES = (LLAMA,)


def family_of(config: ModelConfig) -> Family:
    """The facts of a model that was read by this module."""
    return next(family for family in FAMILIES if family.name == config.family)


def gguf_family(architecture: str) -> Family:
    """The family of a GGUF architecture.

    Raises
    ------
    UnsupportedModelError
        No family covers it.
    """
    for family in FAMILIES:
        if family.gguf == architecture:
            return family
    supported = ", ".join(family.gguf for family in FAMILIES)
    raise UnsupportedModelError(f"the GGUF architecture {architecture!r} is not supported; supported: {supported}")


# -- config.json ------------------------------------------------------------------------------------------


def config_from_hf(values: Mapping[str, Any], source: str = "config.json") -> ModelConfig:
    """Read a Hugging Face ``config.json``, of transformers 4 or 5; ``source`` names it in messages.

    Keys that it leaves out and that are not sizes have the defaults of ``transformers``.

    Raises
    ------
    UnsupportedModelError
        Another architecture, or an option of it that is not covered.
    CorruptModelError
        A missing, wrongly typed or contradictory value.
    """
    fields = Fields(values, source)
    family = _hf_family(fields)
    _check_options(fields, family)
    num_heads = fields.integer("num_attention_heads")
    hidden_size = fields.integer("hidden_size")
    config = ModelConfig(
        family=family.name,
        num_layers=fields.integer("num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_dim=_head_dim(fields, hidden_size, num_heads),
        vocab_size=fields.integer("vocab_size"),
        context_length=fields.integer("max_position_embeddings", 2048),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=_rope(fields),
        tied_head=fields.flag("tie_word_embeddings", False),
        attention_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
        dtype=_dtype(fields),
        eos_token_ids=fields.ids("eos_token_id"),
    )
    _check(config, source)
    return config


def _hf_family(fields: Fields) -> Family:
    names = fields.raw("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise fields.wrong("architectures", names, "a list of class names")
    given = names[0] if names else fields.text("model_type")
    for family in FAMILIES:
        if given in (family.architectures if names else (family.name,)):
            return family
    supported = ", ".join(name for family in FAMILIES for name in family.architectures)
    raise UnsupportedModelError(
        f"the architecture {one_line(given, 80)!r} in {fields.source} is not supported; supported: {supported}"
    )


def _check_options(fields: Fields, family: Family) -> None:
    for key, allowed in family.refused.items():
        if key in fields and fields.raw(key) not in allowed:
            only = f"only {' or '.join(repr(value) for value in allowed)}" if allowed else "only null"
            raise UnsupportedModelError(
                f"{key} is {one_line(repr(fields.raw(key)), 80)} in {fields.source}; {only} is supported "
                f"for {family.architectures[0]}"
            )


def _head_dim(fields: Fields, hidden_size: int, num_heads: int) -> int:
    if "head_dim" in fields:
        return fields.integer("head_dim")
    if hidden_size % num_heads:
        raise fields.wrong("hidden_size", hidden_size, f"a multiple of num_attention_heads ({num_heads})")
    return hidden_size // num_heads


def _dtype(fields: Fields) -> str:
    key = "dtype" if "dtype" in fields else "torch_dtype"
    dtype = fields.text(key, "float32").removeprefix("torch.")
    if dtype not in DTYPE_BYTES:
        raise UnsupportedModelError(
            f"{key} is {one_line(dtype, 40)!r} in {fields.source}; supported: {', '.join(DTYPE_BYTES)}"
        )
    return dtype


def _rope(fields: Fields) -> Rope:
    new, old = fields.child("rope_parameters"), fields.child("rope_scaling")
    if new and old and fields.raw("rope_parameters") != fields.raw("rope_scaling"):
        raise fields.wrong("rope_scaling", fields.raw("rope_scaling"), "absent, or equal to rope_parameters")
    scaling = new or old or Fields({}, fields.source)
    theta = (scaling if "rope_theta" in scaling else fields).number("rope_theta", 10_000.0)
    kind = scaling.text("rope_type" if "rope_type" in scaling else "type", "default")
    if scaling.raw("partial_rotary_factor") not in (None, 1, 1.0):
        raise UnsupportedModelError(
            f"partial_rotary_factor is {scaling.raw('partial_rotary_factor')!r} in {scaling.source}; "
            "only 1 is supported"
        )
    if kind == "default":
        return Rope(theta=theta)
    if kind == "linear":
        return Rope(theta=theta, kind="linear", factor=scaling.number("factor"))
    if kind == "llama3":
        return _llama3_rope(theta, scaling)
    raise UnsupportedModelError(
        f"the rope type {one_line(kind, 40)!r} in {scaling.source} is not supported; supported: "
        f"{', '.join(ROPE_KINDS)}"
    )


def _llama3_rope(theta: float, scaling: Fields) -> Rope:
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    if not low < high:
        raise scaling.wrong("low_freq_factor", low, f"below high_freq_factor ({high})")
    return Rope(
        theta=theta,
        kind="llama3",
        factor=scaling.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_context=scaling.integer("original_max_position_embeddings"),
    )


def _check(config: ModelConfig, source: str) -> None:
    if config.num_layers > _MOST_LAYERS:
        raise CorruptModelError(
            f"num_hidden_layers is {config.num_layers} in {source}; it must be at most {_MOST_LAYERS}: "
            "correct the file, or download the checkpoint again"
        )
    if config.num_heads % config.num_kv_heads:
        raise CorruptModelError(
            f"num_attention_heads is {config.num_heads} in {source}; it must be a multiple of "
            f"num_key_value_heads ({config.num_kv_heads}): download the checkpoint again"
        )
    if config.head_dim % 2:
        raise CorruptModelError(
            f"the head size is {config.head_dim} in {source}; rotary embeddings need an even one: "
            "correct head_dim, or download the checkpoint again"
        )
    if wrong := [token for token in config.eos_token_ids if token >= config.vocab_size]:
        raise CorruptModelError(
            f"eos_token_id is {wrong[0]} in {source}; it must be below vocab_size ({config.vocab_size})"
        )


# -- weights ----------------------------------------------------------------------------------------------


def weights(config: ModelConfig) -> Iterator[Weight]:
    """All weights of the model, in the order of its layers, with full names."""
    family = family_of(config)
    for weight in family.globals:
        if _is_on(weight, config):
            yield weight
    for layer in range(config.num_layers):
        for weight in family.per_layer:
            if _is_on(weight, config):
                yield weight._replace(name=f"model.layers.{layer}.{weight.name}", gguf=f"blk.{layer}.{weight.gguf}")


def _is_on(weight: Weight, config: ModelConfig) -> bool:
    if not weight.only_if:
        return True
    return bool(getattr(config, weight.only_if.lstrip("!"))) != weight.only_if.startswith("!")


def shape_of(weight: Weight, config: ModelConfig) -> tuple[int, ...]:
    """The shape of a weight, rows first (output features, input features)."""
    sizes = {
        "d": config.hidden_size,
        "q": config.num_heads * config.head_dim,
        "kv": config.num_kv_heads * config.head_dim,
        "ff": config.intermediate_size,
        "V": config.vocab_size,
    }
    return tuple(sizes[dim] for dim in weight.dims)


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of every weight; ``lm_head.weight`` only if the head is not tied."""
    return {weight.name: shape_of(weight, config) for weight in weights(config)}


def gguf_names(config: ModelConfig) -> dict[str, str]:
    """GGUF name -> canonical name of every weight."""
    return {weight.gguf: weight.name for weight in weights(config)}


def is_ignored(name: str, config: ModelConfig) -> bool:
    """Whether a tensor beyond ``weight_shapes`` is harmless: a derived buffer, or a copy of a tied head."""
    return (config.tied_head and name == "lm_head.weight") or bool(re.fullmatch(family_of(config).ignored, name))
