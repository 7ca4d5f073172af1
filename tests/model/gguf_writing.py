"""Tiny GGUF files of every family, written from transformers models by the rules of llama.cpp's converter.

Nothing of our reader is used: names of tensors are those of the ``gguf`` package, the rest is stated here.
"""

from __future__ import annotations

import gguf
import torch
from gguf import MODEL_ARCH

ARCHITECTURES = {
    "llama": MODEL_ARCH.LLAMA,
    "mixtral": MODEL_ARCH.LLAMA,
    "qwen2": MODEL_ARCH.QWEN2,
    "qwen3": MODEL_ARCH.QWEN3,
    "smollm3": MODEL_ARCH.SMOLLM3,
    "granite": MODEL_ARCH.GRANITE,
    "olmo2": MODEL_ARCH.OLMO2,
    "olmo3": MODEL_ARCH.OLMO2,
    "exaone4": MODEL_ARCH.EXAONE4,
    "phi3": MODEL_ARCH.PHI3,
    "gemma2": MODEL_ARCH.GEMMA2,
    "gemma3_text": MODEL_ARCH.GEMMA3,
    "stablelm": MODEL_ARCH.STABLELM,
    "starcoder2": MODEL_ARCH.STARCODER2,
    "cohere2": MODEL_ARCH.COHERE2,
    "glm4": MODEL_ARCH.GLM4,
    "gpt2": MODEL_ARCH.GPT2,
    "gpt_neox": MODEL_ARCH.GPTNEOX,
    "falcon": MODEL_ARCH.FALCON,
    "qwen2_moe": MODEL_ARCH.QWEN2MOE,
    "qwen3_moe": MODEL_ARCH.QWEN3MOE,
    "olmoe": MODEL_ARCH.OLMOE,
    "granitemoe": MODEL_ARCH.GRANITE_MOE,
}
FULL = ("gpt2", "gpt_neox")  # a key for every query
PERMUTED = ("llama", "mixtral", "smollm3", "granite", "granitemoe")


