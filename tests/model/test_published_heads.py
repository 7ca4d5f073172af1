"""Published heads: what their authors' programs write is read, ours are written as theirs; damage is one line."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import head_oracle
import numpy as np
import pytest
import torch
from doubles import Host, run, tiny_core, tiny_runtime
from lossless_table import PROMPTS, head
from random_heads import random_facts, random_head
from safetensors.torch import save_file
from torch import nn

from selfspec import drafters
from selfspec.drafters.trained import opened
from selfspec.errors import OptionError, SelfspecError
from selfspec.export.heads import write_published
from selfspec.model.head_file import EMBEDDING, LM_HEAD, read_head
from selfspec.runtime.rotary import inverse_frequencies
from selfspec.types import Rows

V, D, LAYERS = 61, 32, 5
SIZES = {
    "model_type": "llama", "hidden_size": D, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 48, "num_hidden_layers": 1, "rms_norm_eps": 1e-5, "vocab_size": V, "rope_theta": 500.0,
}  # fmt: skip


class ResBlock(nn.Module):
    """As the authors of Medusa have it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(D, D)

    def forward(self, x):
        return x + nn.functional.silu(self.linear(x))


def medusa(heads=3, blocks=1):
    """Its heads with random weights, as they are stored."""
    torch.manual_seed(0)
    return nn.ModuleList(
        nn.Sequential(*(ResBlock() for _ in range(blocks)), nn.Linear(D, V, bias=False)) for _ in range(heads)
    )


def written(folder, settings, tensors, file):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings))
    if file.endswith("safetensors"):
        save_file(tensors, folder / file)
    else:
        torch.save(tensors, folder / file)
    return str(folder)


def drafts_of(kind, path, runtime, **options):
    """A drafter with this head, and the laws of its first draft."""
    return drafters.create(kind, runtime.config, {"head": path, "gamma": 3, **options}, Host(runtime, {}))


@pytest.mark.parametrize("file", ["medusa_lm_head.pt", "medusa_lm_head.safetensors"])
@pytest.mark.parametrize("blocks", [1, 2])
def test_medusa_as_its_authors_write_it(tmp_path, file, blocks):
    """Guards names, the order of blocks and heads, and bfloat16, against their module itself."""
    theirs = medusa(blocks=blocks).to(torch.bfloat16)
    told = {"medusa_num_heads": 2, "medusa_num_layers": blocks, "base_model_name_or_path": "lmsys/vicuna"}
    path = written(tmp_path / "m", told, theirs.state_dict(), file)
    found = opened(path, "medusa", tiny_runtime().config)
    assert (found.facts.drafts, found.facts.blocks, found.facts.target_name) == (3, blocks, "lmsys/vicuna")
    runtime, tokens = tiny_runtime(), PROMPTS[0]
    (states,) = head_oracle.target_states(runtime, tokens[:-1], (LAYERS,))
    weight = runtime.weights["model.norm.weight"].numpy()
    normed = torch.from_numpy(head_oracle.norm(states[-1], weight, runtime.config.norm_eps))
    with torch.no_grad():
        want = [part.double()(normed).numpy() for part in theirs]
    np.testing.assert_allclose(head_oracle.medusa_logits(runtime, found, tokens), want, atol=1e-9)
    plain = [text.tokens for text in run(runtime, PROMPTS, new_tokens=8)]
    assert [
        text.tokens for text in run(runtime, PROMPTS, drafts_of("medusa", path, runtime), new_tokens=8)
    ] == plain


def test_medusa_as_vllm_writes_it(tmp_path):
    """Guards its names, absent biases, and a token map that is not sorted."""
    tokens = torch.tensor([9, 3, 42, 5, 17])
    tensors = {f"blocks.{i}.layers.0.weight": torch.randn(D, D) for i in range(2)}
    tensors |= {f"lm_heads.{i}.weight": torch.randn(V, D) for i in range(2)} | {"token_map": tokens}
    path = written(tmp_path / "m", {"num_heads": 2}, tensors, "model.safetensors")
    found = opened(path, "medusa", tiny_runtime().config)
    assert found.vocabulary.tolist() == sorted(tokens.tolist())
    np.testing.assert_array_equal(found.weights[f"1.{LM_HEAD}"], tensors["lm_heads.1.weight"][found.vocabulary])
    assert not found.weights["0.0.linear.bias"].any()
    shared = {"num_heads": 2, "original_lm_head": True}
    path = written(
        tmp_path / "n", shared, {n: t for n, t in tensors.items() if n != "token_map"}, "model.safetensors"
    )
    assert not [n for n in opened(path, "medusa", tiny_runtime().config).weights if n.endswith(LM_HEAD)]


