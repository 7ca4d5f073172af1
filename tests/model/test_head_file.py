"""Files of trained heads: what is written is read, int8 is the core's own, and damage is one clear line."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from random_heads import random_facts, random_head
from safetensors.numpy import load_file, save_file

from selfspec.errors import CorruptModelError, ModelNotFoundError, OptionError
from selfspec.model.head_file import HeadFacts, HeadFile, read_head, rounded, write_head
from selfspec.runtime.packing import pack

KINDS = [
    ("exit_head", "none"),
    ("exit_head", "linear"),
    ("exit_head", "attention"),
    ("exit_head", "layer"),
    ("eagle", "layer"),
]


@pytest.mark.parametrize(("kind", "form"), KINDS)
def test_what_is_written_is_read(kind, form, tmp_path):
    facts = random_facts(kind, form, target="abc", target_name="tiny", card={"steps": 3, "alpha": [0.5, 0.4]})
    head = random_head(facts, vocabulary=[0, 5, 9], own_head=form == "layer")
    path = tmp_path / "head.safetensors"
    write_head(path, head)
    found = read_head(path)
    assert found.facts == facts
    assert found.weights.keys() == head.weights.keys()
    for name, weight in head.weights.items():
        np.testing.assert_array_equal(found.weights[name], weight)
    np.testing.assert_array_equal(found.vocabulary, head.vocabulary)
    assert found.vocabulary.dtype == np.int64
    assert [p.name for p in tmp_path.iterdir()] == [path.name]  # nothing is left beside it


def test_int8_is_what_the_core_makes_of_it(tmp_path):
    """Guards a second rounding: what comes from an int8 file packs to the very same levels and scales."""
    random = np.random.default_rng(1)
    head = random_head(random_facts("exit_head", "linear", hidden_size=40))
    weight = random.normal(0, 1, (40, 40)).astype(np.float32) * 10.0 ** random.uniform(-9, 1, (40, 1))
    weight[0] = 0
    head = replace(head, weights={**head.weights, "transform.weight": weight.astype(np.float32)})
    path = tmp_path / "head.safetensors"
    write_head(path, head, int8=True)
    read = read_head(path).weights["transform.weight"]
    np.testing.assert_array_equal(pack(read, "int8").unpack(), read)
    # for numbers of usual size the first rounding is the core's already
    usual = random.normal(0, 0.1, (48, 64)).astype(np.float32)
    levels, scales = rounded(usual)
    np.testing.assert_array_equal(
        np.repeat(scales.astype(np.float32), 32, 1) * levels, pack(usual, "int8").unpack()
    )
    assert path.stat().st_size < 40 * 40 * 2 + 1500


def test_facts_and_weights_that_contradict_each_other_are_refused():
    for changes in (
        {"kind": "medusa"}, {"form": "linear"}, {"taps": (1, 2)}, {"taps": (3, 2, 1)}, {"taps": (0, 1, 2)},
        {"num_kv_heads": 3}, {"head_dim": 7}, {"intermediate_size": 0}, {"hidden_size": 0},
    ):  # fmt: skip
        with pytest.raises(OptionError):
            random_facts(**changes)
    head = random_head(random_facts(), vocabulary=[1, 2], own_head=True)
    for vocabulary in ([2, 1], [1, 1], [-1, 2], [], [[1, 2]], [1, 2, 3]):
        with pytest.raises(OptionError):
            HeadFile(head.facts, head.weights, np.asarray(vocabulary))
    for weights in (
        {**head.weights, "extra": np.zeros(3, np.float32)},
        {name: w for name, w in head.weights.items() if name != "fc.weight"},
        {**head.weights, "fc.weight": np.zeros((3, 3), np.float32)},
        {**head.weights, "norm.weight": np.full(32, np.nan, np.float32)},
    ):
        with pytest.raises(OptionError, match="a head"):
            HeadFile(head.facts, weights, head.vocabulary)


def _about(path):
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as reader:
        return json.loads(reader.metadata()["selfspec.head"])


def test_damage_is_one_clear_line(tmp_path):
    """Guards whoever downloads a head: no traceback, whatever the file says."""
    path, bad = tmp_path / "head.safetensors", tmp_path / "bad.safetensors"
    write_head(path, random_head(random_facts("exit_head", "layer"), vocabulary=[3, 4]), int8=True)
    tensors, about = load_file(path), _about(path)

    def write(values=about, changed=tensors):
        text = values if isinstance(values, str) else json.dumps(values)
        save_file(changed, bad, metadata={"selfspec.head": text})

    def refused():
        with pytest.raises(CorruptModelError) as caught:
            read_head(bad)
        assert "\n" not in str(caught.value)
        assert "download" not in str(caught.value)  # a checkpoint's remedy

    for values in ("{", "[]", {**about, "format": 2}, {**about, "taps": []}, {**about, "num_heads": "4"},
                   {**about, "eps": 0}, {**about, "mood": 1},
                   {**about, "hidden_size": 33}, {**about, "kind": "eagle"}):  # fmt: skip
        write(values)
        refused()
    name = "layer.mlp.up_proj.weight"
    for changed in ({"other.scale": tensors[name + ".scale"]}, {name: tensors[name][:4]},
                    {name + ".scale": tensors[name + ".scale"].astype(np.float32)},
                    {"vocabulary": np.asarray([4, 3], np.int32)}):  # fmt: skip
        write(changed=tensors | changed)
        refused()
    save_file(tensors, bad)
    refused()
    data = path.read_bytes()
    for cut in (0, 7, len(data) // 2, len(data) - 1):
        bad.write_bytes(data[:cut])
        refused()
    with pytest.raises(ModelNotFoundError):
        read_head(tmp_path / "none")


def test_nothing_is_written_by_halves(tmp_path, monkeypatch):
    """Guards an old head against a crash while its successor is written."""
    path = tmp_path / "head.safetensors"
    head = random_head(random_facts("exit_head", "linear"))
    write_head(path, head)
    before = path.read_bytes()
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_head(path, replace(head, facts=replace(head.facts, card={"steps": 9})))
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1
    assert HeadFacts("exit_head", "linear", (1,), 8).prefix == "layer."
