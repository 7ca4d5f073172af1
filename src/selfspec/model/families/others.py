"""Families further from Llama: StableLM, Starcoder2, Cohere 2, GLM-4, GPT-2, GPT-NeoX, OPT, Falcon."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from selfspec.errors import UnsupportedModelError
from selfspec.model.families.base import Family, Layout, Weight, ends, linear, norm, with_layers
from selfspec.model.families.llama import SILU, attention, gated_mlp, normed_before, window_of, windows
from selfspec.model.families.ropes import but_each, layer_types
from selfspec.model.reading import one_line

if TYPE_CHECKING:
    from selfspec.model.config import Activation, ModelConfig
    from selfspec.model.reading import Fields

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def activation(fields: Fields, key: str) -> Activation:
    """The activation of an MLP."""
    name = fields.text(key)
    if name not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"{key} is {one_line(name, 40)!r} in {fields.source}; supported: {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]


# -- StableLM ---------------------------------------------------------------------------------------------


def _stablelm(fields: Fields, config: ModelConfig) -> ModelConfig:
    parallel = "shared" if fields.flag("use_parallel_residual", False) else "no"
    return with_layers(config, norm="layer", parallel=parallel)


STABLELM = Family(
    name="stablelm",
    architectures=("StableLmForCausalLM",),
    layouts=(Layout(ends(bias=True), normed_before(attention("attention_bias"), gated_mlp(), bias=True)),),
    facts=_stablelm,
    keys={"rms_norm_eps": "layer_norm_eps", "attention_bias": "use_qkv_bias"},
    defaults={
        "num_key_value_heads": 32,
        "max_position_embeddings": 4096,
        "layer_norm_eps": 1e-5,
        "partial_rotary_factor": 0.25,
    },
    refused={**SILU, "qk_layernorm": (False,), "mlp_bias": (False,)},
)

# -- Starcoder2 -------------------------------------------------------------------------------------------


def _starcoder2(fields: Fields, config: ModelConfig) -> ModelConfig:
    return with_layers(config, norm="layer", activation=activation(fields, "hidden_act"), window=window_of(fields))


STARCODER2 = Family(
    name="starcoder2",
    architectures=("Starcoder2ForCausalLM",),
    layouts=(
        Layout(
            ends(bias=True),
            normed_before(
                attention("attention_bias", "attention_bias"),
                (
                    *linear("up", "mlp.c_fc", ("ff", "d"), "mlp_bias"),
                    *linear("down", "mlp.c_proj", ("d", "ff"), "mlp_bias"),
                ),
                bias=True,
            ),
        ),
    ),
    facts=_starcoder2,
    keys={"rms_norm_eps": "norm_epsilon", "attention_bias": "use_bias", "mlp_bias": "use_bias"},
    defaults={
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "hidden_act": "gelu_pytorch_tanh",
        "sliding_window": None,
        "norm_epsilon": 1e-5,
        "use_bias": True,
        "tie_word_embeddings": True,
    },
)

# -- Cohere 2 ---------------------------------------------------------------------------------------------


def _cohere2(fields: Fields, config: ModelConfig) -> ModelConfig:
    every = fields.integer("sliding_window_pattern", 4)
    types = layer_types(fields, config.num_layers, but_each(every))
    rope = replace(config.rope, interleaved=True, narrow=True)
    slides = windows(types, window_of(fields))
    config = replace(config, logit_scale=fields.number("logit_scale"))
    return with_layers(
        config,
        norm="layer_wide",
        parallel="shared",
        window=slides,
        rope=[rope if window else None for window in slides],
    )


COHERE2 = Family(
    name="cohere2",
    architectures=("Cohere2ForCausalLM",),
    layouts=(
        Layout(
            ends(),
            (
                *norm("attention_norm", "input_layernorm"),
                *attention("attention_bias", "attention_bias"),
                *gated_mlp(),
            ),
        ),
    ),
    facts=_cohere2,
    keys={"rms_norm_eps": "layer_norm_eps"},
    defaults={
        "max_position_embeddings": 8192,
        "layer_norm_eps": 1e-5,
        "logit_scale": 0.0625,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
    },
    refused=SILU | {"mlp_bias": (False,)},
)

# -- GLM-4 ------------------------------------------------------------------------------------------------


def _glm4(_fields: Fields, config: ModelConfig) -> ModelConfig:
    return with_layers(config, norm_after=True, rope=replace(config.rope, interleaved=True))


GLM4 = Family(
    name="glm4",
    architectures=("Glm4ForCausalLM",),
    layouts=(
        Layout(
            ends(),
            (
                *norm("attention_norm", "input_layernorm"),
                *norm("attention_after", "post_self_attn_layernorm"),
                *norm("mlp_norm", "post_attention_layernorm"),
                *norm("mlp_after", "post_mlp_layernorm"),
                *attention("attention_bias"),
                *linear("gate_up", "mlp.gate_up_proj", ("2ff", "d")),
                *linear("down", "mlp.down_proj", ("d", "ff")),
            ),
        ),
    ),
    facts=_glm4,
    defaults={
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1.5625e-07,
        "partial_rotary_factor": 0.5,
        "attention_bias": True,
    },
    refused=SILU | {"mlp_bias": (False,)},
)

# -- GPT-2 ------------------------------------------------------------------------------------------------


def _gpt2(fields: Fields, config: ModelConfig) -> ModelConfig:
    scale = config.head_dim**-0.5 if fields.flag("scale_attn_weights", True) else 1.0
    shrinks = fields.flag("scale_attn_by_inverse_layer_idx", False)
    return with_layers(
        replace(config, position_offset=0),
        rope=None,
        norm="layer",
        activation=activation(fields, "activation_function"),
        scale=[scale / (index + 1) if shrinks else scale for index in range(config.num_layers)],
    )


def _gpt2_layout(prefix: str) -> Layout:
    return Layout(
        (
            *ends(prefix, embedding="wte", last="ln_f", bias=True),
            Weight("positions", f"{prefix}wpe.weight", ("P", "d")),
        ),
        (
            *norm("attention_norm", "ln_1", bias=True),
            *linear("qkv", "attn.c_attn", ("d", "qkv"), "", transposed=True),
            *linear("o", "attn.c_proj", ("q", "d"), "", transposed=True),
            *norm("mlp_norm", "ln_2", bias=True),
            *linear("up", "mlp.c_fc", ("d", "ff"), "", transposed=True),
            *linear("down", "mlp.c_proj", ("ff", "d"), "", transposed=True),
        ),
        f"{prefix}h.",
    )


GPT2 = Family(
    name="gpt2",
    architectures=("GPT2LMHeadModel",),
    layouts=(_gpt2_layout("transformer."), _gpt2_layout("")),
    facts=_gpt2,
    keys={
        "hidden_size": "n_embd",
        "intermediate_size": "n_inner",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
        "rms_norm_eps": "layer_norm_epsilon",
        "num_key_value_heads": "",
    },
    defaults={
        "n_inner": None,
        "n_positions": 1024,
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
        "tie_word_embeddings": True,
    },
    refused={"add_cross_attention": (False,)},
    ignored=r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",
)

# -- GPT-NeoX (Pythia) ------------------------------------------------------------------------------------


def _gpt_neox(fields: Fields, config: ModelConfig) -> ModelConfig:
    return with_layers(
        config,
        norm="layer",
        activation=activation(fields, "hidden_act"),
        parallel="separate" if fields.flag("use_parallel_residual", True) else "no",
    )


def _gpt_neox_layout(head: str) -> Layout:
    return Layout(
        ends("gpt_neox.", embedding="embed_in", last="final_layer_norm", bias=True, head=head),
        normed_before(
            (
                *linear("qkv_groups", "attention.query_key_value", ("qkv", "d"), "attention_bias"),
                *linear("o", "attention.dense", ("d", "q"), "attention_bias"),
            ),
            (
                *linear("up", "mlp.dense_h_to_4h", ("ff", "d"), ""),
                *linear("down", "mlp.dense_4h_to_h", ("d", "ff"), ""),
            ),
            bias=True,
        ),
        "gpt_neox.layers.",
    )


GPT_NEOX = Family(
    name="gpt_neox",
    architectures=("GPTNeoXForCausalLM",),
    layouts=(_gpt_neox_layout("embed_out.weight"), _gpt_neox_layout("lm_head.weight")),
    facts=_gpt_neox,
    keys={
        "rms_norm_eps": "layer_norm_eps",
        "rope_theta": "rotary_emb_base",
        "partial_rotary_factor": "rotary_pct",
        "num_key_value_heads": "",
    },
    defaults={"layer_norm_eps": 1e-5, "hidden_act": "gelu", "rotary_pct": 0.25, "attention_bias": True},
    ignored=r"gpt_neox\.layers\.\d+\.attention\.((masked_)?bias|rotary_emb\.inv_freq)|gpt_neox\.rotary_emb\.inv_freq",
)

# -- OPT --------------------------------------------------------------------------------------------------


def _opt(fields: Fields, config: ModelConfig) -> ModelConfig:
    if fields.integer("word_embed_proj_dim", config.hidden_size) != config.hidden_size:
        raise UnsupportedModelError(
            f"word_embed_proj_dim is {fields.raw('word_embed_proj_dim')} in {fields.source}; only hidden_size "
            f"({config.hidden_size}) is supported for OPTForCausalLM"
        )
    return with_layers(
        replace(config, position_offset=2),
        rope=None,
        norm="layer",
        activation=activation(fields, "activation_function"),
    )


def _opt_layout(prefix: str) -> Layout:
    return Layout(
        (
            *ends(prefix, last="final_layer_norm", bias=True),
            Weight("positions", f"{prefix}embed_positions.weight", ("P", "d")),
        ),
        (
            *norm("attention_norm", "self_attn_layer_norm", bias=True),
            *attention("attention_bias")[:-1],
            *linear("o", "self_attn.out_proj", ("d", "q"), "attention_bias"),
            *norm("mlp_norm", "final_layer_norm", bias=True),
            *linear("up", "fc1", ("ff", "d"), "mlp_bias"),
            *linear("down", "fc2", ("d", "ff"), "mlp_bias"),
        ),
        f"{prefix}layers.",
    )


OPT = Family(
    name="opt",
    architectures=("OPTForCausalLM",),
    layouts=(_opt_layout("model.decoder."), _opt_layout("decoder.")),
    facts=_opt,
    keys={
        "intermediate_size": "ffn_dim",
        "rms_norm_eps": "",
        "attention_bias": "enable_bias",
        "mlp_bias": "enable_bias",
        "num_key_value_heads": "",
    },
    defaults={"activation_function": "relu", "enable_bias": True, "tie_word_embeddings": True},
    refused={
        "do_layer_norm_before": (True,),
        "layer_norm_elementwise_affine": (True,),
        "_remove_final_layer_norm": (False,),
    },
)

# -- Falcon -----------------------------------------------------------------------------------------------


def _falcon(fields: Fields, config: ModelConfig) -> ModelConfig:
    new, parallel = fields.flag("new_decoder_architecture", False), fields.flag("parallel_attn", True)
    norms = fields.integer("num_ln_in_parallel_attn", 2 if new else 1)
    if (new and not parallel) or (norms != 1 and not new) or norms > 2:
        raise UnsupportedModelError(
            f"{fields.source} has new_decoder_architecture {new}, parallel_attn {parallel} and "
            f"num_ln_in_parallel_attn {norms}; supported: the new architecture with parallel attention and 1 or 2 "
            "norms, the old one with 1"
        )
    heads = config.num_heads
    if new:
        heads = fields.integer("num_kv_heads", heads)
    elif fields.flag("multi_query", True):
        heads = 1
    return with_layers(
        replace(config, num_kv_heads=heads),
        norm="layer",
        activation=activation(fields, "activation"),
        parallel=("separate" if norms == 2 else "shared") if parallel else "no",
    )


FALCON = Family(
    name="falcon",
    architectures=("FalconForCausalLM",),
    layouts=(
        Layout(
            ends("transformer.", embedding="word_embeddings", last="ln_f", bias=True),
            (
                *norm("attention_norm", "ln_attn", only_if="separate_norms", bias=True),
                *norm("attention_norm", "input_layernorm", only_if="!separate_norms", bias=True),
                *norm("mlp_norm", "ln_mlp", only_if="separate_norms", bias=True),
                *norm("mlp_norm", "post_attention_layernorm", only_if="is_sequential", bias=True),
                *linear("qkv_groups", "self_attention.query_key_value", ("qkv", "d"), "attention_bias"),
                *linear("o", "self_attention.dense", ("d", "q"), "attention_bias"),
                *linear("up", "mlp.dense_h_to_4h", ("ff", "d"), "mlp_bias"),
                *linear("down", "mlp.dense_4h_to_h", ("d", "ff"), "mlp_bias"),
            ),
            "transformer.h.",
        ),
    ),
    facts=_falcon,
    keys={
        "intermediate_size": "ffn_hidden_size",
        "rms_norm_eps": "layer_norm_epsilon",
        "attention_bias": "bias",
        "mlp_bias": "bias",
        "num_key_value_heads": "",
    },
    defaults={
        "ffn_hidden_size": None,
        "layer_norm_epsilon": 1e-5,
        "activation": "gelu",
        "tie_word_embeddings": True,
    },
    refused={"alibi": (False,)},
    ignored=r"transformer\.h\.\d+\.self_attention\.(maybe_)?rotary(_emb)?\.inv_freq",
)

OTHERS = (STABLELM, STARCODER2, COHERE2, GLM4, GPT2, GPT_NEOX, OPT, FALCON)
