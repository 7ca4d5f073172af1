"""Llama and its near relatives: Mistral, Qwen 2 and 3, SmolLM3, Granite, OLMo 2 and 3, EXAONE 4, Phi-3."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from selfspec.model.families.base import Family, Layout, Weight, ends, linear, norm, with_layers
from selfspec.model.families.ropes import but_each, layer_types, rope_by_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.model.config import ModelConfig
    from selfspec.model.reading import Fields

SILU: dict[str, tuple[object, ...]] = {"hidden_act": ("silu",)}
NO_BIAS: dict[str, tuple[object, ...]] = {"attention_bias": (False,), "mlp_bias": (False,)}

# -- weights that many families call the same -------------------------------------------------------------


def attention(
    bias: str | None = None, out_bias: str | None = None, only_if: str = "", out: str = "o_proj"
) -> tuple[Weight, ...]:
    """Separate queries, keys, values and output."""
    return (
        *linear("q", "self_attn.q_proj", ("q", "d"), bias, only_if=only_if),
        *linear("k", "self_attn.k_proj", ("kv", "d"), bias, only_if=only_if),
        *linear("v", "self_attn.v_proj", ("kv", "d"), bias, only_if=only_if),
        *linear("o", f"self_attn.{out}", ("d", "q"), out_bias, only_if=only_if),
    )


def gated_mlp(bias: str | None = None, only_if: str = "") -> tuple[Weight, ...]:
    """Gate, up and down."""
    return (
        *linear("gate", "mlp.gate_proj", ("ff", "d"), bias, only_if=only_if),
        *linear("up", "mlp.up_proj", ("ff", "d"), bias, only_if=only_if),
        *linear("down", "mlp.down_proj", ("d", "ff"), bias, only_if=only_if),
    )


def normed_before(
    attention: tuple[Weight, ...], mlp: tuple[Weight, ...], *, bias: bool = False
) -> tuple[Weight, ...]:
    """Attention and MLP with a norm before each."""
    return (
        *norm("attention_norm", "input_layernorm", bias=bias),
        *attention,
        *norm("mlp_norm", "post_attention_layernorm", only_if="own_mlp_norm", bias=bias),
        *mlp,
    )


def norms_after() -> tuple[Weight, ...]:
    """A norm after each part, and none before."""
    return (
        *norm("attention_after", "post_attention_layernorm"),
        *norm("mlp_after", "post_feedforward_layernorm"),
    )


def qk_norms(q: str = "h", k: str = "h", only_if: str = "", name: str = "norm") -> tuple[Weight, ...]:
    """Norms of queries and keys, of one head or of all."""
    return (
        *norm("q_norm", f"self_attn.q_{name}", q, only_if),
        *norm("k_norm", f"self_attn.k_{name}", k, only_if),
    )


# -- facts ------------------------------------------------------------------------------------------------


def windows(types: Sequence[str], window: int | None) -> list[int | None]:
    """The window of each layer."""
    return [window if kind == "sliding_attention" else None for kind in types]


def window_of(fields: Fields) -> int | None:
    """The window as config.json has it; null for none."""
    return fields.integer("sliding_window") if "sliding_window" in fields else None


def one_window(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Every layer has the window, if there is one."""
    return with_layers(config, window=window_of(fields))


def used_window(fields: Fields) -> int | None:
    """The window, if it is switched on."""
    return window_of(fields) if fields.flag("use_sliding_window", False) else None


