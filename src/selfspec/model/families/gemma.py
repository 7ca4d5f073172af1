"""Gemma 2 and 3: norms around each part, a scaled embedding, windows in most layers, capped scores."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.model.families.base import Family, Layout, ends, norm, with_layers
from selfspec.model.families.llama import attention, gated_mlp, qk_norms, window_of, windows
from selfspec.model.families.ropes import but_each, layer_types, rope_by_type

if TYPE_CHECKING:
    from selfspec.model.config import ModelConfig
    from selfspec.model.reading import Fields

_NORMS = (
    *norm("attention_norm", "input_layernorm"),
    *norm("attention_after", "post_attention_layernorm"),
    *norm("mlp_norm", "pre_feedforward_layernorm"),
    *norm("mlp_after", "post_feedforward_layernorm"),
)


def cap(fields: Fields, key: str) -> float | None:
    """A soft cap; null for none."""
    return fields.number(key) if key in fields else None


def _common(fields: Fields, types: list[str]) -> dict[str, Any]:
    return {
        "norm": "rms_plus_one",
        "norm_after": True,
        "activation": "gelu_tanh",
        "scale": fields.number("query_pre_attn_scalar") ** -0.5,
        "soft_cap": cap(fields, "attn_logit_softcapping"),
        "window": windows(types, window_of(fields)),
    }


def _with_ends(fields: Fields, config: ModelConfig) -> ModelConfig:
    return replace(
        config,
        embedding_scale=float(np.float32(config.hidden_size**0.5)),  # a buffer in float32 there
        logit_cap=cap(fields, "final_logit_softcapping"),
    )


def _gemma2(fields: Fields, config: ModelConfig) -> ModelConfig:
    types = layer_types(fields, config.num_layers, but_each(2))
    return with_layers(_with_ends(fields, config), **_common(fields, types))


def _gemma3(fields: Fields, config: ModelConfig) -> ModelConfig:
    every = fields.integer("sliding_window_pattern", 6)
    types = layer_types(fields, config.num_layers, but_each(every))
    ropes = {
        "full_attention": rope_by_type(fields, "full_attention", fields.number("rope_theta")),
        "sliding_attention": rope_by_type(fields, "sliding_attention", fields.number("rope_local_base_freq")),
    }
    facts = _common(fields, types)
    return with_layers(_with_ends(fields, config), qk_norm="head", rope=[ropes[kind] for kind in types], **facts)


_DEFAULTS: dict[str, Any] = {
    "head_dim": 256,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_REFUSED: dict[str, tuple[object, ...]] = {
    "hidden_activation": ("gelu_pytorch_tanh",),
    "use_bidirectional_attention": (False,),
}

GEMMA2 = Family(
    name="gemma2",
    architectures=("Gemma2ForCausalLM",),
    layouts=(Layout(ends(), (*_NORMS, *attention("attention_bias", "attention_bias"), *gated_mlp())),),
    facts=_gemma2,
    defaults=_DEFAULTS
    | {"max_position_embeddings": 8192, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
    refused=_REFUSED,
)

GEMMA3 = Family(
    name="gemma3_text",
    architectures=("Gemma3ForCausalLM",),
    layouts=(Layout(ends(), (*_NORMS, *attention("attention_bias", "attention_bias"), *qk_norms(), *gated_mlp())),),
    facts=_gemma3,
    defaults=_DEFAULTS
    | {"max_position_embeddings": 131_072, "rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0},
    refused=_REFUSED,
    rope_by_type=True,
)

GEMMAS = (GEMMA2, GEMMA3)
