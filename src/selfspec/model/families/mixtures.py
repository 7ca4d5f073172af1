"""Mixtures of experts: Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE, GPT-OSS, Granite-MoE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selfspec.errors import CorruptModelError
from selfspec.model.config import Experts
from selfspec.model.families.base import Family, Layout, Weight, ends, linear, with_layers
from selfspec.model.families.llama import (
    GRANITE_DEFAULTS,
    NO_BIAS,
    SILU,
    attention,
    gated_mlp,
    granite,
    normed_before,
    qk_norms,
    used_window,
    window_of,
    windows,
    with_granite_ends,
)
from selfspec.model.families.ropes import but_each, layer_types

if TYPE_CHECKING:
    from selfspec.model.config import ModelConfig
    from selfspec.model.reading import Fields


# -- weights ----------------------------------------------------------------------------------------------


def _each(prefix: str, gate: str, up: str, down: str) -> tuple[Weight, ...]:
    """Matrices of their own for each expert, as checkpoints have them."""
    more: dict[str, Any] = {"only_if": "experts", "each": True}
    return (
        *linear("expert{e}_gate", f"{prefix}.{{e}}.{gate}", ("xf", "d"), **more),
        *linear("expert{e}_up", f"{prefix}.{{e}}.{up}", ("xf", "d"), **more),
        *linear("expert{e}_down", f"{prefix}.{{e}}.{down}", ("d", "xf"), **more),
    )


def _joint(gate_up: str, down: str) -> tuple[Weight, ...]:
    """One tensor for all experts, as the modules of transformers 5 have them."""
    return (
        Weight("experts_gate_up", gate_up, ("E", "2xf", "d"), "experts"),
        Weight("experts_down", down, ("E", "d", "xf"), "experts"),
    )


_MODULES = _joint("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
SHARED = (
    *linear("shared_gate", "mlp.shared_expert.gate_proj", ("sf", "d"), only_if="shared_expert"),
    *linear("shared_up", "mlp.shared_expert.up_proj", ("sf", "d"), only_if="shared_expert"),
    *linear("shared_down", "mlp.shared_expert.down_proj", ("d", "sf"), only_if="shared_expert"),
    *linear("shared_router", "mlp.shared_expert_gate", ("1", "d"), only_if="shared_expert"),
)


def _router(name: str) -> tuple[Weight, ...]:
    return linear("router", name, ("E", "d"), only_if="experts")


def _layouts(attention: tuple[Weight, ...], *mixtures: tuple[Weight, ...]) -> tuple[Layout, ...]:
    """The same attention with each of the ways in which the mixture is kept."""
    return tuple(Layout(ends(), normed_before(attention, mixture)) for mixture in mixtures)


def qwen_layouts(*attention: Weight, shared: tuple[Weight, ...] = ()) -> tuple[Layout, ...]:
    """Layers whose MLP is dense or a mixture; the experts apart, or together."""
    common = (*gated_mlp(only_if="dense"), *_router("mlp.gate"), *shared)
    apart = _each("mlp.experts", "gate_proj", "up_proj", "down_proj")
    return _layouts(attention, (*common, *apart), (*common, *_MODULES))


# -- facts ------------------------------------------------------------------------------------------------


def experts_of(fields: Fields, width: str, **more: Any) -> Experts:
    """The mixture that config.json describes; ``width`` is its key of their width."""
    count = fields.integer("num_experts" if "num_experts" in fields else "num_local_experts")
    chosen = fields.integer("num_experts_per_tok")
    if chosen > count:
        raise CorruptModelError(
            f"num_experts_per_tok is {chosen} in {fields.source}; it must be at most the number of experts, {count}"
        )
    return Experts(count, chosen, fields.integer(width), **more)


def renormed(fields: Fields) -> str:
    """Whether the weights of the chosen experts are made to sum to 1."""
    return "renormed" if fields.flag("norm_topk_prob", False) else "all"


def sparse(fields: Fields, config: ModelConfig, experts: Experts) -> list[Experts | None]:
    """The mixture of each layer, None where the MLP is dense."""
    every, dense = fields.integer("decoder_sparse_step"), fields.raw("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise fields.wrong("mlp_only_layers", dense, "a list of layers")
    return [experts if (i + 1) % every == 0 and i not in dense else None for i in range(config.num_layers)]


def _mixtral(fields: Fields, config: ModelConfig) -> ModelConfig:
    experts = experts_of(fields, "intermediate_size", weighting="renormed")
    return with_layers(config, window=window_of(fields), experts=experts)


def _qwen2_moe(fields: Fields, config: ModelConfig) -> ModelConfig:
    window, last = used_window(fields), fields.integer("max_window_layers", minimum=0)
    types = layer_types(
        fields,
        config.num_layers,
        lambda i: "sliding_attention" if window and (i + 1) % 2 and i < last else "full_attention",
    )
    shared = fields.integer("shared_expert_intermediate_size")
    experts = experts_of(fields, "moe_intermediate_size", weighting=renormed(fields), shared_width=shared)
    return with_layers(config, window=windows(types, window), experts=sparse(fields, config, experts))


def _qwen3_moe(fields: Fields, config: ModelConfig) -> ModelConfig:
    experts = experts_of(fields, "moe_intermediate_size", weighting=renormed(fields))
    return with_layers(config, qk_norm="head", window=used_window(fields), experts=sparse(fields, config, experts))


def _olmoe(fields: Fields, config: ModelConfig) -> ModelConfig:
    experts = experts_of(fields, "intermediate_size", weighting=renormed(fields))
    return with_layers(config, qk_norm="width", experts=experts)


def _gpt_oss(fields: Fields, config: ModelConfig) -> ModelConfig:
    types = layer_types(fields, config.num_layers, but_each(2))
    experts = experts_of(
        fields,
        "intermediate_size",
        weighting="chosen",
        clamp=fields.number("swiglu_limit"),
        sharpness=fields.number("swiglu_alpha"),
    )
    slides = windows(types, window_of(fields))
    return with_layers(config, norm="rms_wide", sinks=True, window=slides, experts=experts)


def _granite_moe(fields: Fields, config: ModelConfig) -> ModelConfig:
    experts = experts_of(fields, "intermediate_size", weighting="chosen_float32")
    return with_layers(with_granite_ends(fields, config), experts=experts, **granite(fields))


# -- the families -----------------------------------------------------------------------------------------

MIXTRAL = Family(
    name="mixtral",
    architectures=("MixtralForCausalLM",),
    layouts=_layouts(
        attention(),
        (*_router("block_sparse_moe.gate"), *_each("block_sparse_moe.experts", "w1", "w3", "w2")),
        (*_router("mlp.gate"), *_MODULES),
    ),
    facts=_mixtral,
    defaults={
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "sliding_window": None,
        "num_experts_per_tok": 2,
        "num_local_experts": 8,
    },
    refused=SILU | NO_BIAS,
)

_QWEN: dict[str, Any] = {
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "use_sliding_window": False,
    "decoder_sparse_step": 1,
    "norm_topk_prob": False,
}

QWEN2_MOE = Family(
    name="qwen2_moe",
    architectures=("Qwen2MoeForCausalLM",),
    layouts=qwen_layouts(*attention("attention_bias"), shared=SHARED),
    facts=_qwen2_moe,
    keys={"attention_bias": "qkv_bias"},
    defaults={
        **_QWEN,
        "num_key_value_heads": 16,
        "sliding_window": 4096,
        "max_window_layers": 28,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_experts_per_tok": 4,
        "qkv_bias": True,
    },
    refused=SILU | {"mlp_bias": (False,)},
)

QWEN3_MOE = Family(
    name="qwen3_moe",
    architectures=("Qwen3MoeForCausalLM",),
    layouts=qwen_layouts(*attention("attention_bias", "attention_bias"), *qk_norms()),
    facts=_qwen3_moe,
    defaults={
        **_QWEN,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
    },
    refused=SILU | {"mlp_bias": (False,)},
)

OLMOE = Family(
    name="olmoe",
    architectures=("OlmoeForCausalLM",),
    layouts=qwen_layouts(*attention("attention_bias", "attention_bias"), *qk_norms("q", "kv")),
    facts=_olmoe,
    defaults={
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
    },
    refused={**SILU, "clip_qkv": (), "mlp_bias": (False,)},
)

GPT_OSS = Family(
    name="gpt_oss",
    architectures=("GptOssForCausalLM",),
    layouts=_layouts(
        (*attention("attention_bias", "attention_bias"), Weight("sinks", "self_attn.sinks", ("n",))),
        (
            *linear("router", "mlp.router", ("E", "d"), ""),
            Weight("experts_gate_up_pairs", "mlp.experts.gate_up_proj", ("E", "d", "2xf"), transposed=True),
            Weight("experts_gate_up_pairs_bias", "mlp.experts.gate_up_proj_bias", ("E", "2xf")),
            Weight("experts_down", "mlp.experts.down_proj", ("E", "xf", "d"), transposed=True),
            Weight("experts_down_bias", "mlp.experts.down_proj_bias", ("E", "d")),
        ),
    ),
    facts=_gpt_oss,
    defaults={
        "head_dim": 64,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150_000.0,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        "sliding_window": 128,
        "num_experts_per_tok": 4,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "attention_bias": True,
    },
    refused=SILU | {"mlp_bias": (False,)},
)

GRANITE_MOE = Family(
    name="granitemoe",
    architectures=("GraniteMoeForCausalLM",),
    layouts=_layouts(
        attention("attention_bias", "attention_bias"),
        (
            *_router("block_sparse_moe.router.layer"),
            *_joint("block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"),
        ),
        (
            *_router("block_sparse_moe.router"),
            *_joint("block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.experts.down_proj"),
        ),
    ),
    facts=_granite_moe,
    defaults={**GRANITE_DEFAULTS, "num_local_experts": 8, "num_experts_per_tok": 2},
    refused=SILU | {"mlp_bias": (False,)},
)

MIXTURES = (MIXTRAL, QWEN2_MOE, QWEN3_MOE, OLMOE, GPT_OSS, GRANITE_MOE)
