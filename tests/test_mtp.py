"""Multi-token modules: as the real classes of transformers compute them, from the files that they leave out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from doubles import Host, run, tiny_core, tiny_hybrid, tiny_runtime
from family_models import CASES, build, wide
from random_heads import random_module
from safetensors.torch import save_file
from tiny_folder import write_tokenizer
from torch import nn
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe
from transformers.models.qwen3_next import modeling_qwen3_next

import selfspec
from selfspec import drafters
from selfspec.errors import CorruptModelError, OptionError
from selfspec.runtime.torch import TorchRuntime

PARTS = {
    "qwen3_next": (modeling_qwen3_next, "Qwen3Next"),
    "qwen3_5_text": (modeling_qwen3_5, "Qwen3_5"),
    "qwen3_5_moe_text": (modeling_qwen3_5_moe, "Qwen3_5Moe"),
}
PROMPTS = [[5, 17, 3, 3, 42, 5, 17], [1, 8], [9, 9, 9, 9, 2]]


class Theirs(nn.Module):
    """The module of real classes: their layer, their norms, in the order that the models' makers give."""

    def __init__(self, case, model):
        super().__init__()
        module, name = PARTS[case]
        config, norm = model.config, getattr(module, f"{name}RMSNorm")
        d = config.hidden_size
        self.fc = nn.Linear(2 * d, d, bias=False)
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = (
            norm(d, eps=config.rms_norm_eps) for _ in range(3)
        )
        place = config.layer_types.index("full_attention")
        self.layers = nn.ModuleList([getattr(module, f"{name}DecoderLayer")(config, place)])
        self.target = [model]  # in a list: no part of it

    def forward(self, embedded, states):
        both = (self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(states))
        x, rows = self.fc(torch.cat(both, -1))[None], len(states)
        turns = self.target[0].model.rotary_emb(x, torch.arange(rows)[None])
        mask = torch.full((rows, rows), -torch.inf, dtype=x.dtype).triu(1)[None, None]
        out = self.layers[0](x, position_embeddings=turns, attention_mask=mask)
        return self.norm((out[0] if isinstance(out, tuple) else out)[0])


def theirs_of(case, model):
    torch.manual_seed(3)
    made = Theirs(case, model).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0.0, 0.3)
    for part in made.modules():
        if hasattr(part, "_experts_implementation"):
            part._experts_implementation = "eager"
    return made


@torch.no_grad()
def draft_of(theirs, tokens, count):
    """Greedy drafts by definition: everything anew for every token."""
    model = theirs.target[0]
    states = model.model(torch.tensor([tokens[:-1]]), use_cache=False).last_hidden_state[0]
    drafted = []
    for _ in range(count):
        out = theirs(model.get_input_embeddings()(torch.tensor([*tokens[1:], *drafted])), states)
        drafted.append(int(model.lm_head(out[-1]).argmax()))
        states = torch.cat((states, out[-1:]))
    return drafted


@pytest.mark.parametrize("case", PARTS)
def test_drafts_are_those_of_the_real_classes(case, monkeypatch):
    """Guards the order of halves, norms, gates, positions, what goes on, and experts: in float64, ragged texts."""
    model = build(case, *CASES[case])
    theirs = theirs_of(case, model)
    runtime = TorchRuntime.of(model)
    runtime.module = lambda: {f"mtp.{name}": tensor for name, tensor in theirs.state_dict().items()}
    drafter = drafters.create("mtp", runtime.config, {"gamma": 3}, Host(runtime, {}))
    made, propose = [], drafter.propose

    def proposing(context, texts, gammas):
        found = propose(context, texts, gammas)
        made.extend((list(text.tokens), draft.tokens) for text, draft in zip(texts, found, strict=True))
        return found

    monkeypatch.setattr(drafter, "propose", proposing)
    prompts = [[token % runtime.config.vocab_size for token in prompt] for prompt in PROMPTS]
    texts = run(runtime, prompts, drafter, new_tokens=8)
    assert [text.tokens for text in texts] == [text.tokens for text in run(runtime, prompts, new_tokens=8)]
    made = [(tokens, drafted) for tokens, drafted in made if drafted]
    assert len(made) > 15
    with wide():
        for tokens, drafted in made:
            assert list(drafted) == draft_of(theirs, tokens, len(drafted))
    assert drafter.extra_bytes.weights > 0
    assert drafter.extra_bytes.kv > 0
    assert 0.0 < drafter.step_share < 2.0


def test_it_is_read_from_the_files_of_a_checkpoint(tmp_path):
    """Guards what transformers drops: beside the weights, in a file of its own; and the plain text with it."""
    case = "qwen3_5_text"
    model = build(case, CASES[case][0], {**CASES[case][1], "vocab_size": 259})
    theirs = theirs_of(case, model)
    folder = tmp_path / "model"
    model.float().save_pretrained(folder)
    write_tokenizer(folder)
    weights = {f"mtp.{name}": tensor.float() for name, tensor in theirs.state_dict().items()}
    with pytest.raises(OptionError, match="no multi-token module"):
        selfspec.load(folder, runtime="torch", draft="mtp").generate("hello", max_new_tokens=6)
    save_file(weights, folder / "mtp.safetensors", metadata={"format": "pt"})
    own = dict.fromkeys(names_of(folder / "model.safetensors"), "model.safetensors")
    index = {"weight_map": own | dict.fromkeys(weights, "mtp.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    index["weight_map"] = {n: f.replace("model.s", "model-1.s") for n, f in index["weight_map"].items()}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    engine = selfspec.load(folder, runtime="torch", max_new_tokens=12)
    found = engine.generate("hello", draft="mtp", gamma=3)
    assert found.text == engine.generate("hello", draft="plain").text
    assert found.stats.drafted > 0
    same = engine.runtime.module()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in same.items())


def names_of(file: Path):
    from safetensors import safe_open

    with safe_open(file, framework="numpy") as reader:
        return list(reader.keys())


def test_what_has_none_or_a_damaged_one_says_so():
    for runtime, said in (
        (tiny_core("fp32"), "runs no multi-token modules"),
        (tiny_runtime(), "no multi-token module"),
    ):
        with pytest.raises(OptionError, match=said):
            drafters.create("mtp", runtime.config, {}, Host(runtime, {}))
    runtime = tiny_hybrid("delta")
    module = random_module(runtime)
    for name in ("mtp.fc.weight", "mtp.layers.0.self_attn.q_norm.weight"):
        runtime.module = lambda name=name: {n: w for n, w in module.items() if n != name}
        with pytest.raises(CorruptModelError, match=f"lacks {name}"):
            drafters.create("mtp", runtime.config, {}, Host(runtime, {}))
    runtime.module = lambda: {**module, "mtp.norm.weight": torch.ones(3)}
    with pytest.raises(CorruptModelError, match=r"mtp.norm.weight, or has it in another shape"):
        drafters.create("mtp", runtime.config, {}, Host(runtime, {}))
    with pytest.raises(OptionError, match="leave siblings at 0"):
        drafters.create("mtp", runtime.config, {"siblings": 1})
    assert np.isfinite(module["mtp.fc.weight"].numpy()).all()
