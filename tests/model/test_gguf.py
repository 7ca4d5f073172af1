import json
from contextlib import suppress

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from safetensors.numpy import load_file
from tiny_models import interleave

from selfspec.errors import CorruptModelError, UnsupportedModelError
from selfspec.model import config_of, find_checkpoint, gguf_names
from selfspec.model.families.gguf_weights import half_split


def weights_of(checkpoint):
    return load_file(checkpoint.folder / "model.safetensors")


def test_half_split_undoes_the_interleaving():
    """Rows in the wrong rotary order give fluent nonsense."""
    rows = np.arange(4 * 8 * 3).reshape(32, 3)
    for heads in (1, 2, 4):
        np.testing.assert_array_equal(half_split(interleave(rows, heads), heads), rows)
    np.testing.assert_array_equal(half_split(interleave(rows[:, 0], 4), 4), rows[:, 0])


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "F16", "BF16", "F32"])
def test_weights(write_gguf, kind):
    """Every quantisation is the library's own, in the order of a Hugging Face model."""
    path, tensors = write_gguf(f"{kind}.gguf", kind=kind)
    checkpoint = find_checkpoint(path)
    weights = weights_of(checkpoint)
    names = gguf_names(checkpoint.config)
    assert set(weights) == set(names.values())
    for name, array in tensors.items():
        expected = array
        if array.ndim == 2:
            expected = dequantize(quantize(array, GGMLQuantizationType[kind]), GGMLQuantizationType[kind])
        np.testing.assert_array_equal(weights[names[name]], expected)


def test_the_folder_is_an_ordinary_one(write_gguf):
    """Other programs open the converted folder, and see the same model."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path, _ = write_gguf()
    checkpoint = find_checkpoint(path)
    model = AutoModelForCausalLM.from_pretrained(checkpoint.folder)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint.folder)
    assert model.config.rms_norm_eps == 1e-5 == checkpoint.config.norm_eps
    assert model.generation_config.eos_token_id == 2 == tokenizer.eos_token_id
    assert (tokenizer.bos_token_id, model.config.num_key_value_heads) == (1, 2)
    chat = [{"role": "user", "content": "the é"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == checkpoint.tokenizer.render(chat, False)
    assert config_of(path) == checkpoint.config
    assert checkpoint.name == "tiny"


def test_a_head_of_its_own_and_biases(write_gguf):
    """An untied head or biases that are not noticed are lost weights."""
    rng = np.random.default_rng(1)
    sizes = {
        "attn_q": 32,
        "attn_k": 16,
        "attn_v": 16,
        "attn_output": 32,
        "ffn_gate": 64,
        "ffn_up": 64,
        "ffn_down": 32,
    }

    def change(tensors):
        tensors["output.weight"] = rng.standard_normal((len(tensors["token_embd.weight"]), 32)).astype(np.float32)
        for layer in range(2):
            for name, size in sizes.items():
                tensors[f"blk.{layer}.{name}.bias"] = rng.standard_normal(size).astype(np.float32)

    path, tensors = write_gguf("head.gguf", change=change)
    checkpoint = find_checkpoint(path)
    assert not checkpoint.config.tied_head
    assert checkpoint.config.attention_bias
    assert checkpoint.config.mlp_bias
    weights = weights_of(checkpoint)
    for ours, theirs in (("q_proj", "attn_q"), ("k_proj", "attn_k")):
        np.testing.assert_array_equal(
            weights[f"model.layers.1.self_attn.{ours}.bias"], tensors[f"blk.1.{theirs}.bias"]
        )


def test_rope_scaling(write_gguf, refused):
    """Llama 3.1 files keep their scaling as a tensor; without it long texts go wrong."""
    path, _ = write_gguf("linear.gguf", **{"llama.rope.scaling.type": "linear"})
    with refused(CorruptModelError, "rope.scaling.factor"):
        config_of(path)

    def add(factors):
        return lambda tensors: tensors.update({"rope_freqs.weight": factors})

    base = {"llama.rope.freq_base": 500_000.0}
    smooth = np.clip((8192 / (2 * np.pi * 500_000.0 ** (np.arange(0, 8, 2) / 8)) - 1) / 3, 0, 1)
    factors = (1 / ((1 - smooth) / 8 + smooth)).astype(np.float32)
    assert factors[0] == 1
    assert factors[-1] == 8
    path, _ = write_gguf("llama3.gguf", change=add(factors), **base)
    rope = config_of(path).rope
    assert (rope.theta, rope.kind, rope.factor, rope.original_context) == (5e5, "llama3", 8.0, 8192)
    assert find_checkpoint(path).config.rope == rope
    path, _ = write_gguf("other.gguf", change=add(np.array([1, 2, 3, 4], np.float32)))
    rope = config_of(path).rope
    assert (rope.kind, rope.factors, rope.attention_factor) == ("longrope", (1, 2, 3, 4), 1)


PRE = {
    "smollm": [["1"], ["2"], ["3"], ["Ġthe"], ["Ġ"], ["Ġa"]],
    "gpt-2": [["123"], ["Ġthe"], ["Ġ"], ["Ġa"]],
    "llama-bpe": [["123"], ["Ġthe"], ["Ġ"], ["Ġa"]],
    "default": [["123"], ["Ġthe"], ["Ġ"], ["Ġa"]],
}


@pytest.mark.parametrize("pre", PRE)
def test_pre_tokenizers(write_gguf, pre):
    """Another split gives other tokens than in training; llama-bpe alone adds a BOS by itself."""
    path, _ = write_gguf(f"{pre}.gguf", pre=pre)
    tokenizer = find_checkpoint(path).tokenizer
    split = tokenizer._backend.pre_tokenizer.pre_tokenize_str("123 the  a")
    assert [[piece] for piece, _ in split] == PRE[pre]
    ids = tokenizer.encode("123 the  a<|im_end|>")
    assert ids[-1] == 2
    assert (ids[0] == 1) == (pre == "llama-bpe")
    assert tokenizer.decode(ids) == "123 the  a"


def test_default_splits_like_llama_cpp(write_gguf):
    """llama.cpp's default cuts punctuation and groups of three digits; ours did what GPT-2 does."""
    path, _ = write_gguf("default.gguf", pre="default")
    split = find_checkpoint(path).tokenizer._backend.pre_tokenizer.pre_tokenize_str("a=12345!")
    assert [piece for piece, _ in split] == ["a", "=", "123", "45", "!"]


