"""Tiny checkpoints, made on the spot; the embedded model, converted once per session."""

import json
import shutil

import gguf
import numpy as np
import pytest
from gguf.quants import quantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from selfspec.errors import ModelNotFoundError
from selfspec.model import EMBEDDED, find_checkpoint, find_embedded, install_command

SIZES = {
    "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("ð", "Ł"), ("ðŁ", "ĺ"), ("Ã", "©"), ("©", "a")]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_vocabulary():
    pieces = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in MERGES)]
    return {piece: number for number, piece in enumerate(pieces)}


def byte_tokenizer():
    tokenizer = Tokenizer(models.BPE(byte_vocabulary(), MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


def save_tokenizer(folder, **settings):
    folder.mkdir(parents=True, exist_ok=True)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(autouse=True)
def _no_network_no_home(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("SELFSPEC_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def _save_model(folder, **options):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, eos_token_id=2, **options.pop("config", {})))
    model.save_pretrained(folder, **options)
    return save_tokenizer(folder)


@pytest.fixture(scope="session")
def _plain_folder(tmp_path_factory):
    return _save_model(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="session")
def _sharded_folder(tmp_path_factory):
    return _save_model(tmp_path_factory.mktemp("sharded"), max_shard_size="60KB")


@pytest.fixture
def plain(_plain_folder, tmp_path):
    """A private copy of a tiny Llama folder, one weight file."""
    return shutil.copytree(_plain_folder, tmp_path / "plain")


@pytest.fixture
def sharded(_sharded_folder, tmp_path):
    """A private copy of a tiny Llama folder, several weight files and an index."""
    return shutil.copytree(_sharded_folder, tmp_path / "sharded")


@pytest.fixture
def save_model():
    return _save_model


# -- GGUF -------------------------------------------------------------------------------------------------


def interleave(rows, heads):
    """What llama.cpp's converter does to query and key rows."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _gguf_tensors(rng):
    d, ff, vocab, kv = 32, 64, len(byte_vocabulary()), 16
    shapes = {"token_embd.weight": (vocab, d), "output_norm.weight": (d,)}
    for layer in range(2):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (d,), f"blk.{layer}.ffn_norm.weight": (d,),
            f"blk.{layer}.attn_q.weight": (d, d), f"blk.{layer}.attn_k.weight": (kv, d),
            f"blk.{layer}.attn_v.weight": (kv, d), f"blk.{layer}.attn_output.weight": (d, d),
            f"blk.{layer}.ffn_gate.weight": (ff, d), f"blk.{layer}.ffn_up.weight": (ff, d),
            f"blk.{layer}.ffn_down.weight": (d, ff),
        }  # fmt: skip
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def _write_metadata(writer, pre, extra):
    vocabulary = byte_vocabulary()
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(extra.pop("model", "gpt2"))
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(list(vocabulary))
    writer.add_token_types([3 if token in SPECIAL else 1 for token in vocabulary])
    writer.add_token_merges([f"{a} {b}" for a, b in MERGES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for key, value in extra.items():
        add = writer.add_string if isinstance(value, str) else writer.add_uint32
        (writer.add_bool if isinstance(value, bool) else add)(key, value)


@pytest.fixture
def write_gguf(tmp_path):
    """Write a tiny GGUF; returns its path and the HF-ordered float32 tensors by GGUF name."""

    def write(name="tiny.gguf", *, pre="smollm", architecture="llama", change=None, kind="Q8_0", **extra):
        tensors = _gguf_tensors(np.random.default_rng(0))
        if change:
            change(tensors)
        writer = gguf.GGUFWriter(tmp_path / name, architecture)
        _write_metadata(writer, pre, dict(extra))
        for tensor, array in tensors.items():
            stored = array
            if "attn_q." in tensor or "attn_k." in tensor:
                stored = interleave(array, 4 if "attn_q." in tensor else 2)
            kind_here = gguf.GGMLQuantizationType[kind if array.ndim == 2 else "F32"]
            writer.add_tensor(tensor, quantize(stored, kind_here), raw_dtype=kind_here)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return tmp_path / name, tensors

    return write


# -- the embedded model -----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def embedded_source():
    try:
        return find_embedded()
    except ModelNotFoundError as error:
        pytest.fail(f"{error} -- here: {' '.join(install_command())}")


@pytest.fixture(scope="session")
def embedded(embedded_source, tmp_path_factory):
    """The embedded model, converted once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SELFSPEC_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        return find_checkpoint(EMBEDDED)


# -- errors -----------------------------------------------------------------------------------------------


@pytest.fixture
def refused():
    """``with refused(Kind, "part", ...)``: exactly this error, on one line, with these parts in it."""
    from contextlib import contextmanager

    @contextmanager
    def check(kind, *parts):
        with pytest.raises(kind) as caught:
            yield
        message = str(caught.value)
        assert type(caught.value) is kind
        assert "\n" not in message
        for part in parts:
            assert part in message

    return check
