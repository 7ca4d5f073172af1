"""Exits with trained heads as models of their own: layers of the model's family, or refused by name."""

from __future__ import annotations

from dataclasses import replace

import gguf
import head_oracle
import numpy as np
import pytest
from family_models import build
from gguf_writing import write_gguf
from random_heads import random_facts, random_head
from tiny_folder import write_model, write_tokenizer

from selfspec.drafters.trained import opened
from selfspec.errors import OptionError
from selfspec.export.drafts import export_draft
from selfspec.model import find_checkpoint
from selfspec.model.head_file import HeadFile, write_head
from selfspec.runtime.torch import TorchRuntime
from selfspec.types import LayerPlan, Rows

TOKENS = np.random.default_rng(1).integers(3, 100, 24).tolist()
K, STEPS = 2, 4
LIKE_LLAMA = ("llama", "qwen2", "phi3", "mistral")


def folder(tmp_path, family):
    """A random model as transformers writes it: biases in qwen2, fused matrices in phi3."""
    names = {
        "llama": "Llama",
        "qwen2": "Qwen2",
        "phi3": "Phi3",
        "mistral": "Mistral",
        "qwen3": "Qwen3",
        "olmo2": "Olmo2",
    }
    more = {"sliding_window": None} if family in ("phi3", "mistral") else {}
    made = build(family, names[family], {"vocab_size": 259, **more}).float()
    made.save_pretrained(tmp_path / "model")
    write_tokenizer(tmp_path / "model")
    return tmp_path / "model"


def head_for(path, model, form, **changes):
    """A random head that has the sizes of a model, and fewer channels; its file."""
    config = find_checkpoint(model).config
    sizes = {"num_heads": config.num_heads, "num_kv_heads": config.num_kv_heads, "head_dim": config.head_dim}
    sizes |= {"intermediate_size": 40} if form == "layer" else {}
    sizes = sizes if form in ("layer", "attention") else {}
    sizes |= {"eps": config.norm_eps, "rope_theta": config.rope.theta}
    facts = random_facts("exit_head", form, taps=(K,), **sizes | changes)
    write_head(path, random_head(facts))
    return f"early_exit:head={path}:gamma=3"


def runtime_of(model):
    found = find_checkpoint(model)
    return TorchRuntime.load(found.config, found.weight_files, "float64", "cpu")


def said(model):
    """Logits of each of the last tokens of a draft model, which reads the whole text."""
    runtime = runtime_of(model)
    rows, plan = Rows.of([0] * len(TOKENS), range(len(TOKENS))), LayerPlan.full(runtime.config.num_layers)
    hidden = runtime.embed(TOKENS, rows.positions)
    return runtime.logits(runtime.run(hidden, plan, rows, runtime.new_cache(1, len(TOKENS)))[0])[-STEPS:]


def wanted(model, head):
    """What the head says there, by its definition."""
    runtime = runtime_of(model)
    if "lm_head.weight" not in runtime.weights:
        runtime.weights["lm_head.weight"] = runtime.weights["model.embed_tokens.weight"]
    ends = range(len(TOKENS) - STEPS + 1, len(TOKENS) + 1)
    return np.stack([head_oracle.draft_logits(runtime, head, TOKENS[:end], 1)[0] for end in ends])


@pytest.mark.parametrize("form", ["layer", "attention", "none"])
@pytest.mark.parametrize("family", LIKE_LLAMA)
def test_a_draft_with_a_head_computes_what_the_head_does(tmp_path, family, form):
    """Guards names, fused matrices, biases, channels that are filled up, the silent MLP of "attention"."""
    model = folder(tmp_path, family)
    draft = head_for(tmp_path / "head.safetensors", model, form)
    made = export_draft(model, draft, "hf", tmp_path / "draft", tokens=0)
    assert made.layers == (K if form == "none" else K + 1)
    head = opened(tmp_path / "head.safetensors", "exit_head", find_checkpoint(model).config)
    np.testing.assert_allclose(said(tmp_path / "draft"), wanted(model, head), atol=2e-6)  # norms are in float32