def eagle(vocabulary, layer="midlayer.", dtype=torch.bfloat16, **changes):
    """The tensors of a published EAGLE-3 head, and ours with the same numbers."""
    made = random_head(
        random_facts("eagle", rope_theta=500.0, taps=(1, 2, 4), **changes), vocabulary=vocabulary, own_head=True
    )
    tensors = {
        name.replace("midlayer.", layer): torch.from_numpy(weight).to(dtype)
        for name, weight in made.weights.items()
    }
    rounded = {name: tensors[name.replace("midlayer.", layer)].float().numpy() for name in made.weights}
    tensors["d2t"] = torch.tensor(vocabulary) - torch.arange(len(vocabulary))
    tensors["t2d"] = torch.isin(torch.arange(V), torch.tensor(vocabulary))
    return tensors, replace(made, weights=rounded)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors"])
def test_eagle_as_its_authors_write_it(tmp_path, file):
    """Guards the vocabulary (d2t are differences), the layers that are read, and bfloat16."""
    tensors, ours = eagle([2, 5, 9, 17, 42])
    told = {**SIZES, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 5}
    path = written(tmp_path / "e", told, tensors, file)
    found = opened(path, "eagle", tiny_runtime(num_layers=8).config)
    assert found.facts == replace(ours.facts, taps=(2, 4, 5), card={"published": True})
    assert found.vocabulary.tolist() == [2, 5, 9, 17, 42]
    assert found.weights.keys() == ours.weights.keys()
    for name, weight in ours.weights.items():
        np.testing.assert_array_equal(found.weights[name], weight)


@pytest.mark.parametrize("qk_norm", [False, True])
def test_eagle_as_speculators_writes_it(tmp_path, qk_norm):
    """Guards names, an embedding of its own, a norm before the residual, layers of Qwen 3, by an oracle."""
    tensors, ours = eagle([2, 5, 9, 17, 42], "layers.0.", torch.float32, qk_norm=qk_norm)
    embedding = torch.randn(V, D)
    told = {
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "draft_vocab_size": 5,
        "norm_before_residual": True, "eagle_aux_hidden_state_layer_ids": [1, 2, 4],
        "transformer_layer_config": SIZES, "speculators_config": {"verifier": {"name_or_path": "tiny"}},
    }  # fmt: skip
    path = written(tmp_path / "s", told, tensors | {EMBEDDING: embedding}, "model.safetensors")
    found = opened(path, "eagle", tiny_runtime().config)
    assert found.facts.norm_before_residual
    assert found.facts.target_name == "tiny"
    assert found.facts.taps == (1, 2, 4)
    tokens, rows = [5, 17, 3, 42], Rows.of([0] * 4, range(4))
    given = np.random.default_rng(0).normal(0, 1, (4, 3 * D))
    features = given @ ours.weights["fc.weight"].astype(np.float64).T
    normed = head_oracle.norm(features, ours.weights["midlayer.hidden_norm.weight"], 1e-5)
    token = head_oracle.norm(
        embedding[tokens].double().numpy(), ours.weights["midlayer.input_layernorm.weight"], 1e-5
    )
    h = normed + head_oracle.attention(np.concatenate([token, normed], axis=1), ours)
    want = h + head_oracle.mlp(h, ours)
    exact = tiny_runtime().attach(found)
    states = exact.run(exact.features(torch.from_numpy(given)), tokens, rows, exact.new_cache(1, 8))
    np.testing.assert_allclose(states.numpy(), want, atol=1e-5)  # norms are in float32
    core = tiny_core("fp32").attach(found, 32)
    states = core.run(core.features(given), tokens, rows, core.new_cache(1, 8))
    np.testing.assert_allclose(states, want, atol=1e-3)
    runtime = tiny_runtime()
    plain = [text.tokens for text in run(runtime, PROMPTS, new_tokens=8)]
    drafter = drafts_of("eagle", path, runtime)
    assert [text.tokens for text in run(runtime, PROMPTS, drafter, new_tokens=8)] == plain


def test_rotary_embeddings_of_published_heads(tmp_path):
    """Guards Llama 3.1's scaling, in either spelling: a head that turns otherwise is wrong at long distances."""
    tensors, _ = eagle([2, 5])
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64}  # fmt: skip
    for n, told in enumerate(({"rope_scaling": scaling}, {"rope_parameters": {**scaling, "rope_theta": 500.0}})):
        path = written(tmp_path / str(n), {**SIZES, **told}, tensors, "model.safetensors")
        attached = tiny_runtime(num_layers=8).attach(opened(path, "eagle", tiny_runtime(num_layers=8).config))
        plain = inverse_frequencies(replace(attached.config.rope, kind="default"), 8)
        assert attached.config.rope.original_context == 64
        ratio = plain / inverse_frequencies(attached.config.rope, 8)
        assert ratio[-1] == pytest.approx(8.0)
        assert ratio[0] == 1.0


