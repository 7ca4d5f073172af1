"""Tiny checkpoints, made on the spot; the embedded model, converted once per session."""

import shutil
from contextlib import contextmanager

import gguf
import numpy as np
import pytest
from gguf.quants import quantize
from tiny_models import SIZES, gguf_tensors, interleave, save_tokenizer, write_metadata

from selfspec.errors import ModelNotFoundError
from selfspec.model import EMBEDDED, find_checkpoint, find_embedded, install_command


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


@pytest.fixture
def write_gguf(tmp_path):
    """Write a tiny GGUF; returns its path and the HF-ordered float32 tensors by GGUF name."""

    def write(name="tiny.gguf", *, pre="smollm", architecture="llama", change=None, kind="Q8_0", **extra):
        tensors = gguf_tensors(np.random.default_rng(0))
        if change:
            change(tensors)
        writer = gguf.GGUFWriter(tmp_path / name, architecture)
        write_metadata(writer, pre, dict(extra))
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