def test_bos_and_eot(write_gguf):
    """The flag in the file decides on BOS, and the end of a turn ends a text too."""
    extra = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.eot_token_id": 0}
    path, _ = write_gguf("bos.gguf", **extra)
    checkpoint = find_checkpoint(path)
    assert checkpoint.tokenizer.encode("a")[0] == 1
    assert checkpoint.tokenizer.encode_chat([{"role": "user", "content": "a"}]).count(1) == 2
    assert checkpoint.config.eos_token_ids == (2, 0)
    settings = json.loads((checkpoint.folder / "tokenizer_config.json").read_text())
    assert settings["eos_token"] == "<|im_end|>"


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"architecture": "mamba"}, ("mamba", "llama")),
        ({"pre": "qwen9"}, ("qwen9", "smollm")),
        ({"model": "rwkv"}, ("'rwkv'", "gpt2")),
        ({"llama.expert_shared_count": 8}, ("expert_shared_count (8)",)),
        ({"llama.attention.sliding_window": 64}, ("sliding_window",)),
        ({"llama.rope.scaling.type": "dynamic"}, ("dynamic", "yarn")),
        ({"llama.rope.scaling.attn_factor": 1.5}, ("attn_factor (1.5)",)),
        ({"llama.rope.dimension_count": 4}, ("rope.dimension_count", "4")),
        ({"split.count": 3}, ("3 parts",)),
        ({"kind": "MXFP4"}, ("MXFP4", "Q5_K, Q6_K")),
        ({"change": lambda tensors: tensors.update(odd=np.ones(4, np.float32))}, ("odd",)),
    ],
)
def test_unsupported(write_gguf, options, parts, refused):
    """An option that is ignored gives another model without a word."""
    path, _ = write_gguf("bad.gguf", **options)
    with refused(UnsupportedModelError, *parts):
        find_checkpoint(path)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"change": lambda tensors: tensors.pop("blk.1.ffn_up.weight")}, ("blk.1.ffn_up.weight",)),
        (
            {"change": lambda tensors: tensors.update({"blk.0.ffn_norm.weight": np.ones(31, np.float32)})},
            ("blk.0.ffn_norm.weight", "(31,)", "(32,)"),
        ),
        ({"llama.vocab_size": 5}, ("token_embd.weight",)),
        ({"tokenizer.ggml.padding_token_id": 5000}, ("padding_token_id", "5000")),
    ],
)
def test_contradictory(write_gguf, options, parts, refused):
    """A missing or misshapen tensor was found in the middle of the conversion."""
    path, _ = write_gguf("bad.gguf", **options)
    with refused(CorruptModelError, *parts):
        find_checkpoint(path)


@pytest.mark.parametrize("keep", [0, 3, 7, 8, 20, 100, 5000, 20_000, -1, -10_000])
def test_truncated(write_gguf, keep, refused):
    """The library reads short arrays at the end of a file, and loops for ever over the rest."""
    path, _ = write_gguf()
    path.write_bytes(path.read_bytes()[:keep])
    with refused(CorruptModelError, "tiny.gguf"):
        find_checkpoint(path)


def test_wrong_magic_and_version(write_gguf, refused):
    """Any file can be called .gguf."""
    path, _ = write_gguf()
    raw = path.read_bytes()
    path.write_bytes(b"GGML" + raw[4:])
    with refused(CorruptModelError, "not a GGUF file"):
        find_checkpoint(path)
    path.write_bytes(raw[:4] + b"\x01\0\0\0" + raw[8:])
    with refused(UnsupportedModelError, "version 1"):
        find_checkpoint(path)


def test_flipped_bytes_in_the_metadata(write_gguf):
    """A damaged length made the reader run for hours; whatever is damaged, the answer is one line, soon."""
    path, _ = write_gguf()
    raw = path.read_bytes()
    rng = np.random.default_rng(0)
    answers = []
    for position in [*range(8, 40), *rng.integers(40, 9000, 60)]:
        path.write_bytes(raw[:position] + bytes([raw[position] ^ 0xFF]) + raw[position + 1 :])
        with suppress(CorruptModelError, UnsupportedModelError):
            try:
                config_of(path)
            except Exception as error:
                answers.append(str(error))
                raise
    assert len(answers) > 40
    assert not any("\n" in answer for answer in answers)


def test_merges_must_fit(write_gguf, refused):
    """Merges of another vocabulary ended in an exception of the library."""
    for merges in ([("zz", "yy")], [("a", "b c")]):
        path, _ = write_gguf("merges.gguf", merges=merges)
        with refused(CorruptModelError, "merges"):
            find_checkpoint(path)
