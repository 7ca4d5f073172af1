"""Training runs on a tiny model: resumed exactly, told apart, stopped by what is no number; and what they write."""

from __future__ import annotations

import json
import pickle
import shutil
import signal
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from training_runs import run_of, ticking

import selfspec
from selfspec.errors import OptionError, OutOfMemoryError, TrainingError
from selfspec.model.head_file import read_head, write_head
from selfspec.runtime.attached import identity_of
from selfspec.train.heads import checkpoints
from selfspec.train.heads.heldout import HeldOut
from selfspec.train.heads.job import Setup
from selfspec.train.heads.progress import History
from selfspec.train.heads.trainer import _Run, accelerator_of, train
from selfspec.train.options import EagleOptions, ExitHeadOptions, MedusaOptions
from selfspec.train.shards import Text, write_shard

QUICK = {
    "vocabulary": 40, "epochs": 3.0, "batch_tokens": 24, "held_out": 0.3, "learning_rate": 3e-3, "warm_up": 0.2,
}  # fmt: skip


@pytest.fixture(scope="module")
def engine(tiny):
    return selfspec.load(tiny, threads=1)


@pytest.fixture(scope="module")
def data(engine, tmp_path_factory):
    """Texts of a few tokens, of which half are greedy, in the folder format of `selfspec train data`."""
    folder = tmp_path_factory.mktemp("data")
    described = {
        "format": 1, "model": {"name": engine.name, "fingerprint": engine.fingerprint}, "vocab_size": 259,
        "eos_token_ids": [257], "special_ids": [256, 257, 258], "temperatures": [0.0, 0.9],
    }  # fmt: skip
    (folder / "data.json").write_text(json.dumps(described))
    random = np.random.default_rng(0)
    texts = [
        Text(random.integers(0, 30, 4 + 2 * (n % 5) + n % 3).astype(np.int32), 3, 0.9 * (n % 2), n)
        for n in range(24)
    ]
    write_shard(folder, texts)
    return folder


def run(engine, options, out, steps=None, clock=None):
    """Events of a run in the folder ``out``."""
    return run_of(Setup(engine, options, out), steps, clock)


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_a_killed_run_goes_on_as_if_nothing_had_been(engine, data, tmp_path, kind):
    """Guards exact resumption: weights, moments, rates, the order of the texts and the history."""
    common = {"data": (str(data),), "checkpoint_minutes": 0.2, **QUICK}
    options = EagleOptions(taps="1,2,3", **common) if kind == "eagle" else MedusaOptions(heads=3, **common)
    run(engine, options, tmp_path / "whole", clock=ticking())
    events = run(engine, options, tmp_path / "killed", 9, ticking())
    kept = [event for event in events if event.kind == "checkpoint"]
    assert kept
    assert 0 < kept[-1].progress.step < 9  # what came after it is lost, and made again
    run(engine, options, tmp_path / "killed", clock=ticking())
    whole, killed = (History.read(tmp_path / name / "history.jsonl") for name in ("whole", "killed"))
    whole, killed = ([line for line in lines if line["kind"] == "step"] for lines in (whole, killed))
    assert [line["step"] for line in killed] == [*range(1, len(whole) + 1)]
    for ours, theirs in zip(killed, whole, strict=True):
        for name in ("epoch", "batch", "tokens", "learning_rate"):
            assert ours[name] == theirs[name]
        np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=0, atol=1e-6)
    heads = [read_head(tmp_path / name / f"{kind}.safetensors") for name in ("whole", "killed")]
    for name, weight in heads[0].weights.items():
        np.testing.assert_allclose(heads[1].weights[name], weight, rtol=0, atol=1e-6)
    assert whole[-1]["loss"][0][0] < whole[0]["loss"][0][0] - 0.1  # it learns


