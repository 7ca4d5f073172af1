"""What is read from the config.json of every family, and what is refused."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from family_models import CASES, WINDOW, model_of
from tiny_folder import write_model
from tokenizers import Tokenizer as Backend
from tokenizers import models
from transformers import CONFIG_MAPPING

import selfspec
from selfspec.errors import CorruptModelError, UnsupportedModelError
from selfspec.model.families import FAMILIES, config_from_hf, weight_shapes
from selfspec.runtime.cpu_model import lacking
from selfspec.types import LayerPlan, Rows

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 8, "num_attention_heads": 4,
    "vocab_size": 300_000,
}  # fmt: skip
MANY_HEADS = {**SIZES, "hidden_size": 256, "num_attention_heads": 32}
OWN_SIZES = {
    **dict.fromkeys(("qwen2", "qwen3", "exaone4", "stablelm"), MANY_HEADS),
    "gpt2": {"n_embd": 64, "n_layer": 8, "n_head": 4, "vocab_size": 300_000},
    "opt": {**SIZES, "ffn_dim": 96, "word_embed_proj_dim": 64},
    "mixtral": {**SIZES, "num_key_value_heads": 2},
    "mistral": {**SIZES, "num_key_value_heads": 2},
    "phi3": {**SIZES, "pad_token_id": 0},
    "gpt_oss": {**SIZES, "num_attention_heads": 16, "num_local_experts": 6},
    "qwen2_moe": {**SIZES, "num_attention_heads": 16, "num_experts": 6},
    "qwen3_moe": {**SIZES, "num_experts": 12},
    "olmoe": {**SIZES, "num_experts": 12},
    "granitemoe": {**SIZES, "num_local_experts": 6},
}
LONGROPE = {"type": "longrope", "short_factor": [1.5] * 6, "long_factor": [2.5] * 6}
OLD_KEYS = [
    (
        "gemma3_text",
        {"rope_theta": 1e5, "rope_local_base_freq": 5e3, "rope_scaling": {"rope_type": "linear", "factor": 8}},
    ),
    ("gemma3_text", {"sliding_window_pattern": 3}),
    ("gemma2", {"final_logit_softcapping": None, "attn_logit_softcapping": None}),
    (
        "olmo3",
        {
            "rope_theta": 5e5,
            "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 1024},
        },
    ),
    (
        "phi3",
        {
            "rope_scaling": LONGROPE,
            "partial_rotary_factor": 0.75,
            "max_position_embeddings": 16384,
            "original_max_position_embeddings": 4096,
        },
    ),
    ("phi3", {"sliding_window": 512, "num_key_value_heads": 2}),
    ("gpt_neox", {"rotary_pct": 0.5, "rotary_emb_base": 5000.0}),
    ("stablelm", {"partial_rotary_factor": 0.5, "rope_theta": 5e5}),
    ("glm4", {"partial_rotary_factor": 0.25}),
    ("cohere2", {"sliding_window_pattern": 2}),
    ("exaone4", {"sliding_window_pattern": 3}),
    ("smollm3", {"no_rope_layer_interval": 3, "use_sliding_window": True, "sliding_window": 64}),
    ("mistral", {"sliding_window": None, "head_dim": None}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 5}),
    ("qwen2", {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}}),
    (
        "qwen2_moe",
        {"use_sliding_window": True, "sliding_window": 64, "decoder_sparse_step": 2, "mlp_only_layers": [1]},
    ),
    (
        "gpt_oss",
        {"rope_scaling": {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 8192}},
    ),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    ("falcon", {"multi_query": False, "parallel_attn": False}),
    ("gpt2", {"n_inner": 100, "scale_attn_weights": False}),
]


def named(name):
    return next(family for family in FAMILIES if family.name == name)


def read(name, **changes):
    sizes = OWN_SIZES.get(name, SIZES)
    return config_from_hf({"architectures": [named(name).architectures[0]], **sizes, **changes})


@pytest.mark.parametrize(
    ("name", "changes"), [*((family.name, {}) for family in FAMILIES), *OLD_KEYS], ids=lambda value: str(value)[:40]
)
def test_keys_that_are_left_out_or_old_mean_what_transformers_makes_of_them(name, changes):
    """Guards a config.json that leaves out what equals the class defaults, or has the keys of transformers 4."""
    theirs = CONFIG_MAPPING[name](**OWN_SIZES.get(name, SIZES), **changes).to_dict()
    theirs["architectures"] = list(named(name).architectures)
    want = config_from_hf(theirs)
    assert replace(read(name, **changes), eos_token_ids=()) == replace(want, eos_token_ids=())


def test_every_architecture_is_one_of_transformers():
    """Guards the names: a checkpoint says them itself."""
    import transformers

    for family in FAMILIES:
        assert all(hasattr(transformers, name) for name in family.architectures)
        assert family.name in CONFIG_MAPPING


REFUSED = [
    ("mistral", {"attention_bias": True}, ("attention_bias", "MistralForCausalLM")),
    ("gemma2", {"hidden_activation": "gelu"}, ("hidden_activation", "gelu_pytorch_tanh")),
    ("gemma3_text", {"use_bidirectional_attention": True}, ("use_bidirectional_attention", "only False")),
    ("stablelm", {"qk_layernorm": True}, ("qk_layernorm", "only False")),
    ("starcoder2", {"hidden_act": "gelu_fast"}, ("hidden_act", "gelu_fast", "gelu_pytorch_tanh")),
    ("gpt2", {"add_cross_attention": True}, ("add_cross_attention",)),
    ("opt", {"do_layer_norm_before": False}, ("do_layer_norm_before",)),
    ("opt", {"word_embed_proj_dim": 32}, ("word_embed_proj_dim", "hidden_size (64)")),
    ("falcon", {"alibi": True}, ("alibi",)),
    ("falcon", {"new_decoder_architecture": True, "parallel_attn": False}, ("parallel_attn", "supported")),
    ("olmoe", {"clip_qkv": 8.0}, ("clip_qkv", "only null")),
    ("gpt_oss", {"quantization_config": {"quant_method": "mxfp4"}}, ("quantization_config", "mxfp4")),
    ("qwen3", {"layer_types": ["linear_attention"] * 8}, ("layer_types", "full_attention and sliding_attention")),
    ("qwen3", {"layer_types": ["full_attention"] * 3}, ("layer_types", "8 layers")),
    ("qwen2", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, ("rotary embedding for each",)),
    ("olmo3", {"rope_parameters": {"rope_type": "default"}}, ("full_attention, sliding_attention",)),
    (
        "llama",
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        ("partial_rotary", "0.5"),
    ),
]


@pytest.mark.parametrize(("name", "changes", "parts"), REFUSED)
def test_what_does_not_fit_is_refused(name, changes, parts, refused):
    """Guards options that would be ignored, and so give another model without a word."""
    with refused(UnsupportedModelError, *parts):
        read(name, **changes)


@pytest.mark.parametrize(
    ("name", "changes", "parts"),
    [
        ("mixtral", {"num_experts_per_tok": 9}, ("num_experts_per_tok is 9", "8")),
        ("smollm3", {"no_rope_layers": [1]}, ("no_rope_layers", "8 layers")),
        ("qwen2_moe", {"mlp_only_layers": 3}, ("mlp_only_layers",)),
        ("phi3", {"rope_scaling": {**LONGROPE, "short_factor": [1.0] * 3}}, ("3 rotary factors", "need 8")),
        ("phi3", {"rope_scaling": {**LONGROPE, "short_factor": "1"}}, ("short_factor", "list of numbers")),
        ("stablelm", {"partial_rotary_factor": 1.5}, ("partial_rotary_factor", "at most 1")),
        ("gemma2", {"head_dim": 15}, ("15", "even")),
        ("granite", {"logits_scaling": 0}, ("logits_scaling", "above 0")),
    ],
)
def test_damage_is_named(name, changes, parts, refused):
    """Guards files that say what cannot be: one line, and not a stack trace of whoever used the value first."""
    with refused(CorruptModelError, *parts):
        read(name, **changes)


def test_a_longrope_model_ends_where_its_keys_would_change():
    """Past its original context, transformers turns all positions anew: a token would not have one key."""
    config = read("phi3", **OLD_KEYS[4][1])
    assert config.context_length == 4096
    assert config.layer(0).rope.attention_factor > 1


# -- folders ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Saves the model of a case, with a tokenizer of fewer tokens than it has embeddings."""
    home = tmp_path_factory.mktemp("families")

    def save(case):
        folder = home / str(list(CASES).index(case))
        if not folder.exists():
            model_of(case).save_pretrained(folder)
            Backend(models.BPE({chr(33 + i): i for i in range(90)}, [])).save(str(folder / "tokenizer.json"))
        return folder

    return save


