import json
import math
import struct

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from selfspec.errors import CorruptModelError, ModelNotFoundError, UnsupportedModelError
from selfspec.model import config_of, find_checkpoint, weight_shapes
from selfspec.model.safetensors_file import read_header, write_float32

Q = "model.layers.1.self_attn.q_proj.weight"


def rewrite(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def rewrite_header(path, change):
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    change(header)
    new = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(new)) + new + raw[8 + length :])


def edit_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("kind", ["plain", "sharded"])
def test_a_good_folder(kind, request):
    """One file or several: every weight has a file that really has it."""
    folder = request.getfixturevalue(kind)
    checkpoint = find_checkpoint(folder)
    assert checkpoint.name == kind
    assert checkpoint.config.num_kv_heads == 2
    assert checkpoint.config.eos_token_ids == checkpoint.tokenizer.eos_token_ids == (2,)
    assert set(checkpoint.weight_files) == set(weight_shapes(checkpoint.config))
    assert (len(set(checkpoint.weight_files.values())) > 1) == (kind == "sharded")
    for name, file in checkpoint.weight_files.items():
        with safe_open(file, "np") as weights:
            assert weights.get_tensor(name).shape == weight_shapes(checkpoint.config)[name]


def test_stored_precision(save_model, tmp_path):
    """config.json may say float32 of bfloat16 weights: the header is the truth."""
    import torch
    from transformers import AutoModelForCausalLM

    folder = save_model(tmp_path)
    AutoModelForCausalLM.from_pretrained(folder).to(torch.bfloat16).save_pretrained(folder)
    edit_json(folder / "config.json", dtype="float32")
    assert find_checkpoint(folder).config.dtype == "bfloat16"


def test_fingerprint(plain, sharded):
    """A fine-tuned sibling has the same header and size; tuned settings of one were used for the other."""
    first = find_checkpoint(plain).fingerprint
    assert find_checkpoint(plain).fingerprint == first
    rewrite(plain, lambda tensors: tensors.update({name: array + 1 for name, array in tensors.items()}))
    assert find_checkpoint(plain).fingerprint != first
    assert find_checkpoint(sharded).fingerprint != first


def test_tied_head_and_old_buffers(save_model, tmp_path):
    """A redundant copy of a tied head and derived buffers are fine, and are not weights."""
    folder = save_model(tmp_path, config={"tie_word_embeddings": True})

    def add(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)

    rewrite(folder, add)
    assert "lm_head.weight" not in find_checkpoint(folder).weight_files


@pytest.mark.parametrize(
    ("change", "kind", "parts"),
    [
        (lambda tensors: tensors.pop(Q), CorruptModelError, (Q, "lack")),
        (
            lambda tensors: tensors.update({Q: tensors[Q][:-1].copy()}),
            CorruptModelError,
            (Q, "(31, 32)", "(32, 32)"),
        ),
        (lambda tensors: tensors.update(odd=np.ones(1)), UnsupportedModelError, ("odd",)),
        (lambda tensors: tensors.update({Q: tensors[Q].astype(np.int8)}), UnsupportedModelError, (Q, "I8")),
    ],
)
def test_wrong_tensors(plain, change, kind, parts, refused):
    """A missing or misshapen weight was found after minutes of loading, an unknown one never."""
    rewrite(plain, change)
    with refused(kind, *parts):
        find_checkpoint(plain)


def offsets(by):
    return lambda header: header[Q].update(data_offsets=[x + by for x in header[Q]["data_offsets"]])


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes() + b"x"),
        lambda path: path.write_bytes(path.read_bytes()[:4]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"\xff" * 100),
        lambda path: path.write_bytes(path.read_bytes()[:8] + b"garbage" + path.read_bytes()[15:]),
        lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
        lambda path: rewrite_header(path, offsets(4)),
        lambda path: rewrite_header(path, lambda header: header[Q].update(shape=[31, 32])),
        lambda path: rewrite_header(path, lambda header: header[Q].update(shape=[-32, -32])),
        lambda path: rewrite_header(path, lambda header: header[Q].update(shape=[math.inf, 32])),
        lambda path: rewrite_header(path, lambda header: header[Q].update(shape=[32.5, 32])),
        lambda path: rewrite_header(path, lambda header: header[Q].pop("shape")),
        lambda path: rewrite_header(path, lambda header: header.update({Q: 3})),
        lambda path: rewrite_header(path, lambda header: header.update({Q: {**header[Q], "dtype": ["F32"]}})),
    ],
)
def test_damaged_weights(plain, damage, refused):
    """A download that broke off was read as far as it went."""
    damage(plain / "model.safetensors")
    with refused(CorruptModelError, "model.safetensors", "download it again"):
        find_checkpoint(plain)


