import pytest

from selfspec.errors import CorruptModelError, UnsupportedModelError
from selfspec.model.config import Rope
from selfspec.model.families import config_from_hf, gguf_names, is_ignored, weight_shapes

BASE = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


def read(**changes):
    return config_from_hf({**BASE, **changes})


def test_defaults_are_those_of_transformers():
    """An old config.json leaves out what equals the class defaults; other defaults give another model."""
    from transformers import LlamaConfig

    theirs = LlamaConfig(**{key: value for key, value in BASE.items() if key != "architectures"})
    ours = read()
    assert ours.norm_eps == theirs.rms_norm_eps
    assert ours.context_length == theirs.max_position_embeddings
    assert (ours.num_kv_heads, ours.head_dim) == (theirs.num_key_value_heads, theirs.head_dim)
    assert ours.rope.theta == theirs.rope_parameters["rope_theta"]
    assert ours.tied_head == theirs.tie_word_embeddings


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"head_dim": 16, "num_kv_heads": 4, "dtype": "float32", "eos_token_ids": ()}),
        ({"num_key_value_heads": 2, "head_dim": 32}, {"head_dim": 32, "num_kv_heads": 2}),
        ({"head_dim": None, "num_key_value_heads": None}, {"head_dim": 16, "num_kv_heads": 4}),
        ({"torch_dtype": "bfloat16"}, {"dtype": "bfloat16"}),
        ({"dtype": "float16"}, {"dtype": "float16"}),
        ({"eos_token_id": 7}, {"eos_token_ids": (7,)}),
        ({"eos_token_id": [7, 8, 7]}, {"eos_token_ids": (7, 8)}),
        ({"eos_token_id": None}, {"eos_token_ids": ()}),
        ({"attention_bias": True, "mlp_bias": True}, {"attention_bias": True, "mlp_bias": True}),
        ({"tie_word_embeddings": True}, {"tied_head": True}),
        ({"rope_theta": 5e5}, {"rope": Rope(5e5)}),
        ({"rope_theta": 5e5, "rope_scaling": None}, {"rope": Rope(5e5)}),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, {"rope": Rope(kind="linear", factor=2.0)}),
        ({"rope_theta": 5e5, "rope_scaling": LLAMA3}, {"rope": Rope(5e5, "llama3", 8.0, 1.0, 4.0, 8192)}),
        (
            {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
            {"rope": Rope(5e5, "llama3", 8.0, 1.0, 4.0, 8192)},
        ),
        ({"rope_parameters": {"rope_theta": 9.0, "rope_type": "default"}}, {"rope": Rope(9.0)}),
        ({"architectures": None, "model_type": "llama"}, {"family": "llama"}),
    ],
)
def test_config_of_both_generations(changes, expected):
    """transformers 4 and 5 write the same facts under different keys; a missed key changes the model."""
    config = read(**changes)
    assert {key: getattr(config, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"architectures": ["MambaForCausalLM"]}, ("MambaForCausalLM", "LlamaForCausalLM")),
        ({"architectures": ["llama"]}, ("'llama'", "LlamaForCausalLM")),
        ({"architectures": [], "model_type": "qwen9"}, ("qwen9",)),
        ({"hidden_act": "gelu"}, ("hidden_act", "gelu", "silu")),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2}},
            ("dynamic", "default, linear, llama3, yarn, longrope"),
        ),
        ({"rope_parameters": {"rope_type": "dynamic\nx"}}, ("dynamic",)),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, ("partial_rotary_factor", "0.5")),
        ({"torch_dtype": "float8_e4m3fn"}, ("float8_e4m3fn", "bfloat16")),
        ({"quantization_config": {"quant_method": "gptq"}}, ("quantization_config", "gptq")),
        ({"sliding_window": 4096}, ("sliding_window", "4096")),
        ({"rope_interleaved": True}, ("rope_interleaved",)),
    ],
)
def test_unsupported(changes, parts, refused):
    """An option that is ignored gives another model without a word."""
    with refused(UnsupportedModelError, *parts):
        read(**changes)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"hidden_size": None}, ("hidden_size", "required")),
        ({"hidden_size": "64"}, ("hidden_size", "'64'")),
        ({"hidden_size": True}, ("hidden_size",)),
        ({"hidden_size": 65}, ("hidden_size", "multiple")),
        ({"num_hidden_layers": 0}, ("num_hidden_layers", "at least 1")),
        ({"vocab_size": -5}, ("vocab_size",)),
        ({"num_key_value_heads": 3}, ("multiple", "num_key_value_heads (3)")),
        ({"head_dim": 15}, ("even",)),
        ({"rms_norm_eps": 0}, ("rms_norm_eps", "above 0")),
        ({"rms_norm_eps": float("nan")}, ("rms_norm_eps",)),
        ({"rope_theta": "x"}, ("rope_theta",)),
        ({"tie_word_embeddings": "yes"}, ("tie_word_embeddings", "true or false")),
        ({"eos_token_id": "2"}, ("eos_token_id",)),
        ({"eos_token_id": [100]}, ("100", "vocab_size")),
        ({"architectures": "LlamaForCausalLM"}, ("architectures",)),
        ({"architectures": None}, ("model_type", "required")),
        ({"rope_scaling": [1]}, ("rope_scaling",)),
        ({"rope_scaling": {"type": "linear"}}, ("factor", "required")),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}}, ("low_freq_factor",)),
        (
            {"rope_scaling": LLAMA3, "rope_parameters": {"rope_type": "default"}},
            ("rope_scaling", "rope_parameters"),
        ),
    ],
)
def test_corrupt(changes, parts, refused):
    """A damaged config.json ended in a stack trace of whoever used the value first."""
    with refused(CorruptModelError, "config.json", *parts):
        read(**changes)


@pytest.mark.parametrize("options", [{}, {"tie_word_embeddings": True}, {"attention_bias": True, "mlp_bias": True}])
def test_weight_shapes_are_those_of_transformers(options):
    """A forgotten or misnamed weight would be found by users only."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {key: value for key, value in BASE.items() if key != "architectures"}
    config = LlamaConfig(**sizes, num_key_value_heads=2, head_dim=32, **options)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    theirs = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        del theirs["lm_head.weight"]
    ours = config_from_hf(
        {"architectures": BASE["architectures"], **config.to_dict()} | {"architectures": BASE["architectures"]}
    )
    assert weight_shapes(ours) == theirs
    assert ours.parameters == sum(tensor.numel() for tensor in model.parameters())


def test_gguf_names_cover_every_weight():
    """Two GGUF names for one weight, or none, lose a tensor in the conversion."""
    config = read(attention_bias=True, mlp_bias=True)
    names = gguf_names(config)
    assert sorted(names.values()) == sorted(weight_shapes(config))
    assert names["blk.1.ffn_down.weight"] == "model.layers.1.mlp.down_proj.weight"
    assert names["output.weight"] == "lm_head.weight"


def test_ignored_tensors():
    """Old checkpoints carry derived buffers; a head of its own must not pass as one."""
    assert is_ignored("model.layers.11.self_attn.rotary_emb.inv_freq", read())
    assert not is_ignored("lm_head.weight", read())
    assert is_ignored("lm_head.weight", read(tie_word_embeddings=True))
    assert not is_ignored("model.layers.0.self_attn.q_norm.weight", read())
