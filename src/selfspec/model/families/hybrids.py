"""Families with recurrent layers: LFM2, Qwen3-Next, Qwen3.5, dense and as a mixture."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from selfspec.errors import CorruptModelError
from selfspec.model.config import Recurrence
from selfspec.model.families.base import Family, Layout, Weight, ends, linear, norm, with_layers
from selfspec.model.families.llama import SILU, attention, gated_mlp, normed_before, qk_norms
from selfspec.model.families.mixtures import SHARED, experts_of, qwen_layouts, renormed, sparse
from selfspec.model.families.ropes import layer_types

if TYPE_CHECKING:
    from selfspec.model.config import ModelConfig
    from selfspec.model.reading import Fields


def _mixers(config: ModelConfig, types: list[str], recurrence: Recurrence) -> dict[str, Any]:
    """The facts of layers that have the recurrence, or attention where the type says so."""
    attends = [kind == "full_attention" for kind in types]
    return {
        "recurrence": [None if attention else recurrence for attention in attends],
        "rope": [config.rope if attention else None for attention in attends],
        "qk_norm": ["head" if attention else "none" for attention in attends],
    }


# -- LFM2 -------------------------------------------------------------------------------------------------


def _lfm2(fields: Fields, config: ModelConfig) -> ModelConfig:
    full = fields.raw("full_attn_idxs")
    if full is not None and not isinstance(full, list):
        raise fields.wrong("full_attn_idxs", full, "a list of layers")
    types = layer_types(
        fields,
        config.num_layers,
        lambda i: "full_attention" if full is None or i in full else "conv",
        ("full_attention", "conv"),
    )
    bias = fields.flag("conv_bias", False)
    conv = Recurrence("conv", fields.integer("conv_L_cache"), 1, config.hidden_size, conv_bias=bias, proj_bias=bias)
    config = replace(
        config,
        intermediate_size=_lfm2_width(fields),
        tied_head=fields.flag("tie_embedding", config.tied_head),
    )
    return with_layers(config, **_mixers(config, types, conv))


def _lfm2_width(fields: Fields) -> int:
    """The width of the MLP: config.json has what two thirds, a factor and rounding up make it of."""
    width = fields.integer("block_ff_dim" if "block_ff_dim" in fields else "intermediate_size")
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return width
    width = int(fields.number("block_ffn_dim_multiplier") * int(2 * width / 3))
    step = fields.integer("block_multiple_of")
    return step * -(-width // step)


LFM2 = Family(
    name="lfm2",
    architectures=("Lfm2ForCausalLM",),
    layouts=(
        Layout(
            ends(last="embedding_norm"),
            (
                *norm("attention_norm", "operator_norm"),
                *attention(only_if="attends", out="out_proj"),
                *qk_norms(only_if="attends", name="layernorm"),
                *linear("recurrent_in", "conv.in_proj", ("3d", "d"), "proj_bias", only_if="recurrence"),
                Weight("taps", "conv.conv.weight", ("c", "1", "t"), "recurrence"),
                Weight("taps_bias", "conv.conv.bias", ("c",), "conv_bias"),
                *linear("recurrent_out", "conv.out_proj", ("d", "d"), "proj_bias", only_if="recurrence"),
                *norm("mlp_norm", "ffn_norm"),
                *linear("gate", "feed_forward.w1", ("ff", "d")),
                *linear("up", "feed_forward.w3", ("ff", "d")),
                *linear("down", "feed_forward.w2", ("d", "ff")),
            ),
        ),
    ),
    facts=_lfm2,
    keys={"rms_norm_eps": "norm_eps"},
    defaults={
        "num_key_value_heads": 8,
        "max_position_embeddings": 128_000,
        "norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
        "conv_L_cache": 3,
        "block_multiple_of": 256,
        "block_ffn_dim_multiplier": 1.0,
    },
    refused={"attention_bias": (False,), "mlp_bias": (False,)},
)

# -- Qwen3-Next and Qwen3.5 -------------------------------------------------------------------------------


def _delta(*projections: Weight) -> tuple[Weight, ...]:
    """A gated delta net with its projections of the input."""
    return (
        *projections,
        Weight("taps", "linear_attn.conv1d.weight", ("c", "1", "t"), "recurrence"),
        Weight("time_shift", "linear_attn.dt_bias", ("rn",), "recurrence"),
        Weight("decay", "linear_attn.A_log", ("rn",), "recurrence"),
        *norm("recurrent_norm", "linear_attn.norm", "rh", "recurrence"),
        *linear("recurrent_out", "linear_attn.out_proj", ("d", "rv"), only_if="recurrence"),
    )


def _gated_attention() -> tuple[Weight, ...]:
    """Attention whose queries come with a gate for each number that it finds."""
    bias = "attention_bias"
    _, _, *rest = attention(bias, bias, "attends")
    return (
        *linear("q_and_gate", "self_attn.q_proj", ("2q", "d"), bias, only_if="attends"),
        *rest,
        *qk_norms(only_if="attends"),
    )


_TOGETHER = (
    *linear("qkvz_groups", "linear_attn.in_proj_qkvz", ("c+rv", "d"), only_if="recurrence"),
    *linear("ba_groups", "linear_attn.in_proj_ba", ("2rn", "d"), only_if="recurrence"),
)
_APART = (
    *linear("recurrent_in", "linear_attn.in_proj_qkv", ("c", "d"), only_if="recurrence"),
    *linear("recurrent_gate", "linear_attn.in_proj_z", ("rv", "d"), only_if="recurrence"),
    *linear("beta", "linear_attn.in_proj_b", ("rn", "d"), only_if="recurrence"),
    *linear("time", "linear_attn.in_proj_a", ("rn", "d"), only_if="recurrence"),
)


def _delta_facts(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    every = fields.integer("full_attention_interval", 4)
    types = layer_types(
        fields,
        config.num_layers,
        lambda i: "linear_attention" if (i + 1) % every else "full_attention",
        ("full_attention", "linear_attention"),
    )
    keys, values = fields.integer("linear_num_key_heads"), fields.integer("linear_num_value_heads")
    if values % keys:
        raise CorruptModelError(
            f"linear_num_value_heads is {values} in {fields.source}; it must be a multiple of "
            f"linear_num_key_heads ({keys}): download the checkpoint again"
        )
    delta = Recurrence(
        "delta",
        fields.integer("linear_conv_kernel_dim"),
        values,
        fields.integer("linear_value_head_dim"),
        keys,
        fields.integer("linear_key_head_dim"),
    )
    gates = [kind == "full_attention" for kind in types]
    return {"norm": "rms_plus_one", "output_gate": gates, **_mixers(config, types, delta)}


def _qwen3_next(fields: Fields, config: ModelConfig) -> ModelConfig:
    shared = fields.integer("shared_expert_intermediate_size")
    experts = experts_of(fields, "moe_intermediate_size", weighting=renormed(fields), shared_width=shared)
    return with_layers(config, experts=sparse(fields, config, experts), **_delta_facts(fields, config))


def _qwen3_5(fields: Fields, config: ModelConfig) -> ModelConfig:
    return with_layers(config, **_delta_facts(fields, config))


def _qwen3_5_moe(fields: Fields, config: ModelConfig) -> ModelConfig:
    shared = fields.integer("shared_expert_intermediate_size")
    experts = experts_of(fields, "moe_intermediate_size", weighting="renormed", shared_width=shared)
    return with_layers(config, experts=experts, **_delta_facts(fields, config))


_QWEN: dict[str, Any] = {
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "partial_rotary_factor": 0.25,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
_REFUSED = SILU | {"mlp_bias": (False,), "attn_output_gate": (True,)}

QWEN3_NEXT = Family(
    name="qwen3_next",
    architectures=("Qwen3NextForCausalLM",),
    layouts=qwen_layouts(*_gated_attention(), *_delta(*_TOGETHER), shared=SHARED),
    facts=_qwen3_next,
    defaults={
        **_QWEN,
        "num_key_value_heads": 2,
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts_per_tok": 10,
        "num_experts": 512,
        "norm_topk_prob": True,
    },
    refused=_REFUSED,
    ignored=r"(model\.layers\.\d+\.self_attn|model)\.rotary_emb\.inv_freq|mtp\..*",
)

# checkpoints that see, too, keep their text part under another name; the other parts are not read
_OTHER_PARTS = r"model\.visual\..*|mtp\..*"


def _both(layouts: tuple[Layout, ...]) -> tuple[Layout, ...]:
    """The same weights of a text model, and of the text part of one that sees."""
    inner = (
        Layout(ends("model.language_model."), layout.per_layer, "model.language_model.layers.")
        for layout in layouts
    )
    return (*layouts, *inner)


QWEN3_5 = Family(
    name="qwen3_5_text",
    architectures=("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
    layouts=_both((Layout(ends(), normed_before((*_gated_attention(), *_delta(*_APART)), gated_mlp())),)),
    facts=_qwen3_5,
    defaults={**_QWEN, "num_key_value_heads": 4},
    refused=_REFUSED,
    ignored=_OTHER_PARTS,
)

QWEN3_5_MOE = Family(
    name="qwen3_5_moe_text",
    architectures=("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
    layouts=_both(qwen_layouts(*_gated_attention(), *_delta(*_APART), shared=SHARED)),
    facts=_qwen3_5_moe,
    defaults={
        **_QWEN,
        "num_key_value_heads": 2,
        "intermediate_size": None,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts_per_tok": 8,
        "num_experts": 256,
    },
    refused=_REFUSED,
    ignored=_OTHER_PARTS,
)

HYBRIDS = (LFM2, QWEN3_NEXT, QWEN3_5, QWEN3_5_MOE)