def last_layers_slide(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Windows of Qwen's dense models: in the layers from ``max_window_layers`` on, if they are switched on."""
    window, first = used_window(fields), fields.integer("max_window_layers", minimum=0)
    types = layer_types(
        fields,
        config.num_layers,
        lambda i: "sliding_attention" if window and i >= first else "full_attention",
    )
    return {"window": windows(types, window)}


def _qwen3(fields: Fields, config: ModelConfig) -> ModelConfig:
    return with_layers(config, qk_norm="head", **last_layers_slide(fields, config))


def _smollm3(fields: Fields, config: ModelConfig) -> ModelConfig:
    every, count = fields.integer("no_rope_layer_interval"), config.num_layers
    turned = fields.raw("no_rope_layers")
    if turned is None:
        turned = [int((i + 1) % every != 0) for i in range(count)]
    if not isinstance(turned, list) or len(turned) < count:
        raise fields.wrong("no_rope_layers", turned, f"a list of 0 and 1, one for each of {count} layers")
    window = used_window(fields)
    types = layer_types(
        fields, count, lambda i: "full_attention" if turned[i] or not window else "sliding_attention"
    )
    ropes = [config.rope if turned[i] else None for i in range(count)]
    return with_layers(config, rope=ropes, window=windows(types, window))


def granite(fields: Fields) -> dict[str, Any]:
    """Granite's multipliers of attention and residual."""
    return {
        "scale": fields.number("attention_multiplier"),
        "residual_scale": fields.number("residual_multiplier"),
    }


def with_granite_ends(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Granite's multipliers of embedding and logits."""
    return replace(
        config,
        embedding_scale=fields.number("embedding_multiplier"),
        logit_scale=1 / fields.number("logits_scaling"),
    )


def _granite(fields: Fields, config: ModelConfig) -> ModelConfig:
    return with_layers(with_granite_ends(fields, config), **granite(fields))


_AFTER = {"norm_before": False, "norm_after": True}


def _olmo2(_fields: Fields, config: ModelConfig) -> ModelConfig:
    return with_layers(config, norm="rms_wide", qk_norm="width", **_AFTER)


def _olmo3(fields: Fields, config: ModelConfig) -> ModelConfig:
    theta = float(OLMO3.defaults["rope_theta"])
    full = rope_by_type(fields, "full_attention", fields.number("rope_theta"))
    # an old config.json has scaling and theta of the full layers only, and transformers takes the default here
    sliding = rope_by_type(fields, "sliding_attention", theta)
    types = layer_types(fields, config.num_layers, but_each(4))
    ropes = [sliding if kind == "sliding_attention" else full for kind in types]
    slides = windows(types, window_of(fields))
    return with_layers(config, norm="rms_wide", qk_norm="width", rope=ropes, window=slides, **_AFTER)


def _exaone4(fields: Fields, config: ModelConfig) -> ModelConfig:
    window, count = window_of(fields), config.num_layers
    every = fields.integer("sliding_window_pattern") if "layer_types" not in fields and window else 1
    types = layer_types(fields, count, but_each(every))
    slides = windows(types, window)
    ropes = [config.rope if window is None or slides[i] else None for i in range(count)]
    return with_layers(config, qk_norm="head", rope=ropes, window=slides, **_AFTER)


# -- the families -----------------------------------------------------------------------------------------


def _layout(*per_layer: Weight) -> tuple[Layout, ...]:
    return (Layout(ends(), per_layer),)


def _family(name: str, architecture: str, *per_layer: Weight, **more: Any) -> Family:
    return Family(name, (architecture,), _layout(*per_layer), **more)


LLAMA = _family(
    "llama",
    "LlamaForCausalLM",
    *normed_before(attention("attention_bias", "attention_bias"), gated_mlp("mlp_bias")),
    defaults={"rms_norm_eps": 1e-6},
    refused={**SILU, "sliding_window": (), "partial_rotary_factor": (1, 1.0), "rope_interleaved": (False,)},
)

MISTRAL = _family(
    "mistral",
    "MistralForCausalLM",
    *normed_before(attention(), gated_mlp()),
    facts=one_window,
    defaults={
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "sliding_window": 4096,
    },
    refused=SILU | NO_BIAS,
)

_QWEN = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}

QWEN2 = _family(
    "qwen2",
    "Qwen2ForCausalLM",
    *normed_before(attention(""), gated_mlp()),
    facts=lambda fields, config: with_layers(config, **last_layers_slide(fields, config)),
    defaults=_QWEN,
    refused=SILU | {"mlp_bias": (False,)},
)

QWEN3 = _family(
    "qwen3",
    "Qwen3ForCausalLM",
    *normed_before((*attention("attention_bias", "attention_bias"), *qk_norms()), gated_mlp()),
    facts=_qwen3,
    defaults={**_QWEN, "head_dim": 128},
    refused=SILU | {"mlp_bias": (False,)},
)

SMOLLM3 = _family(
    "smollm3",
    "SmolLM3ForCausalLM",
    *normed_before(attention("attention_bias", "attention_bias"), gated_mlp("mlp_bias")),
    facts=_smollm3,
    defaults={
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 2_000_000.0,
        "use_sliding_window": False,
        "sliding_window": None,
        "no_rope_layer_interval": 4,
        "tie_word_embeddings": True,
    },
    refused=SILU,
)

GRANITE_DEFAULTS: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
}

GRANITE = _family(
    "granite",
    "GraniteForCausalLM",
    *normed_before(attention("attention_bias", "attention_bias"), gated_mlp("mlp_bias")),
    facts=_granite,
    defaults=GRANITE_DEFAULTS,
    refused=SILU,
)

OLMO2 = _family(
    "olmo2",
    "Olmo2ForCausalLM",
    *norms_after(),
    *attention("attention_bias", "attention_bias"),
    *qk_norms("q", "kv"),
    *gated_mlp(),
    facts=_olmo2,
    defaults={"rms_norm_eps": 1e-5},
    refused=SILU | {"mlp_bias": (False,)},
)

OLMO3 = replace(
    OLMO2,
    name="olmo3",
    architectures=("Olmo3ForCausalLM",),
    facts=_olmo3,
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "sliding_window": 4096},
    rope_by_type=True,
)

EXAONE4 = _family(
    "exaone4",
    "Exaone4ForCausalLM",
    *norms_after(),
    *attention(),
    *qk_norms(),
    *gated_mlp(),
    facts=_exaone4,
    defaults={
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-5,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
    },
    refused=SILU | NO_BIAS,
)

PHI3 = _family(
    "phi3",
    "Phi3ForCausalLM",
    *normed_before(
        (
            *linear("qkv", "self_attn.qkv_proj", ("qkv", "d")),
            *linear("o", "self_attn.o_proj", ("d", "q")),
        ),
        (
            *linear("gate_up", "mlp.gate_up_proj", ("2ff", "d")),
            *linear("down", "mlp.down_proj", ("d", "ff")),
        ),
    ),
    facts=one_window,
    defaults={
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 1.0,
        "sliding_window": None,
    },
    refused=SILU | NO_BIAS,
)

DENSE = (LLAMA, MISTRAL, QWEN2, QWEN3, SMOLLM3, GRANITE, OLMO2, OLMO3, EXAONE4, PHI3)