@pytest.mark.parametrize("file", ["../plain/model.safetensors", "/etc/passwd", "a\\b", "..", 3, None])
def test_index_points_outside(sharded, file, refused):
    """An index of a stranger could name any file of the machine."""
    index = sharded / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    values["weight_map"][Q] = file
    index.write_text(json.dumps(values))
    with refused(CorruptModelError, Q, "same folder"):
        find_checkpoint(sharded)


def test_an_index_of_names_that_no_disk_takes(sharded, refused):
    """A fuzzed index had a name of thousands of letters, which `Path.is_file` does not answer."""
    index = sharded / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    values["weight_map"][Q] = "a" * 5000
    index.write_text(json.dumps(values))
    with refused(CorruptModelError, "aaa", "download the missing files"):
        find_checkpoint(sharded)


def test_damaged_index(sharded, refused):
    """A missing shard, a wrong shard, and no weight map are three different mistakes."""
    index = sharded / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    shards = sorted(set(values["weight_map"].values()))
    wrong = {**values["weight_map"], Q: next(file for file in shards if file != values["weight_map"][Q])}
    index.write_text(json.dumps({"weight_map": wrong}))
    with refused(CorruptModelError, Q, "do not have it"):
        find_checkpoint(sharded)
    index.write_text(json.dumps(values))
    (sharded / shards[0]).unlink()
    with refused(CorruptModelError, shards[0], "download the missing files"):
        find_checkpoint(sharded)
    index.write_text("{}")
    with refused(CorruptModelError, "weight_map"):
        find_checkpoint(sharded)


def test_pickles_are_refused(plain, refused):
    """A .bin file runs code of its author when it is read."""
    (plain / "model.safetensors").rename(plain / "pytorch_model.bin")
    with refused(UnsupportedModelError, "pytorch_model.bin", "save_pretrained"):
        find_checkpoint(plain)
    (plain / "pytorch_model.bin").unlink()
    with refused(ModelNotFoundError, "model.safetensors"):
        find_checkpoint(plain)
    (plain / "x.gguf").write_bytes(b"")
    with refused(ModelNotFoundError, "x.gguf", "give one of those files"):
        find_checkpoint(plain)


@pytest.mark.parametrize(
    ("file", "changes", "parts"),
    [
        ("config.json", {"eos_token_id": 5000}, ("5000",)),
        ("generation_config.json", {"eos_token_id": [2, 5000]}, ("5000",)),
        ("config.json", {"vocab_size": 200}, ("266", "200", "different models")),
    ],
)
def test_files_that_do_not_belong_together(plain, file, changes, parts, refused):
    """The tokenizer of another model crashed the look-up of embeddings."""
    edit_json(plain / file, **changes)
    if changes.get("vocab_size"):
        rewrite(plain, lambda tensors: tensors.update({name: tensors[name][:200].copy() for name in VOCABULARY}))
    with refused(CorruptModelError, *parts):
        find_checkpoint(plain)


VOCABULARY = ("model.embed_tokens.weight", "lm_head.weight")


def test_config_of_a_folder_without_weights(plain, refused):
    """``selfspec info`` needs no weights."""
    expected = find_checkpoint(plain).config
    (plain / "model.safetensors").unlink()
    assert config_of(plain) == config_of(str(plain)) == expected
    (plain / "config.json").write_text("{")
    with refused(CorruptModelError, "config.json", "JSON"):
        config_of(plain)
    (plain / "config.json").unlink()
    with refused(ModelNotFoundError, "config.json"):
        config_of(plain)


def test_written_files_are_read_by_others(tmp_path):
    """Our writer keeps one tensor in memory; the library must read what it writes."""
    tensors = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.ones((1,), np.float32)}
    path = tmp_path / "model.safetensors"
    write_float32(path, {name: array.shape for name, array in tensors.items()}, iter(tensors.items()))
    loaded = load_file(path)
    assert {name: array.tolist() for name, array in loaded.items()} == {
        name: array.tolist() for name, array in tensors.items()
    }
    assert read_header(path).tensors["b"].shape == (2, 3)
    assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0