@pytest.mark.parametrize("form", ["layer", "attention"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_gguf_draft_with_a_head(tmp_path, family, form):
    """Guards the order of rows there (Llama's are interleaved), and that matrices are in 8 bits."""
    model = tmp_path / "model.gguf"
    write_gguf(model, build(family, {"llama": "Llama", "qwen2": "Qwen2"}[family], {}).float())
    draft = head_for(tmp_path / "head.safetensors", model, form)
    export_draft(model, draft, "gguf", tmp_path / "draft.gguf", tokens=0)
    head = opened(tmp_path / "head.safetensors", "exit_head", find_checkpoint(model).config)
    kind = gguf.GGMLQuantizationType.Q8_0
    full = find_checkpoint(model).config.intermediate_size

    def stored(name, weight):
        if weight.ndim == 1:
            return weight
        columns = full - weight.shape[1] if name.endswith("down_proj.weight") else 0
        wide = np.pad(weight, ((0, 0), (0, columns)))
        if wide.shape[1] % 32:  # no whole blocks
            return weight.astype(np.float16).astype(np.float32)
        found = gguf.quants.dequantize(gguf.quants.quantize(wide, kind), kind)
        return found[:, : weight.shape[1]]

    rounded = HeadFile(head.facts, {name: stored(name, weight) for name, weight in head.weights.items()})
    np.testing.assert_allclose(said(tmp_path / "draft.gguf"), wanted(model, rounded), atol=2e-6)
    types = {t.name: t.tensor_type.name for t in gguf.GGUFReader(tmp_path / "draft.gguf").tensors}
    assert types[f"blk.{K}.attn_q.weight"] == "Q8_0"
    assert types[f"blk.{K - 1}.attn_q.weight"] == types[f"blk.{K}.attn_norm.weight"] == "F32"


def test_low_precision_is_that_of_the_model(tmp_path):
    """Guards the rounding to bfloat16, which the other engines load whole."""
    import torch

    made = build("llama", "Llama", {"vocab_size": 259}).to(torch.bfloat16)
    made.save_pretrained(tmp_path / "model")
    write_tokenizer(tmp_path / "model")
    draft = head_for(tmp_path / "head.safetensors", tmp_path / "model", "layer")
    export_draft(tmp_path / "model", draft, "hf", tmp_path / "draft", tokens=0)
    head = opened(tmp_path / "head.safetensors", "exit_head", find_checkpoint(tmp_path / "model").config)
    rounded = {name: torch.from_numpy(w).to(torch.bfloat16).float().numpy() for name, w in head.weights.items()}
    np.testing.assert_allclose(
        said(tmp_path / "draft"), wanted(tmp_path / "model", replace(head, weights=rounded)), atol=2e-6
    )


def test_alpha_is_that_of_what_is_written(tmp_path):
    """A draft vocabulary is no part of the export, so neither of its α: other engines draft among all tokens."""
    model = write_model(tmp_path / "model")
    config = find_checkpoint(model).config
    facts = random_facts("exit_head", "attention", taps=(3,), eps=config.norm_eps)
    for name, tokens in (("trimmed", [5]), ("whole", None)):
        write_head(tmp_path / name, random_head(facts, vocabulary=tokens, scale=0.01))
    draft = "early_exit:head={}:gamma=2"
    found = {
        name: export_draft(model, draft.format(tmp_path / name), "hf", tmp_path / f"{name} draft", tokens=6)
        for name in ("trimmed", "whole")
    }
    assert found["trimmed"].acceptance == found["whole"].acceptance
    assert found["whole"].acceptance.drafted > 0
    first, second = ((tmp_path / f"{name} draft" / "model.safetensors").read_bytes() for name in found)
    assert first == second


@pytest.mark.parametrize(
    ("family", "form", "changes", "says"),
    [
        ("llama", "linear", {}, "this head is linear"),
        ("llama", "layer", {"rope_theta": 77.0}, "differs from those of this llama model in rope"),
        ("llama", "layer", {"intermediate_size": 64}, "in intermediate_size"),
        ("llama", "attention", {"num_kv_heads": 4}, "in num_kv_heads"),
        ("llama", "none", {"eps": 1e-3}, "in norm_eps"),
        ("qwen3", "layer", {}, "in qk_norm"),
        ("olmo2", "attention", {}, "norm_after"),
    ],
)
def test_what_is_no_layer_of_the_model_is_refused(tmp_path, family, form, changes, says):
    model = folder(tmp_path, family)
    draft = head_for(tmp_path / "head.safetensors", model, form, **changes)
    with pytest.raises(OptionError, match=says):
        export_draft(model, draft, "hf", tmp_path / "draft", tokens=0)
    assert not (tmp_path / "draft").exists()


def test_heads_that_other_engines_cannot_have(tmp_path):
    model = write_model(tmp_path / "model")
    head = random_head(random_facts("exit_head", "layer", taps=(2,)), vocabulary=[3, 5], own_head=True)
    write_head(tmp_path / "head", head)
    for draft, says in (
        (f"early_exit:head={tmp_path / 'head'}", "an LM head of its own"),
        ("early_exit:learn=true:exit_layer=1", "learns while it drafts"),
        ("early_exit:exit_layer=adaptive", "no part of the model"),
    ):
        with pytest.raises(OptionError, match=says):
            export_draft(model, draft, "hf", tmp_path / "draft", tokens=0)
    assert not (tmp_path / "draft").exists()
