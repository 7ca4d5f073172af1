"""From config.json to a `ModelConfig`, for every family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selfspec.errors import CorruptModelError, UnsupportedModelError
from selfspec.model.config import DTYPE_BYTES, ModelConfig, Rope
from selfspec.model.families.catalogue import FAMILIES
from selfspec.model.families.ropes import context_of, read_rope
from selfspec.model.reading import Fields, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from selfspec.model.families.base import Family

_MOST_LAYERS = 10_000


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
    family = _family(Fields(values, source))
    values = _of_text(Fields(values, source))
    defaults = dict(family.defaults)
    if values.get("rope_scaling"):  # what transformers 4 calls it
        defaults.pop("rope_parameters", None)
    fields = Fields({**defaults, **values}, source)
    _check_options(fields, family)
    config = family.facts(fields, _sizes(fields, family))
    _check(config, source)
    return config


def _of_text(fields: Fields) -> dict[str, Any]:
    """The entries of a model of text; one that sees, too, keeps them in ``text_config``."""
    inner, outer = fields.child("text_config"), fields.raw_items()
    if inner is None:
        return outer
    tied = {"tie_word_embeddings": outer["tie_word_embeddings"]} if "tie_word_embeddings" in fields else {}
    return outer | inner.raw_items() | tied


def _sizes(fields: Fields, family: Family) -> ModelConfig:
    key = family.key
    num_heads = fields.integer(key("num_attention_heads"))
    hidden_size = fields.integer(key("hidden_size"))
    rope = read_rope(fields, family)
    return ModelConfig(
        family=family.name,
        num_layers=fields.integer(key("num_hidden_layers")),
        hidden_size=hidden_size,
        intermediate_size=_intermediate_size(fields, family, hidden_size),
        num_heads=num_heads,
        num_kv_heads=fields.integer(key("num_key_value_heads"), num_heads),
        head_dim=_head_dim(fields, hidden_size, num_heads),
        vocab_size=fields.integer("vocab_size"),
        context_length=context_of(rope, fields.integer(key("max_position_embeddings"), 2048)),
        norm_eps=fields.number(key("rms_norm_eps"), 1e-5),
        rope=rope,
        tied_head=fields.flag("tie_word_embeddings", False),
        attention_bias=fields.flag(key("attention_bias"), False),
        mlp_bias=fields.flag(key("mlp_bias"), False),
        dtype=_dtype(fields),
        eos_token_ids=fields.ids("eos_token_id"),
    )


def _intermediate_size(fields: Fields, family: Family, hidden_size: int) -> int:
    key = family.key("intermediate_size")
    return fields.integer(key, 4 * hidden_size if key in family.defaults else None)


def _family(fields: Fields) -> Family:
    names = fields.raw("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise fields.wrong("architectures", names, "a list of class names")
    given = names[0] if names else fields.text("model_type")
    for family in FAMILIES:
        if given in (family.architectures if names else (family.model_type or family.name,)):
            return family
    supported = ", ".join(name for family in FAMILIES for name in family.architectures)
    raise UnsupportedModelError(
        f"the architecture {one_line(given, 80)!r} in {fields.source} is not supported; supported: {supported}"
    )


def _check_options(fields: Fields, family: Family) -> None:
    for key, allowed in {"quantization_config": (), **family.refused}.items():
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
    for rope in {layer.rope for layer in config.layers or (config.layer(0),) if layer.rope}:
        _check_rope(rope, config.head_dim, source)
    if wrong := [token for token in config.eos_token_ids if token >= config.vocab_size]:
        raise CorruptModelError(
            f"eos_token_id is {wrong[0]} in {source}; it must be below vocab_size ({config.vocab_size})"
        )


def _check_rope(rope: Rope, head_dim: int, source: str) -> None:
    dims = rope.dims(head_dim)
    if dims % 2 or not dims:
        raise CorruptModelError(
            f"the head size is {head_dim} in {source}, of which {dims} are turned; rotary embeddings need an even "
            "number: correct head_dim, or download the checkpoint again"
        )
    if rope.factors and len(rope.factors) != dims // 2:
        raise CorruptModelError(
            f"{source} has {len(rope.factors)} rotary factors; {dims} dimensions need {dims // 2}: "
            "download the checkpoint again"
        )