def write_gguf(path, model, kind=gguf.GGMLQuantizationType.F32):
    """Write a transformers model; matrices in ``kind``. Returns the names of the tensors."""
    config = model.config
    arch = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    sizes(writer, config)
    written = []
    for name, tensor in tensors(model, config):
        stored = name if name.startswith(("rope_", "blk.")) else names.get_name(name, (".weight", ".bias"))
        assert stored is not None, name
        here = kind if tensor.ndim > 1 else gguf.GGMLQuantizationType.F32
        data = gguf.quants.quantize(tensor.contiguous().float().numpy(), here)
        writer.add_tensor(stored, data, raw_dtype=here)
        written.append(stored)
    tokens = ["a", "b", "ab", *(f"<{n}>" for n in range(3, config.vocab_size))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_merges(["a b"])
    writer.add_token_types([1] * len(tokens))
    writer.add_eos_token_id(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return written


# -- metadata ---------------------------------------------------------------------------------------------


def sizes(writer, config):
    """What all files have, then what each family adds."""
    family, get = config.model_type, lambda key, default=None: getattr(config, key, default)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    four = family in ("gpt2", "falcon")
    writer.add_feed_forward_length(4 * config.hidden_size if four else config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    if family not in FULL:
        writer.add_head_count_kv(kv_heads(config))
    eps = get("layer_norm_eps") or get("layer_norm_epsilon") or get("norm_epsilon")
    if eps:
        writer.add_layer_norm_eps(eps)
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if config.__dict__.get("head_dim") and family not in ("granite", "falcon", "phi3"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if get("num_experts_per_tok"):
        writer.add_expert_count(
            config.num_local_experts if hasattr(config, "num_local_experts") else config.num_experts
        )
        writer.add_expert_used_count(config.num_experts_per_tok)
    if get("moe_intermediate_size"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if get("shared_expert_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if get("use_parallel_residual") is not None:
        writer.add_parallel_residual(config.use_parallel_residual)
    scales(writer, config)
    rope(writer, config)
    windows(writer, config)


def kv_heads(config):
    if config.model_type != "falcon":
        return config.num_attention_heads if config.model_type in FULL else config.num_key_value_heads
    return config.num_kv_heads if config.new_decoder_architecture else 1


def head_dim(config):
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def scales(writer, config):
    if config.model_type in ("granite", "granitemoe"):
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if config.model_type == "cohere2":
        writer.add_logit_scale(config.logit_scale)
    if config.model_type == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def rope(writer, config):
    given = getattr(config, "rope_parameters", None)
    if not given or config.model_type in ("gpt2", "falcon"):
        return
    sliding = given.get("sliding_attention")
    if sliding and sliding["rope_theta"] != 1e4:  # what is taken for granted was not always written
        writer.add_rope_freq_base_swa(sliding["rope_theta"])
    full = given.get("full_attention", given)
    if config.model_type != "gpt_neox":
        writer.add_rope_freq_base(full["rope_theta"])
    share = full.get("partial_rotary_factor") or 1.0
    writer.add_rope_dimension_count(int(share * head_dim(config)))
    kind = full["rope_type"]
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType[kind.upper()])
        writer.add_rope_scaling_factor(full["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
    if config.model_type == "phi3":
        original = config.original_max_position_embeddings
        writer.add_rope_scaling_orig_ctx_len(original)
        if kind == "longrope":
            stretch = torch.tensor(config.max_position_embeddings / original).log()
            factor = (1 + stretch / torch.tensor(float(original)).log()).sqrt().item()
            writer.add_rope_scaling_attn_factors(factor)


def windows(writer, config):
    if config.model_type not in ("olmo3", "exaone4", "phi3", "gemma2", "gemma3_text", "cohere2"):
        return
    if config.sliding_window is None and config.model_type == "exaone4":
        return
    writer.add_sliding_window(config.sliding_window or 0)
    if config.model_type in ("olmo3", "exaone4"):
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])


# -- tensors ----------------------------------------------------------------------------------------------


def tensors(model, config):
    """The tensors as the converter makes them: (HF or GGUF name, array)."""
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if "rotary" in name or name.endswith((".attn.bias", ".masked_bias", ".attention.bias")):
            continue
        yield from changed(name, tensor, config)
    scaling = getattr(config, "rope_parameters", None) or {}
    if scaling.get("rope_type") == "llama3":
        yield "rope_freqs.weight", llama3_factors(scaling, head_dim(config))
    if scaling.get("rope_type") == "longrope":
        yield "rope_factors_long.weight", torch.tensor(scaling["long_factor"])
        yield "rope_factors_short.weight", torch.tensor(scaling["short_factor"])


def changed(name, tensor, config):
    family, parts = config.model_type, name.split(".")
    layer = next((part for part in parts if part.isdigit()), None)
    if family in PERMUTED and parts[-2] in ("q_proj", "k_proj"):
        heads = config.num_attention_heads if parts[-2] == "q_proj" else config.num_key_value_heads
        tensor = tensor.reshape(heads, 2, -1, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
    elif family.startswith("gemma") and name.endswith("norm.weight"):
        tensor = tensor + 1
    elif family == "gpt2" and parts[-2] in ("c_attn", "c_proj", "c_fc") and tensor.ndim == 2:
        tensor = tensor.T
    elif "query_key_value" in parts:
        tensor = ungrouped(tensor, config.num_attention_heads, kv_heads(config))
    elif parts[-1] == "gate_up_proj" or parts[-2] == "input_linear":
        gate, up = tensor.chunk(2, dim=1)
        yield f"blk.{layer}.ffn_gate_exps.weight", gate
        yield f"blk.{layer}.ffn_up_exps.weight", up
        return
    elif parts[-1] == "down_proj" or parts[-2] == "output_linear":
        name = f"blk.{layer}.ffn_down_exps.weight"
    elif family == "granitemoe" and "router" in parts:
        name = f"blk.{layer}.ffn_gate_inp.weight"
    yield name, tensor


def ungrouped(tensor, heads, kv_heads):
    """Falcon and GPT-NeoX: from groups of queries, key and value to all queries, all keys, all values."""
    groups = tensor.reshape(kv_heads, heads // kv_heads + 2, -1, *tensor.shape[1:])
    parts = [groups[:, :-2].flatten(0, 1), groups[:, -2], groups[:, -1]]
    return torch.cat(parts).reshape(tensor.shape)


def llama3_factors(scaling, dims):
    low = scaling["original_max_position_embeddings"] / scaling["low_freq_factor"]
    high = scaling["original_max_position_embeddings"] / scaling["high_freq_factor"]
    found = []
    for i in range(0, dims, 2):
        wavelength = 2 * torch.pi * scaling["rope_theta"] ** (i / dims)
        smooth = (scaling["original_max_position_embeddings"] / wavelength - scaling["low_freq_factor"]) / (
            scaling["high_freq_factor"] - scaling["low_freq_factor"]
        )
        middle = 1 / ((1 - smooth) / scaling["factor"] + smooth)
        found.append(1.0 if wavelength < high else scaling["factor"] if wavelength > low else middle)
    return torch.tensor(found)
