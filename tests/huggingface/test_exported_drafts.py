"""A self-draft as a model of its own: in our runtime, in transformers, and from the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hf_model import PROMPTS
from random_heads import random_facts, random_head
from transformers import AutoModelForCausalLM

import selfspec
from selfspec import drafters
from selfspec.cli.main import cli
from selfspec.errors import OptionError, RuntimeMissingError
from selfspec.export.drafts import export_draft
from selfspec.model import find_checkpoint
from selfspec.model.head_file import write_head
from selfspec.runtime.torch import TorchRuntime
from selfspec.types import LayerPlan, Rows

IDS = np.random.default_rng(0).integers(3, 200, 20).tolist()
PLANS = ("early_exit:exit_layer=3", "layer_skip:skip=(1)", "layer_skip:skip=(2 attention 0 mlp 3)")


def logits(model, plan=None):
    """Of all rows of one text."""
    found = find_checkpoint(model)
    runtime = TorchRuntime.load(found.config, found.weight_files, "float64", "cpu")
    rows = Rows.of([0] * len(IDS), range(len(IDS)))
    plan = plan or LayerPlan.full(found.config.num_layers)
    hidden = runtime.run(runtime.embed(IDS), plan, rows, runtime.new_cache(1, len(IDS)))[0]
    return runtime.logits(hidden)


@pytest.mark.parametrize("draft", PLANS)
def test_an_exported_draft_computes_what_its_plan_computes(tiny, tmp_path, draft):
    """Bit for bit: layers that are gone, and zeros, change nothing else."""
    made = export_draft(tiny, draft, "hf", tmp_path / "draft", tokens=0)
    config = find_checkpoint(tiny).config
    plan = drafters.create(draft, config, {}).plan
    assert np.array_equal(logits(tmp_path / "draft"), logits(tiny, plan))
    assert made.layers == find_checkpoint(tmp_path / "draft").config.num_layers < 4
    assert not np.array_equal(logits(tiny, plan), logits(tiny))


def test_transformers_drafts_with_it_as_we_do(model, tokenizer, tmp_path):
    """Greedy output is that of plain generate, and as many drafts hold there as here, to 3 points."""
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "target")
    export_draft(tmp_path / "target", "early_exit:exit_layer=3:gamma=3", "hf", tmp_path / "draft", tokens=0)
    assistant = AutoModelForCausalLM.from_pretrained(tmp_path / "draft", dtype=torch.float64)
    asked = {"max_new_tokens": 48, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    passes, theirs, ours = [], np.zeros(2), np.zeros(2)
    hook = model.register_forward_pre_hook(
        lambda _model, _args, given: passes.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    for prompt in PROMPTS[:5]:
        inputs = tokenizer(prompt, return_tensors="pt")
        start = inputs["input_ids"].shape[1]
        plain = model.generate(**inputs, **asked)
        passes.clear()
        drafted = model.generate(**inputs, **asked, assistant_model=assistant)
        assert torch.equal(plain, drafted)
        theirs += (48 - len(passes), sum(passes) - start - len(passes) + 1)
        how = {"custom_generate": selfspec.hf.generate, "draft": "early_exit", "exit_layer": 3, "gamma": 3}
        told = model.generate(**inputs, **asked, **how, return_dict_in_generate=True).speculation
        ours += (told.accepted, told.drafted)
    hook.remove()
    print(theirs, ours)
    assert abs(theirs[0] / theirs[1] - ours[0] / ours[1]) < 0.03


def test_the_command_says_how_to_use_it_and_what_it_is_worth(tiny, tmp_path):
    def call(*args):
        return CliRunner().invoke(cli, ["export", *map(str, args)])

    out = tmp_path / "draft"
    draft = ("--draft", "early_exit:exit_layer=3:gamma=2")
    done = call(tiny, *draft, "--format", "hf", "--out", out, "--alpha-tokens", 8, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert told["plan"] == "exit 3/4"
    assert 0 <= told["acceptance"]["alpha"] <= 1
    assert told["acceptance"]["drafted"] > 50
    assert f'"model": "{out}", "num_speculative_tokens": 2' in told["uses"]["vllm"]
    assert json.loads((out / "generation_config.json").read_text())["num_assistant_tokens"] == 2
    assert (out / "tokenizer.json").exists()
    for args, says in (
        ((tiny, *draft, "--format", "hf", "--out", out), "is there already"),
        ((tiny, *draft, "--format", "onnx", "--out", tmp_path / "a"), "it must be one of hf, gguf, openvino"),
        ((tiny, *draft, "--format", "gguf", "--out", tmp_path / "a"), "convert_hf_to_gguf.py"),
        ((tiny, *draft, "--format", "speculators", "--out", tmp_path / "a"), "use --format hf"),
        ((tiny, "--draft", "ngram", "--format", "hf", "--out", tmp_path / "a"), "no part of the model"),
        ((tiny, "--draft", "early_exit:exit_layer=9", "--format", "hf", "--out", tmp_path / "a"), "must be 1 to 3"),
    ):
        done = call(*args)
        assert done.exit_code == 2
        assert says in done.output
    assert not (tmp_path / "a").exists()


def test_what_no_format_can_hold_is_refused(tiny, tmp_path):
    with pytest.raises(OptionError, match="heads or channels"):
        export_draft(tiny, "layer_skip:skip=(heads 1:0-1)", "hf", tmp_path / "a", tokens=0)
    with pytest.raises(RuntimeMissingError, match=r"pip install 'optimum\[openvino\]'"):
        export_draft(tiny, "early_exit:exit_layer=2", "openvino", tmp_path / "a", tokens=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("kind", "layout"), [("eagle", "speculators"), ("eagle", "eagle3"), ("medusa", "medusa")])
def test_heads_are_exported_by_name(tiny, tmp_path, kind, layout):
    """Guards the verb for heads: the same drafts from what was written, lines of engines, what is refused."""
    facts = random_facts("eagle") if kind == "eagle" else random_facts("medusa", "blocks", taps=(4,))
    write_head(tmp_path / "head.safetensors", random_head(facts, vocabulary=range(0, 259, 2)))
    draft = f"{kind}:head={tmp_path / 'head.safetensors'}:gamma=3"
    asked = ["export", tiny, "--draft", draft, "--format", layout, "--out", tmp_path / "out", "--alpha-tokens", 4]
    done = CliRunner().invoke(cli, [*map(str, asked), "--json"])
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["acceptance"]["drafted"] > 0
    assert str(tmp_path / "out") in " ".join(document["uses"].values())
    again = f"{kind}:head={tmp_path / 'out'}:gamma=3"
    engine = selfspec.load(tiny, threads=1, max_new_tokens=16)
    texts = [engine.generate("hello", draft=name) for name in (draft, again)]
    assert texts[0].text == texts[1].text
    if kind == "eagle":  # Medusa's layout has all tokens
        assert texts[0].stats.accepted == texts[1].stats.accepted
    for wrong, said in (("hf", "no part of the model"), ("medusa" if kind == "eagle" else "eagle3", "layout of")):
        with pytest.raises(OptionError, match=said):
            export_draft(tiny, draft, wrong, tmp_path / "wrong", tokens=0)
        assert not (tmp_path / "wrong").exists()
