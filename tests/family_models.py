"""A tiny random model of every family, built by transformers from its own configuration class."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
import transformers

if TYPE_CHECKING:
    from collections.abc import Iterator

WINDOW = 8
SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24, "rope_theta": 1e4}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.3, 1.7],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "rope_theta": 1e4,
}

# the name of a case, the configuration class, and what it has beyond the sizes; without "family" before a colon
# the case is called as its family
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rope_parameters": LLAMA3}),
    "mistral": ("Mistral", {"sliding_window": WINDOW, "head_dim": 12}),
    "qwen2": ("Qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}),
    "qwen2: yarn": ("Qwen2", {"rope_parameters": YARN, "tie_word_embeddings": True}),
    "qwen3": (
        "Qwen3",
        {"head_dim": 16, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "smollm3": ("SmolLM3", {"no_rope_layer_interval": 2}),
    "smollm3: windows": (
        "SmolLM3",
        {"use_sliding_window": True, "sliding_window": WINDOW, "no_rope_layer_interval": 2},
    ),
    "granite": (
        "Granite",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.6,
            "logits_scaling": 4.0,
            "attention_bias": True,
        },
    ),
    "olmo2": ("Olmo2", {}),
    "olmo3": (
        "Olmo3",
        {
            "sliding_window": WINDOW,
            "rope_parameters": {
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
            },
        },
    ),
    "exaone4": ("Exaone4", {"sliding_window": WINDOW, "sliding_window_pattern": 4}),
    "exaone4: no windows": ("Exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 4}),
    "phi3": ("Phi3", {"sliding_window": WINDOW, "partial_rotary_factor": 0.5}),
    "phi3: longrope": ("Phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 64}),
    "gemma2": (
        "Gemma2",
        {"sliding_window": WINDOW, "head_dim": 16, "query_pre_attn_scalar": 20, "attn_logit_softcapping": 3.0},
    ),
    "gemma3_text": (
        "Gemma3Text",
        {
            "sliding_window": WINDOW,
            "head_dim": 16,
            "query_pre_attn_scalar": 20,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "stablelm": ("StableLm", {"use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    "stablelm: parallel": ("StableLm", {"use_parallel_residual": True}),
    "starcoder2": ("Starcoder2", {"sliding_window": WINDOW}),
    "cohere2": ("Cohere2", {"sliding_window": WINDOW, "logit_scale": 0.3}),
    "glm4": ("Glm4", {"head_dim": 8}),
    "gpt2": ("GPT2", {"n_inner": None}),
    "gpt2: shrinking": ("GPT2", {"scale_attn_by_inverse_layer_idx": True, "activation_function": "gelu"}),
    "gpt_neox": ("GPTNeoX", {}),
    "gpt_neox: sequential": ("GPTNeoX", {"use_parallel_residual": False, "attention_bias": False}),
    "opt": ("OPT", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "falcon": ("Falcon", {}),
    "falcon: new": ("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "falcon: new, one norm": (
        "Falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    "falcon: sequential": ("Falcon", {"parallel_attn": False, "multi_query": False}),
    "mixtral": ("Mixtral", {"sliding_window": WINDOW, "num_local_experts": 5}),
    "qwen2_moe": (
        "Qwen2Moe",
        {
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "decoder_sparse_step": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
            "num_experts": 6,
            "num_experts_per_tok": 2,
        },
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            "head_dim": 16,
            "moe_intermediate_size": 24,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "olmoe": ("Olmoe", {"num_experts": 6, "num_experts_per_tok": 2}),
    "gpt_oss": (
        "GptOss",
        {
            "head_dim": 8,
            "sliding_window": WINDOW,
            "rope_parameters": YARN | {"truncate": False},
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "swiglu_limit": 0.5,
        },
    ),
    "granitemoe": (
        "GraniteMoe",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.6,
            "logits_scaling": 4.0,
            "num_local_experts": 5,
        },
    ),
}
EAGER = {"gemma2", "gpt_oss"}  # what their scores need, torch's own attention does not have


def family_name(case: str) -> str:
    return case.partition(":")[0]


@cache
def model_of(case: str) -> Any:
    """The model of a case of the table."""
    return build(case, *CASES[case])


def build(case: str, name: str, changes: dict[str, Any]) -> Any:
    """In float64, with all parameters made to count: norms start at 1 and biases at 0."""
    config = getattr(transformers, f"{name}Config")(**SIZES | changes)
    torch.manual_seed(len(case))
    attention = "eager" if family_name(case) in EAGER else "sdpa"
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).double().eval()
    model.set_experts_implementation("eager")  # their grouped products have no float64
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.1 if parameter.ndim > 1 else 0.2))
    return model


@contextmanager
def wide_softmax() -> Iterator[None]:
    """Their eager attention rounds the soft-max to float32; here it stays in float64, as in torch's own."""
    narrow = F.softmax

    def wide(x: Any, dim: Any = None, dtype: Any = None, **_: Any) -> Any:
        return narrow(x, dim=dim, dtype=torch.float64 if x.ndim == 4 else dtype)

    F.softmax = wide
    try:
        yield
    finally:
        F.softmax = narrow


def attention_and_mlp(model: Any, layer: int) -> tuple[Any, Any]:
    """The two modules of a layer of a transformers model, whatever they are called."""
    layers = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == 4)
    parts = dict(layers[layer].named_children())
    attention = next(parts[name] for name in ("self_attn", "self_attention", "attention", "attn") if name in parts)
    mlp = next(parts[name] for name in ("mlp", "block_sparse_moe", "fc2") if name in parts)
    return attention, mlp
