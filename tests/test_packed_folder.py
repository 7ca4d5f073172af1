"""A folder of packed weights is a model by itself: the same one, in the native core, or one line says why not."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_folder import write_model

import selfspec
from selfspec import loading
from selfspec.errors import CorruptModelError, OptionError, RuntimeMissingError, UnsupportedModelError
from selfspec.model import config_of, find_checkpoint
from selfspec.model.cache import MANIFEST, write_manifest
from selfspec.model.families import config_from_hf, family_of
from selfspec.model.packed_folder import packed_config, write_packed
from selfspec.runtime.packed import LAYOUT, find_packed, packed_sizes
from selfspec.runtime.parts import parts_by_name

PROMPT = "Cafe\u0301 12"  # which a class with a normalizer of its own composes


def pack_into(model, folder, bits=None):
    made = find_packed(model, bits)
    folder.mkdir()
    write_packed(made.folder, made.texts, folder, made.name)
    return folder


@pytest.fixture(scope="session")
def _boxed(tmp_path_factory):
    """A checkpoint whose tokenizer class has its own steps, with two templates, and its packed folder in 8 bits."""
    home = tmp_path_factory.mktemp("boxed")
    source = Path(write_model(home / "source"))
    settings = json.loads((source / "tokenizer_config.json").read_text())
    (source / "tokenizer_config.json").write_text(json.dumps(settings | {"tokenizer_class": "Qwen2Tokenizer"}))
    (source / "chat_templates").mkdir()
    (source / "chat_templates" / "short.jinja").write_text("{{ messages[0].content }}")
    (source / "chat_template.jinja").write_text(settings["chat_template"])
    return source, pack_into(source, home / "model", 8)


@pytest.fixture
def boxed(_boxed, tmp_path):
    """The checkpoint, and a private copy of its packed folder."""
    return _boxed[0], shutil.copytree(_boxed[1], tmp_path / "model")


def test_it_is_the_model_that_was_packed(boxed):
    """Guards the bundle: weights, tokenizer with its class and templates, name and fingerprint are those packed."""
    source, folder = boxed
    (want, got) = (selfspec.load(model, bits=8) for model in (source, folder))
    assert (got.name, got.fingerprint) == (want.name, want.fingerprint) == ("source", want.fingerprint)
    assert got.config == replace(want.config, dtype=got.config.dtype)
    texts = [e.generate(PROMPT, max_new_tokens=12, draft="ngram", ignore_eos=True) for e in (want, got)]
    assert texts[0].token_ids == texts[1].token_ids
    assert len(texts[0].token_ids) == 12
    tokenizers = [find_packed(source, 8).tokenizer, find_packed(folder).tokenizer]
    assert tokenizers[0].encode("e\u0301") == tokenizers[1].encode("\u00e9")  # negative control: composed
    assert tokenizers[0].fingerprint == tokenizers[1].fingerprint
    assert packed_sizes(folder) == packed_sizes(source, 8)
    again = pack_into(folder, folder.parent / "again")
    assert (again / MANIFEST).read_bytes() == (folder / MANIFEST).read_bytes()


def test_a_plan_keeps_its_bits(boxed):
    """Guards `selfspec plan` against changes that this folder cannot have: other bits, as target or as draft."""
    source, folder = boxed
    for model, others in ((source, True), (folder, False)):
        asked = {"context": "4k", "runtime": "cpu", "bits": 8}
        least = selfspec.plan(model, memory="1GB", **asked).rows[0].total
        found = selfspec.plan(model, memory=least - 1000, **asked)  # four bits would take less
        assert any("--bits" in remedy["flags"] for remedy in found.remedies) == others
        assert any(row.way.name == "quantized" for row in found.rows) == others
        assert found.rows[0].parts["weights"] == selfspec.load(model, bits=8).runtime.weight_bytes


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        (
            {"runtime": "torch"},
            UnsupportedModelError,
            "holds weights packed for the native core, which nothing else",
        ),
        ({"dtype": "float32"}, UnsupportedModelError, "use runtime cpu, or give the checkpoint"),
        ({"bits": 4}, OptionError, "bits is 4; .* is packed in int8 and cannot be packed anew: leave bits out"),
        ({"bits": 3}, OptionError, "bits is 3; it must be one of 4, 8, 16, 32"),
        ({"draft": "quantized", "draft_bits": 4}, OptionError, "bits is 4; .* is packed in int8"),
    ],
    ids=str,
)
def test_what_it_cannot_do_is_one_line(boxed, options, kind, words):
    """Guards against a silent second rounding and against tracebacks from torch."""
    with pytest.raises(kind, match=words) as caught:
        selfspec.load(boxed[1], **options).generate([1, 2], max_new_tokens=2)
    assert "\n" not in str(caught.value)


def edit_json(file, change):
    found = json.loads(file.read_text())
    change(found)
    file.write_text(json.dumps(found))


def flip(folder):
    data = bytearray((folder / "packed.bin").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "packed.bin").write_bytes(data)


def renew(folder, **about):
    """A sound manifest over what is there now."""
    write_manifest(folder, {"format": 1, "texts": "copied"} | about)


def relayout(folder):
    edit_json(folder / "packed.json", lambda head: head.update(layout=LAYOUT + 1))
    renew(folder)


def steal(folder):
    edit_json(folder / "packed.json", lambda head: head["weights"].popitem())
    renew(folder)


@pytest.mark.parametrize(
    ("damage", "kind", "words"),
    [
        (flip, CorruptModelError, "is damaged .packed.bin has a wrong checksum.; copy or pack it again"),
        (lambda f: (f / "packed.bin").unlink(), CorruptModelError, "packed.bin missing or unexpected"),
        (
            lambda f: (f / "chat_template.jinja").write_text("x"),
            CorruptModelError,
            "chat_template.jinja has 1 bytes",
        ),
        (
            lambda f: (f / "added_tokens.json").write_text("{}"),
            CorruptModelError,
            "added_tokens.json missing or un",
        ),
        (lambda f: (f / MANIFEST).unlink(), CorruptModelError, "no readable manifest; copy it again"),
        (lambda f: (f / "packed.json").write_text("["), CorruptModelError, "not valid JSON"),
        (
            relayout,
            UnsupportedModelError,
            f"packed by a newer selfspec .layout {LAYOUT + 1}; this one reads {LAYOUT}",
        ),
        (lambda f: renew(f, format=0), UnsupportedModelError, "packed by an older selfspec .format 0; .* bundle`"),
        (steal, CorruptModelError, "not those of this model .*; copy or pack it again"),
    ],
)
def test_damage_and_other_versions_are_one_line(boxed, damage, kind, words):
    """Guards copies to a hundred boxes: nothing of a damaged folder is run, and nothing is repaired in it."""
    damage(boxed[1])
    with pytest.raises(kind, match=words) as caught:
        selfspec.load(boxed[1])
    assert "\n" not in str(caught.value)


def test_without_the_core_it_says_so(boxed, monkeypatch):
    """Guards `auto`, which would go on to torch: that cannot read these weights."""
    monkeypatch.setattr(loading, "has_native", lambda: False)
    with pytest.raises(
        RuntimeMissingError, match=r"packed for the native core, which is not built .* from a wheel"
    ):
        selfspec.load(boxed[1])
    with pytest.raises(UnsupportedModelError, match="which nothing else reads"):
        find_checkpoint(boxed[1])


def test_a_gpu_does_not_draw_it_to_torch(boxed, monkeypatch):
    """Guards `auto` where torch has a GPU."""
    monkeypatch.setattr(loading, "has_gpu", lambda: True)
    assert selfspec.load(boxed[1]).runtime.name == "cpu"


def test_the_layout_of_the_weights_is_found_again(tmp_path):
    """Guards families that store their weights in several ways: a packed folder has no tensors to tell by."""
    sizes = {"n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 64, "vocab_size": 99}
    facts = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **sizes}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    config = config_from_hf(facts)
    for layout in range(len(family_of(config).layouts)):
        keys = [part.key for parts in parts_by_name(replace(config, layout=layout)).values() for part in parts]
        (tmp_path / "packed.json").write_text(json.dumps({"weights": dict.fromkeys(keys)}))
        assert packed_config(tmp_path) == config_of(tmp_path) == replace(config, layout=layout)
    assert layout > 0