@pytest.mark.parametrize("layout", ["eagle3", "speculators", "medusa"])
def test_what_is_exported_is_read_again(layout, tmp_path):
    """Guards the round trip: the same drafts from the published layout, vocabulary and card aside."""
    kind = "medusa" if layout == "medusa" else "eagle"
    runtime = tiny_runtime()
    ours = (
        read_head(head(kind))
        if kind == "eagle"
        else random_head(random_facts("medusa", "blocks"), vocabulary=[3, 9])
    )
    write_published(ours, runtime, layout, tmp_path, 4, "tiny")
    found = opened(str(tmp_path), kind, runtime.config)
    assert replace(found.facts, card={}, target_name="") == replace(ours.facts, card={}, target_name="", target="")
    for name, weight in ours.weights.items():
        np.testing.assert_array_equal(found.weights[name], weight)
    if layout == "medusa":  # all tokens: the model's own head
        assert found.vocabulary is None
        np.testing.assert_array_equal(found.weights[f"2.{LM_HEAD}"], runtime.weight("head"))
        state = torch.load(tmp_path / "medusa_lm_head.pt", weights_only=True)
        medusa(3, 2).load_state_dict(state)  # names and shapes are theirs
    else:
        np.testing.assert_array_equal(found.vocabulary, ours.vocabulary)
        said = {layout: [] for layout in ("ours", layout)}
        for name, path in (("ours", head(kind)), (layout, str(tmp_path))):
            drafter = drafts_of(kind, path, runtime)
            note = lambda *given, name=name: said[name].extend(c.accepted for c in given[2].commits)  # noqa: E731
            run(runtime, PROMPTS, drafter, new_tokens=12, each_round=note)
        assert said["ours"] == said[layout]
        for target in (runtime, tiny_core("bf16")):  # a copy of the embedding is not held twice
            assert target.attach(found).weight_bytes == target.attach(ours).weight_bytes
        assert max(said["ours"]) > 1


class Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit('code of a file ran')",))


def test_damage_and_what_is_not_known(tmp_path):
    tensors, _ = eagle([2, 5])
    config = tiny_runtime(num_layers=8).config
    places = iter(range(100))

    def refusal(settings, given, file="model.safetensors", kind="eagle"):
        path = written(tmp_path / str(next(places)), settings, given, file)
        with pytest.raises(SelfspecError) as caught:
            opened(path, kind, config)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "norm_before_fc" in refusal({**SIZES, "norm_before_fc": True}, tensors)
    assert "attention_bias" in refusal({**SIZES, "attention_bias": True}, tensors)
    assert "several layers" in refusal({**SIZES, "num_hidden_layers": 2}, tensors)
    assert "a window" in refusal({**SIZES, "layer_types": ["sliding_attention"]}, tensors)
    assert "'mtp'" in refusal({"speculators_model_type": "mtp", "transformer_layer_config": SIZES}, tensors)
    assert "hidden_size" in refusal({}, tensors)
    assert "lacks fc.weight" not in refusal({}, {"x": torch.zeros(1)})
    assert "no trained head" in refusal({}, {"x": torch.zeros(1)})
    assert "lacks norm.weight" in refusal(SIZES, {n: t for n, t in tensors.items() if n != "norm.weight"})
    assert "self_attn.k_norm" in refusal(SIZES, tensors | {"midlayer.self_attn.q_norm.weight": torch.ones(8)})
    theirs = medusa().state_dict()
    assert "use it with --draft medusa" in refusal({}, theirs)
    assert "lacks 1.0.linear.weight" in refusal(
        {}, {n: t for n, t in theirs.items() if n != "1.0.linear.weight"}, kind="medusa"
    )
    assert "which no Medusa head has" in refusal({}, theirs | {"other": torch.ones(2)}, kind="medusa")
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "medusa_lm_head.pt").write_bytes(pickle.dumps(Evil()))
    (tmp_path / "evil" / "config.json").write_text("{}")
    with pytest.raises(SelfspecError, match="cannot be read as torch's tensors"):
        opened(str(tmp_path / "evil"), "medusa", config)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    with pytest.raises(SelfspecError, match="no weights"):
        opened(str(tmp_path / "empty"), "medusa", config)
    with pytest.raises(SelfspecError, match="no trained head"):
        opened(str(tmp_path / "nowhere"), "medusa", config)
    with pytest.raises(OptionError, match="is the layout of medusa heads"):
        write_published(read_head(head("eagle")), tiny_runtime(), "medusa", tmp_path, 4, "tiny")
