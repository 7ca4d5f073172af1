"""Distilled draft models: what they begin with, what they lose, and that they agree more and change nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import trained_decoder as trained
from click.testing import CliRunner
from doubles import Host, run
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tiny_folder import write_model
from tokenizers import Tokenizer, models
from training_runs import run_of, ticking

import selfspec
from selfspec import drafters
from selfspec.cli.main import cli
from selfspec.engine import Engine
from selfspec.errors import OptionError, UnsupportedModelError
from selfspec.model.checkpoint import open_folder
from selfspec.runtime.torch import TorchRuntime
from selfspec.train.distill.job import Setup
from selfspec.train.distill.losses import Wanted, distillation
from selfspec.train.heads.progress import History, Progress
from selfspec.train.model_folder import replacing
from selfspec.train.options import DistillOptions
from selfspec.train.shards import Text, write_shard
from selfspec.types import Sampling

QUICK = {"epochs": 2.0, "batch_tokens": 40, "held_out": 0.3, "learning_rate": 3e-3, "store": "float32"}


def data_of(folder, engine, texts):
    """A folder as `selfspec train data` makes it."""
    folder.mkdir()
    size = engine.config.vocab_size
    described = {
        "format": 1, "model": {"name": engine.name, "fingerprint": engine.fingerprint}, "vocab_size": size,
        "eos_token_ids": [], "special_ids": [], "temperatures": [0.0, 1.0],
    }  # fmt: skip
    (folder / "data.json").write_text(json.dumps(described))
    write_shard(folder, texts)
    return str(folder)


def test_the_loss_by_hand():
    """Guards values and gradients of states and head, over more than one chunk, against autograd."""
    torch.manual_seed(0)
    rows, size, d = 300, 11, 6
    states, head = (
        torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((rows, d), (size, d))
    )
    target, tokens = torch.randn(rows, size, dtype=torch.float64), torch.randint(size, (rows,))
    wanted = Wanted(lambda x: torch.log_softmax(x, -1), target, tokens, 0.7, 0.2)
    total, means = distillation(states, head, wanted)
    p, log_q = torch.softmax(target, -1), torch.log_softmax(states @ head.T, -1)
    kl = (p * (p.log() - log_q)).sum(-1).mean()
    ce = -log_q.gather(1, tokens[:, None]).mean()
    torch.testing.assert_close(means, torch.stack([kl, ce]).detach())
    torch.testing.assert_close(total, 0.7 * kl + 0.2 * ce)
    ours = torch.autograd.grad(total, (states, head))
    theirs = torch.autograd.grad(0.7 * kl + 0.2 * ce, (states, head))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ("1", (0,)),
        ("2", (0, 29)),
        ("3", (0, 15, 29)),
        ("6", (0, 6, 12, 17, 23, 29)),
        ("0,3,29", (0, 3, 29)),
        ("4,", None),
    ],
)
def test_which_layers_are_chosen(given, chosen):
    options = DistillOptions(data=("x",), layers=given.rstrip(",") if chosen is None else given)
    if chosen is None:
        chosen = (0, 10, 19, 29)
    assert options.chosen(30) == chosen


@pytest.mark.parametrize("given", ["30", "0", "29,3", "3,3", "1,30", "x", "", "1,,2"])
def test_layers_that_are_none(given):
    with pytest.raises(OptionError, match="layers"):
        DistillOptions(data=("x",), layers=given).chosen(30)


@pytest.fixture(scope="module")
def small(tiny):
    return selfspec.load(tiny, threads=1), open_folder(Path(tiny), "tiny")


@pytest.fixture(scope="module")
def answers(small, tmp_path_factory):
    random = np.random.default_rng(0)
    texts = [
        Text(random.integers(0, 30, 4 + 2 * (n % 5) + n % 3).astype(np.int32), 3, 0.9 * (n % 2), n)
        for n in range(24)
    ]
    return data_of(tmp_path_factory.mktemp("distill") / "data", small[0], texts)


def tensors_of(folder):
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def test_it_begins_as_the_chosen_layers_and_goes_on_as_if_nothing_had_been(small, answers, tmp_path):
    """Guards the first weights, byte for byte; a kill, after which everything is as it would have been."""
    options = DistillOptions(data=(answers,), layers="0,2,3", checkpoint_minutes=0.2, **QUICK)
    engine, checkpoint = small
    whole = Setup(engine, checkpoint, options, tmp_path / "whole")
    first, source = tensors_of(whole.first), tensors_of(checkpoint.folder)
    for name, tensor in first.items():
        new, _, rest = name.removeprefix("model.layers.").partition(".")
        old = f"model.layers.{(0, 2, 3)[int(new)]}.{rest}" if name.startswith("model.layers.") else name
        assert torch.equal(tensor, source[old])
    assert len([name for name in first if name.endswith("q_proj.weight")]) == 3
    run_of(whole, clock=ticking())
    killed = Setup(engine, checkpoint, options, tmp_path / "killed")
    events = run_of(killed, 7, ticking())
    assert 0 < [event for event in events if event.kind == "checkpoint"][-1].progress.step < 7
    run_of(Setup(engine, checkpoint, options, tmp_path / "killed"), clock=ticking())
    lines = [History.read(tmp_path / name / "history.jsonl") for name in ("whole", "killed")]
    for ours, theirs in zip(*([line for line in part if line["kind"] == "step"] for part in lines), strict=True):
        np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=0, atol=1e-5)
    assert lines[0][-1]["heads"]["draft"].keys() == {"greedy", "sampled"}
    ours, theirs = tensors_of(whole.model), tensors_of(killed.model)
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=1e-5)
    assert not all(torch.equal(tensor, first[name]) for name, tensor in ours.items())
    assert {path.name for path in whole.model.iterdir()} >= {"config.json", "tokenizer.json", "model.safetensors"}
    with pytest.raises(OptionError, match="another layers"):
        Setup(engine, checkpoint, DistillOptions(data=(answers,), layers="2", **QUICK), tmp_path / "whole")
    drafted = engine.generate("hello", max_new_tokens=12, draft="draft_model", draft_model=str(whole.model))
    assert drafted.text == engine.generate("hello", max_new_tokens=12, draft="plain").text


def test_the_verb(tiny, answers, tmp_path):
    """Guards flags, what is told, and that a mistake leaves nothing behind."""

    def called(*more):
        given = ("train", "distill", "--data", answers, "--model", tiny, "--out", tmp_path / "run", "--threads", 1)
        more = (*more, "--batch-tokens", 60, "--held-out", 0.3, "--epochs", 1)
        return CliRunner().invoke(cli, [str(part) for part in (*given, *more)])

    for layers, said in (("4", "a draft must have 1 to 3"), ("0,9", "some of 0 to 3"), ("", "no layers")):
        refused = called("--layers", layers)
        assert refused.exit_code == 2
        assert said in refused.stderr
        assert not (tmp_path / "run").exists()
    done = called("--layers", "2", "--json")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["layers"] == [0, 3]
    assert (Path(document["model"]) / "model.safetensors").exists()
    assert document["held_out"]["draft"].keys() == {"greedy", "sampled"}
    for said in ("answer tokens in", "layers 0, 3 of 4", "states of", "held-out α", "ETA"):
        assert said in done.stderr
    assert (tmp_path / "run" / "loss.svg").exists()


def test_a_full_disk_leaves_the_draft_of_before(small, answers, tmp_path, monkeypatch):
    """Guards hours of training: what was written by the last checkpoint is there until the next one is whole."""
    options = DistillOptions(data=(answers,), layers="2", **QUICK)
    setup = Setup(*small, options, tmp_path / "run")
    job = setup.job(torch.device("cpu"))
    job.write(Progress())
    before = tensors_of(setup.model)

    def full(*_args, **_how):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("selfspec.train.distill.job.save_file", full)
    with pytest.raises(OptionError, match=r"no checkpoint can be written to .*No space left"):
        job.write(Progress())
    assert tensors_of(setup.model).keys() == before.keys()
    assert [path.name for path in setup.out.iterdir() if path.name.startswith(".")] == []


def test_a_file_is_no_folder_of_a_run(small, answers, tmp_path):
    """Guards one clear line: it was "cannot be made: File exists"."""
    (tmp_path / "run").write_text("")
    with pytest.raises(OptionError, match="is a file; name a new folder"):
        Setup(*small, DistillOptions(data=(answers,), layers="2", **QUICK), tmp_path / "run")


def test_a_kill_between_two_renames_loses_no_model(tmp_path):
    """Guards the folder of before, which stands aside for a moment."""
    (tmp_path / ".model.old").mkdir()
    (tmp_path / ".model.old" / "weights").write_text("before")
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "model"):
        _ = 1 / 0
    assert (tmp_path / "model" / "weights").read_text() == "before"
    with replacing(tmp_path / "model") as scratch:
        (scratch / "weights").write_text("after")
        assert (tmp_path / "model" / "weights").read_text() == "before"
    assert (tmp_path / "model" / "weights").read_text() == "after"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_rename_that_fails_leaves_the_model_of_before(tmp_path, monkeypatch):
    """Guards who drafts with it meanwhile: it was put aside, and came back with the next checkpoint only."""
    model, rename = tmp_path / "model", Path.rename
    model.mkdir()

    def fails(path, target):
        if path.name == ".model":
            raise OSError(13, "Permission denied")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(OptionError, match="Permission denied"), replacing(model):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_layers_that_depend_on_their_place_are_refused(tmp_path):
    """Guards windows: layer 2 as layer 1 would see something else; nothing is left behind."""
    folder = write_model(
        tmp_path / "windows",
        architectures=["Qwen2ForCausalLM"], model_type="qwen2", use_sliding_window=True, sliding_window=8,
        max_window_layers=2, tie_word_embeddings=True,
    )  # fmt: skip
    engine, checkpoint = selfspec.load(folder, threads=1), open_folder(Path(folder), "windows")
    data = data_of(tmp_path / "data", engine, [Text(np.arange(9, dtype=np.int32), 3, 0.0, n) for n in range(9)])
    options = DistillOptions(data=(data,), layers="0,3", **QUICK)
    with pytest.raises(UnsupportedModelError, match="would compute something else"):
        Setup(engine, checkpoint, options, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_distilled_draft_agrees_more_and_changes_nothing(tmp_path, monkeypatch):
    """Guards the recipe, on a model that has learned a language: α held out and α of decoding, before and after."""
    monkeypatch.setattr(trained, "STEPS", 60)
    weights, _ = trained.trained()
    runtime = trained.runtime(weights)
    source = tmp_path / "source"
    source.mkdir()
    c = trained.config()
    (source / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": c.num_layers,
        "hidden_size": c.hidden_size, "intermediate_size": c.intermediate_size, "vocab_size": c.vocab_size,
        "num_attention_heads": c.num_heads, "num_key_value_heads": c.num_kv_heads, "head_dim": c.head_dim,
        "max_position_embeddings": c.context_length, "rms_norm_eps": c.norm_eps, "rope_theta": 10_000.0,
        "tie_word_embeddings": False, "torch_dtype": "float32",
    }))  # fmt: skip
    Tokenizer(models.BPE(vocab={chr(97 + i): i for i in range(c.vocab_size)}, merges=[])).save(
        str(source / "tokenizer.json")
    )
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    engine = Engine(runtime, None, "trained", fingerprint="trained")
    prompts = trained.texts(16, 6, seed=3).tolist()
    sampled = run(runtime, prompts, new_tokens=40, sampling=Sampling(1.0), seed=5)
    greedy = run(runtime, prompts, new_tokens=40)
    texts = [
        Text(np.asarray(text.tokens, np.int32), 6, temperature, n)
        for temperature, found in ((1.0, sampled), (0.0, greedy))
        for n, text in enumerate(found)
    ]
    asked = {"batch_tokens": 256, "held_out": 0.3, "epochs": 8.0, "learning_rate": 8e-3, "store": "float32"}
    options = DistillOptions(data=(data_of(tmp_path / "data", engine, texts),), layers="3", **asked)
    setup = Setup(engine, open_folder(source, "trained"), options, tmp_path / "out")
    assert setup.layers == (0, 4, 7)
    run_of(setup)
    evaluations = [line for line in History.read(setup.out / "history.jsonl") if line["kind"] == "evaluation"]
    for kind in ("greedy", "sampled"):
        before, after = (line["heads"]["draft"][kind]["alphas"][0] for line in (evaluations[0], evaluations[-1]))
        assert after > before + 0.2
    accepted = {}
    for folder in (setup.first, setup.model):
        found = open_folder(folder, folder.name)
        draft = TorchRuntime.load(found.config, found.weight_files, "float32", "cpu")
        host = Host(runtime, {"small": draft})
        drafter = drafters.create("draft_model", c, {"draft_model": "small", "gamma": 4}, host)
        commits = []
        said = run(
            runtime, prompts[:6], drafter, new_tokens=30, each_round=lambda *_, c=commits: c.extend(_[2].commits)
        )
        assert [text.tokens for text in said] == [text.tokens[:36] for text in greedy[:6]]
        accepted[folder.name] = sum(c.accepted for c in commits) / sum(c.drafted for c in commits)
    assert accepted["model"] > accepted["initial"] + 0.2