def test_what_a_run_writes_and_refuses(engine, data, tmp_path):
    """Guards the file and its card, several exits in one run, and a folder that holds another run."""
    options = ExitHeadOptions(data=(str(data),), layers="2,1", form="attention", **{**QUICK, "epochs": 1.0})
    run(engine, options, tmp_path / "exits")
    for k in (1, 2):
        head = read_head(tmp_path / "exits" / f"exit-{k}.safetensors")
        assert (head.facts.kind, head.facts.form, head.facts.taps) == ("exit_head", "attention", (k,))
        assert head.facts.target == (identity_of(engine.runtime) or engine.fingerprint)
        assert len(head.vocabulary) == 40
        assert {256, 257, 258} <= set(head.vocabulary.tolist())
        card = head.facts.card
        assert card["held_out"].keys() == {"greedy", "sampled"}
        assert len(card["held_out"]["greedy"]["alphas"]) == 5
        assert card["command"].startswith("selfspec train exit-head --data data")
        assert str(tmp_path) not in json.dumps(dict(card))
    with pytest.raises(OptionError, match="another learning_rate"):
        Setup(engine, replace(options, learning_rate=1e-4), tmp_path / "exits")
    again = run(engine, options, tmp_path / "exits")  # nothing is left to do
    assert [event.kind for event in again] == []
    options = replace(options, init=str(tmp_path / "exits" / "exit-1.safetensors"))
    setup = Setup(engine, replace(options, layers="1"), tmp_path / "more")
    weights = setup.job(torch.device("cpu")).learner.heads["exit-1"].state_dict()
    np.testing.assert_array_equal(
        weights["layer.self_attn.o_proj.weight"],
        read_head(tmp_path / "exits" / "exit-1.safetensors").weights["layer.self_attn.o_proj.weight"],
    )
    with pytest.raises(OptionError, match="another form, size or layer"):
        Setup(engine, replace(options, layers="2"), tmp_path / "others")
    assert not (tmp_path / "others").exists()
    with pytest.raises(OptionError, match="another first_weights"):
        Setup(engine, replace(options, layers="1", init=None), tmp_path / "more")
    foreign = read_head(tmp_path / "exits" / "exit-1.safetensors")
    foreign = replace(foreign, facts=replace(foreign.facts, target="another", target_name="other"))
    write_head(tmp_path / "foreign.safetensors", foreign)
    options = replace(options, layers="1", init=str(tmp_path / "foreign.safetensors"))
    with pytest.raises(OptionError, match="trained for another checkpoint, other"):
        Setup(engine, options, tmp_path / "others")


def test_states_on_disk_and_anew_train_alike(engine, data, tmp_path):
    """Guards the disk budget, and states of another model or other layers."""
    options = EagleOptions(data=(str(data),), taps="1,2,3", **{**QUICK, "epochs": 1.0})
    kept = run(engine, options, tmp_path / "kept")
    anew = run(engine, replace(options, disk_budget="1K"), tmp_path / "anew")
    assert (tmp_path / "kept" / "features" / "states-00000.safetensors").exists()
    assert not (tmp_path / "anew" / "features").exists()
    ours, theirs = ([e.facts["loss"] for e in events if e.kind == "step"] for events in (kept, anew))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    features = str(tmp_path / "kept" / "features")
    exits = ExitHeadOptions(data=(str(data),), layers="2", features=features, **QUICK)
    with pytest.raises(OptionError, match="another taps"):
        run(engine, exits, tmp_path / "other")