@pytest.mark.parametrize("case", CASES)
def test_a_saved_model_gives_the_text_of_its_object(case, folders):
    """Guards the names in files, which are not always those of the modules, experts above all; and a tokenizer
    with fewer tokens than the model: text that has no token is empty, and nothing fails.
    """
    folder = folders(case)
    engine = selfspec.load(folder, dtype="float64")
    assert engine.tokenizer.vocab_size < engine.config.vocab_size
    prompt = list(range(3, 3 + WINDOW + 4))
    options = {"max_new_tokens": 12, "ignore_eos": True, "draft": "early_exit", "exit_layer": 2}
    found = engine.generate(prompt, **options)
    assert list(found.token_ids) == list(selfspec.load(model_of(case)).generate(prompt, **options).token_ids)


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("MistralForCausalLM", {"sliding_window": 4096}),  # as long as the context: never left
        ("Qwen2ForCausalLM", {"sliding_window": 8, "rope_theta": 1e6}),  # switched off by default
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 1, 1, 1]}),
        ("GraniteForCausalLM", {"attention_multiplier": 8**-0.5}),
    ],
)
def test_the_core_runs_other_families_whose_operators_it_has(architecture, changes, tmp_path):
    """Guards the facts that reach the core: the same logits as torch, which is compared with transformers."""
    folder = write_model(tmp_path / "model", architectures=[architecture], **changes)
    core, torch = selfspec.load(folder), selfspec.load(folder, dtype="float64")
    assert (core.runtime.name, torch.runtime.name) == ("cpu", "torch")
    rows, plan = Rows.of([0] * 12, range(12)), LayerPlan.full(4)
    found = []
    for runtime in (core.runtime, torch.runtime):
        hidden, _ = runtime.run(runtime.embed(range(12)), plan, rows, runtime.new_cache(1, 12))
        found.append(runtime.logits(hidden))
    assert np.abs(found[0] - found[1]).max() < 1e-3 * np.abs(found[1]).max()


