"""Packing for the native core: exact where it can be, once, mapped, and repaired when damaged."""

from __future__ import annotations

import numpy as np
import pytest

from selfspec.errors import OptionError, UnsupportedModelError
from selfspec.model import find_checkpoint
from selfspec.model.cache import cache_folder
from selfspec.model.stored import from_safetensors
from selfspec.runtime.packed import find_packed
from selfspec.runtime.packing import Packed


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    """A cache that no other test has filled."""
    monkeypatch.setenv("SELFSPEC_CACHE", str(tmp_path / "cache"))


def values(model):
    """Weight name -> the float32 values that the core would use."""
    return {name: w.unpack() if isinstance(w, Packed) else w for name, w in model.weights.items()}


def dense(checkpoint):
    return {name: stored.dense() for name, stored in from_safetensors(checkpoint.weight_files)}


def kinds(model):
    return {w.kind for w in model.weights.values() if isinstance(w, Packed)}


@pytest.mark.parametrize(
    ("blocks", "kind"), [("Q4_0", "int4"), ("Q4_1", "int4"), ("Q5_0", "int8"), ("Q8_0", "int8")]
)
def test_blocks_that_the_core_has_are_taken_over_exactly(write_gguf, blocks, kind):
    """Guards the checkpoint as shipped: every value, in half-split rotary order, not rounded a second time."""
    path, _ = write_gguf(kind=blocks)
    packed, want = find_packed(path), dense(find_checkpoint(path))
    assert kinds(packed) == {kind}
    assert packed.rounding == 0.0
    got = values(packed)
    assert got.keys() == want.keys()
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)


def test_other_blocks_become_int8_and_the_error_is_stated(write_gguf):
    """Guards honesty: a second rounding is reported."""
    path, _ = write_gguf(kind="Q5_1")
    packed, want = find_packed(path), dense(find_checkpoint(path))
    assert kinds(packed) == {"int8"}
    worst = max(np.linalg.norm(values(packed)[n] - w) / np.linalg.norm(w) for n, w in want.items())
    assert 0 < packed.rounding < 0.01
    assert packed.rounding == pytest.approx(worst, rel=0.1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_folder_runs_in_the_precision_it_is_stored_in(save_model, tmp_path, dtype):
    """Guards the default of ordinary checkpoints."""
    folder = save_model(tmp_path / "model", config={"dtype": dtype})
    checkpoint = find_checkpoint(folder)
    packed, want = find_packed(folder), dense(checkpoint)
    assert packed.rounding == 0.0
    for name, array in values(packed).items():
        np.testing.assert_array_equal(array, want[name])


@pytest.mark.parametrize(("bits", "low", "high"), [(32, 0, 0), (16, 1e-4, 4e-3), (8, 1e-3, 1e-2), (4, 2e-2, 0.15)])
def test_bits_round_as_much_as_they_must(plain, bits, low, high):
    """Guards --bits: the right kind, an error of its size, and one entry each."""
    packed, want = find_packed(plain, bits), dense(find_checkpoint(plain))
    assert kinds(packed) == {{32: "fp32", 16: "bf16", 8: "int8", 4: "int4"}[bits]}
    assert low <= packed.rounding <= high
    for name, array in values(packed).items():
        assert np.linalg.norm(array - want[name]) <= high * np.linalg.norm(want[name])


def test_packing_happens_once_and_damage_is_repaired(plain, own_cache):
    """Guards the cache: a second start maps the file; a flipped byte is found and told."""
    said: list[str] = []
    first = find_packed(plain, 8, notify=said.append)
    assert len(said) == 1
    before = values(first)
    again = find_packed(plain, 8, notify=said.append)
    assert len(said) == 1
    assert isinstance(again.weights["model.embed_tokens.weight"].data.base.base, np.memmap)
    (file,) = cache_folder().glob("*/packed.bin")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    repaired = find_packed(plain, 8, notify=said.append)
    assert "damaged" in said[-1]
    for name, array in values(repaired).items():
        np.testing.assert_array_equal(array, before[name])


def test_other_weights_or_bits_are_other_entries(save_model, tmp_path):
    """Guards the key: a fine-tuned sibling never gets another model's weights."""
    one = save_model(tmp_path / "one")
    two = save_model(tmp_path / "two", config={"initializer_range": 0.5})
    found = {find_packed(folder, bits).fingerprint for folder in (one, two) for bits in (None, 4, 8)}
    assert len(found) == 6


def test_progress_counts_every_weight(plain, own_cache):
    """Guards the bar: it ends at the number of weights."""
    seen: list[tuple[int, int]] = []
    find_packed(plain, 16, progress=lambda *now: seen.append(now))
    assert seen[-1][0] == seen[-1][1] == find_checkpoint(plain).config.parameters
    assert seen == sorted(seen)


def test_wrong_bits_are_one_line(plain, refused):
    """Guards the message."""
    with refused(OptionError, "bits is 5", "4, 8, 16, 32"):
        find_packed(plain, 5)


def test_a_type_that_is_not_read_is_refused(write_gguf, refused):
    """Guards a block type without a reader: named, and nothing is left in the cache."""
    path, _ = write_gguf(kind="MXFP4")
    with refused(UnsupportedModelError, "MXFP4", "Q4_K"):
        find_packed(path)
    assert not list(cache_folder().glob("*.tmp-*"))


def test_a_model_that_the_core_cannot_run_is_not_packed(write_gguf, refused):
    """Guards minutes of packing in vain: the check comes before the first weight."""
    path, _ = write_gguf("part.gguf", architecture="stablelm")
    with refused(UnsupportedModelError):
        find_packed(path)