def test_numbers_that_are_none_and_memory_that_is_not_there(engine, data, tmp_path, monkeypatch):
    """Guards the last good checkpoint: what is no number must not be kept; and one clear line for each."""
    options = EagleOptions(data=(str(data),), taps="1,2,3", **QUICK)
    setup = Setup(engine, options, tmp_path / "nan")
    setup.make_states(lambda _: None)
    accelerator = accelerator_of(options, "cpu")
    job = setup.job(accelerator.device)
    events = train(job, accelerator)
    while next(events).progress.step < 3:
        pass
    job.learner.heads["eagle"].fc.weight.data[0, 0] = torch.nan
    with pytest.raises(TrainingError, match=r"not finite after step 3; no checkpoint .* lower --learning-rate"):
        next(events)
    assert not list((tmp_path / "nan").glob("checkpoints/step-*"))

    def fails(*_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("selfspec.train.heads.learner.cross_entropy", fails)
    with pytest.raises(OutOfMemoryError, match="lower --batch-tokens"):
        run(engine, options, tmp_path / "memory")


def test_interrupted_between_steps(engine, data, tmp_path, monkeypatch):
    """Guards Ctrl-C: the step under way ends, what is kept is whole, and the next run goes on behind it."""
    options = EagleOptions(data=(str(data),), taps="1,2,3", **{**QUICK, "epochs": 1.0})
    learn, steps = _Run._learn, []

    def interrupted(self, texts):
        steps.append(texts)
        if len(steps) == 2:
            signal.raise_signal(signal.SIGINT)
        return learn(self, texts)

    with monkeypatch.context() as patch:
        patch.setattr(_Run, "_learn", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(engine, options, tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-2"]
    assert run(engine, options, tmp_path)[0].progress.step == 3


class Touching:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_a_checkpoint_is_read_as_numbers_only(engine, data, tmp_path):
    """Accelerate unpickles what is registered with it, so a run folder of somebody else's could run code."""
    options = EagleOptions(data=(str(data),), taps="1,2,3", **{**QUICK, "epochs": 1.0})
    last = run(engine, options, tmp_path)[-1].progress
    (found,) = (tmp_path / "checkpoints").iterdir()
    names = sorted(path.name for path in found.iterdir())
    assert "progress.json" in names
    assert not [name for name in names if name.startswith("custom")]
    for name in (*names, "custom_checkpoint_0.pkl"):
        hostile = shutil.copytree(found, tmp_path / "hostile")
        (hostile / name).write_bytes(pickle.dumps(Touching(tmp_path / "touched")))
        with pytest.raises(OptionError, match="cannot be read"):
            checkpoints.restore(prepared(), hostile)
        assert not (tmp_path / "touched").exists()
        shutil.rmtree(hostile)
    (found / "progress.json").unlink()  # as it was kept before
    torch.save({"step": last.step, "epoch": 0, "batch": 3, "tokens": 9}, found / "custom_checkpoint_0.pkl")
    with pytest.raises(OptionError, match="cannot be read"):  # no weights of ours
        checkpoints.restore(prepared(), found)
    assert json.loads((found / "progress.json").read_text())["step"] == last.step


def prepared():
    """Accelerate with a module of another kind: what is read stops at the latest there."""
    accelerator = Accelerator(cpu=True)
    module = torch.nn.Linear(2, 3)
    accelerator.prepare(module, torch.optim.AdamW(module.parameters()))
    return accelerator


def test_a_stopped_process_has_not_trained(engine, data, tmp_path):
    """Guards --minutes: the clock jumps by an hour in one step, as it does for a process that was stopped."""
    ticks = count()

    def clock():
        now = next(ticks)
        return float(now + 3600 * (now > 12))

    options = EagleOptions(data=(str(data),), taps="1,2,3", **QUICK | {"epochs": None}, minutes=1.0)
    steps = [event for event in run(engine, options, tmp_path, clock=clock) if event.kind == "step"]
    assert steps[-1].progress.seconds < 100
    assert len(steps) > 20


def test_evaluations_do_not_count_as_training(engine, data, tmp_path):
    """Guards --minutes: an evaluation that takes longer than all of it left no step to train in."""

    class Slow:
        now = 0.0

        def __call__(self):
            self.now += 1.0
            return self.now

    clock, measure = Slow(), HeldOut.measure

    def slowly(self, *args):
        clock.now += 1000.0
        return measure(self, *args)

    options = EagleOptions(data=(str(data),), taps="1,2,3", **QUICK | {"epochs": None}, minutes=0.1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HeldOut, "measure", slowly)
        events = run(engine, options, tmp_path, clock=clock)
    assert [event.kind for event in events].count("step") > 3