@pytest.mark.parametrize("case", CASES)
def test_a_saved_model_runs_on_the_core(case, folders):
    """Guards the way from a file into the core: fused, transposed and joint weights, packed and mapped."""
    core, torch = selfspec.load(folders(case), runtime="cpu"), selfspec.load(folders(case), dtype="float64")
    rows, plan = Rows.of([0] * 12, range(12)), LayerPlan.full(4)
    found = []
    for runtime in (core.runtime, torch.runtime):
        hidden, _ = runtime.run(runtime.embed(range(12), rows.positions), plan, rows, runtime.new_cache(1, 12))
        found.append(runtime.logits(hidden))
    assert np.abs(found[0] - found[1]).max() < 2e-5 * np.abs(found[1]).max()


def test_what_the_core_does_not_have_runs_in_torch_and_says_so(folders, monkeypatch):
    """Guards the fall back: the core must never run a model whose facts it does not know."""
    monkeypatch.setattr("selfspec.runtime.cpu_model._ACTIVATIONS", ("gelu",))
    folder, told = folders("mistral"), []
    missing = lacking(config_from_hf(json.loads((folder / "config.json").read_text())))
    engine = selfspec.load(folder, notify=told.append)
    assert engine.runtime.name == "torch"
    assert missing == "the activation silu"
    assert any(missing in line and "torch" in line for line in told)
    with pytest.raises(UnsupportedModelError, match="the native core has no") as caught:
        selfspec.load(folder, runtime="cpu")
    assert "\n" not in str(caught.value)
    with pytest.raises(UnsupportedModelError, match="bits"):
        selfspec.load(folder, bits=8)


def test_weights_are_counted_once():
    """Guards sizes in `info`: experts that a row does not have are held, and not read."""
    config = read("mixtral")
    total = sum(math.prod(shape) for shape in weight_shapes(config).values())
    assert config.parameters == total
    expert = 3 * 64 * 96
    assert config.layer_parameters - config.active_layer_parameters == 6 * expert
