"""Training with LayerSkip: schedules by table, losses by hand, exits that learn, runs that go on, and files."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from tiny_folder import write_model
from training_runs import events_of

import selfspec
from selfspec.errors import CorruptModelError, OptionError, OutOfMemoryError, TrainingError
from selfspec.model.load import find_checkpoint
from selfspec.train.heads.corpus import Sample
from selfspec.train.heads.progress import History, Progress
from selfspec.train.heads.trainer import accelerator_of, train
from selfspec.train.layerskip.heldout import _by_position, measured
from selfspec.train.layerskip.job import Setup
from selfspec.train.layerskip.learner import Packer, batch_of
from selfspec.train.layerskip.losses import head_cross_entropy
from selfspec.train.options import LayerSkipOptions
from selfspec.train.schedules import dropout_rates, kept
from selfspec.train.shards import Text, write_shard
from selfspec.types import LayerPlan

VOCABULARY, NOISE = 40, 0.2  # of the language: the next token mostly follows from the last
FOLLOWS = np.random.default_rng(5).permutation(VOCABULARY)


# -- losses -----------------------------------------------------------------------------------------------


def test_cross_entropy_by_hand():
    """Guards both gradients against those of plain torch, over several chunks of rows."""
    torch.manual_seed(0)
    states = torch.randn(600, 6, dtype=torch.float64, requires_grad=True)
    head = torch.randn(11, 6, dtype=torch.float64, requires_grad=True)
    tokens, weights = torch.randint(0, 11, (600,)), torch.rand(600, dtype=torch.float64)
    total, losses = head_cross_entropy(states, head, tokens, weights)
    ours = torch.autograd.grad(3.0 * total, (states, head))
    expected = F.cross_entropy(states @ head.T, tokens, reduction="none")
    theirs = torch.autograd.grad(3.0 * (expected * weights).sum(), (states, head))
    torch.testing.assert_close(losses, expected)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of six layers, of which the language takes few tokens."""
    return write_model(tmp_path_factory.mktemp("skip") / "six", num_hidden_layers=6)


@pytest.fixture(scope="module")
def checkpoint(folder):
    return find_checkpoint(folder)


def sentences(count, length, seed):
    """Texts [count, length] of the language."""
    random = np.random.default_rng(seed)
    found = random.integers(VOCABULARY, size=(count, length)).astype(np.int32)
    noisy = random.random((count, length)) < NOISE
    for i in range(1, length):
        found[:, i] = np.where(noisy[:, i], found[:, i], FOLLOWS[found[:, i - 1]])
    return found


def write_data(place, checkpoint, texts):
    """The folder format of `selfspec train data`."""
    described = {
        "format": 1, "model": {"name": checkpoint.name, "fingerprint": checkpoint.fingerprint}, "vocab_size": 259,
        "eos_token_ids": [257], "special_ids": [256, 257, 258],
    }  # fmt: skip
    (place / "data.json").write_text(json.dumps(described))
    write_shard(place, [Text(row, 2, 1.0, n) for n, row in enumerate(texts)])
    return str(place)


@pytest.fixture(scope="module")
def data(checkpoint, tmp_path_factory):
    """Texts of the language, of different lengths."""
    texts = [row[: 24 - n % 9] for n, row in enumerate(sentences(600, 24, 1))]
    return write_data(tmp_path_factory.mktemp("texts"), checkpoint, texts)


def options_of(data, **changes):
    return LayerSkipOptions(
        **{"data": (data,), "held_out": 0.05, "batch_tokens": 200, "scratch": True, "learning_rate": 1e-2} | changes
    )


def run(checkpoint, options, out, steps=None, write=True):
    """Events of a run, which ends as a kill would after ``steps`` steps."""
    job = Setup(checkpoint, options, out).job(torch.device("cpu"))
    if not write:
        job = replace(job, write=lambda _progress: None)
    return job, events_of(job, steps)


@torch.no_grad()
def test_the_loss_of_a_pack_by_hand(checkpoint, data, tmp_path):
    """Guards rows, weights and layers that are left out, against transformers run text by text, layer by layer."""
    options = options_of(data, layers="2,5", curriculum="none", exit_weights="linear", dropout=0.6)
    job = Setup(checkpoint, options, tmp_path).job(torch.device("cpu"))
    texts = [0, 1, 2, 3, 4, 5, 6]
    pack = job.pack(texts, Progress(step=3), 0.25)
    assert len(pack.batches) > 1  # of texts that are about as long as each other
    assert sum(len(batch.tokens) for batch in pack.batches) == len(texts)
    learner = job.learner
    losses = learner(pack)
    rates = dropout_rates(6, 0.6, "exponential", 0.25)
    masks = kept(rates, len(texts), options.seed, 3)
    assert not masks.all()
    model = learner.decoder.model.model
    sums, count = np.zeros(3), 0
    for text, mask in zip(texts, masks.T, strict=True):
        sample = job.corpus.training[text]
        tokens = torch.from_numpy(sample.tokens.astype(np.int64))[None]
        hidden = model.embed_tokens(tokens)
        places = torch.arange(tokens.shape[1])[None]
        turns = model.rotary_emb(hidden, places)
        found = []
        for layer, runs in zip(model.layers, mask, strict=True):
            if runs:
                hidden = layer(hidden, attention_mask=None, position_ids=places, position_embeddings=turns)
            found.append(hidden)
        for i, k in enumerate((2, 5, 6)):
            logits = learner.decoder.model.lm_head(model.norm(found[k - 1]))[0, sample.prompt_length - 1 : -1]
            sums[i] += float(F.cross_entropy(logits, tokens[0, sample.prompt_length :], reduction="sum"))
        count += len(sample.tokens) - sample.prompt_length
    means = sums / count
    assert float(losses.total) == pytest.approx(float(means @ [2 / 13, 5 / 13, 6 / 13]), rel=1e-5)
    assert losses.final == pytest.approx(means[2], rel=1e-5)
    assert losses.early == pytest.approx((means[0] + means[1]) / 2, rel=1e-5)


def test_agreement_by_position():
    """Guards the count: a position is reached where all before it were right."""
    runs = [np.array([1, 1, 0, 1], bool), np.array([1], bool)]
    assert _by_position(runs) == (4 / 5, 1 / 2, 0.0, 0.0, 0.0)


# -- runs -------------------------------------------------------------------------------------------------


def final_loss(decoder, samples):
    """Of the last layer, in nats a token."""
    losses = []
    with torch.no_grad():
        for sample in samples:
            batch = batch_of([sample], torch.device("cpu"))
            states = decoder.normed(decoder(batch.tokens, None, [6])[6][0][batch.rows])
            losses.append(F.cross_entropy(states @ decoder.head.T, batch.following, reduction="none"))
    return float(torch.cat(losses).mean())


def test_exits_learn_and_the_model_loses_nothing(checkpoint, tmp_path):
    """The recipe against the same training without it: exit 1 agrees three times as often, at the same loss."""
    (tmp_path / "texts").mkdir()
    data = write_data(tmp_path / "texts", checkpoint, sentences(1500, 24, 1))
    held = [Sample(row, 2, 1.0) for row in sentences(60, 24, 9)]
    common = {"scratch": False, "epochs": 2.0, "batch_tokens": 500, "learning_rate": 5e-3, "held_out": 0.01}
    recipe = {"layers": "1", "curriculum": "none", "exit_weights": "uniform"}
    found = {}
    for name, more in (("skip", recipe), ("plain", {"plain": True})):
        options = options_of(data, evaluate_minutes=60.0, held_out_tokens=50, **common, **more)
        job, _ = run(checkpoint, options, tmp_path / name, write=False)
        decoder = job.learner.decoder
        found[name] = final_loss(decoder, held), measured(decoder, held, [1])["exit-1"]["greedy"].alphas[0]
    (skip, agrees), (plain, seldom) = found["skip"], found["plain"]
    assert agrees >= 3 * seldom
    assert abs(skip - plain) <= 0.02 * plain
    assert plain < 1.5  # it has learned: what cannot be known is 1.2 nats


def test_a_killed_run_goes_on_as_if_nothing_had_been(checkpoint, data, tmp_path):
    """Guards exact resumption: weights, moments, layers that are left out, exits that learn, and the checkpoint."""
    options = options_of(data, limit=2000, checkpoint_minutes=1e-9, evaluate_minutes=60.0, store="float32")
    run(checkpoint, options, tmp_path / "whole", write=False)
    _, events = run(checkpoint, options, tmp_path / "killed", 5, write=False)
    assert events[-1].progress.step == 5  # whose checkpoint was not made any more
    run(checkpoint, options, tmp_path / "killed", write=False)
    whole, killed = (History.read(tmp_path / name / "history.jsonl") for name in ("whole", "killed"))
    whole, killed = ([line for line in lines if line["kind"] == "step"] for lines in (whole, killed))
    assert len(whole) > 8
    assert [line["step"] for line in killed] == [*range(1, len(whole) + 1)]
    for ours, theirs in zip(killed, whole, strict=True):
        assert ours["exits"] == theirs["exits"]
        np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=0, atol=1e-6)
    with pytest.raises(OptionError, match="another dropout"):
        Setup(checkpoint, replace(options, dropout=0.3), tmp_path / "killed")
    assert run(checkpoint, options, tmp_path / "killed", write=False)[1] == []  # nothing is left to do


@pytest.fixture(scope="module")
def trained(checkpoint, data, tmp_path_factory):
    """A checkpoint as a run writes it, fine-tuned for a moment."""
    out = tmp_path_factory.mktemp("trained")
    options = options_of(
        data, layers="2,4", scratch=False, limit=3000, store="float32", draft_vocabulary=64, epochs=2.0
    )
    run(checkpoint, options, out)
    return out / "model"


def test_what_a_run_writes_is_an_ordinary_checkpoint(trained, folder):
    """Guards the folder: ours and transformers read the same model in it, and early_exit finds its exits."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    note = json.loads((trained / "exits.json").read_text())
    assert sorted(note["layers"]) == [2, 4]
    assert len(note["vocabulary"]) == 64
    assert note["card"]["alphas"].keys() == {"2", "4"}
    assert str(trained.parent) not in json.dumps(note)
    theirs = AutoModelForCausalLM.from_pretrained(trained, dtype="auto")
    assert theirs.dtype == torch.float32
    assert AutoTokenizer.from_pretrained(trained).encode("hi") == find_checkpoint(trained).tokenizer.encode("hi")
    prompt = [5, 9, 11, 30]
    expected = theirs.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0)
    expected = expected[0, len(prompt) :].tolist()
    for runtime in ("cpu", "torch"):
        options = {"threads": 1} if runtime == "cpu" else {"device": "cpu"}
        engine = selfspec.load(trained, runtime=runtime, **options)
        assert engine.config.exits.layers == tuple(note["layers"])
        for more in (
            {"draft": "plain"},
            {"draft": "early_exit"},
            {"draft": "early_exit", "draft_vocabulary": "all"},
        ):
            done = engine.generate(prompt, max_new_tokens=12, ignore_eos=True, **more)
            assert list(done.token_ids) == expected
            if more != {"draft": "plain"}:
                assert str(LayerPlan.exit_at(6, note["layers"][0])) in done.plan
    with safe_open(trained / "model.safetensors", framework="numpy") as file:
        assert set(file.keys()) == find_checkpoint(folder).weight_files.keys()  # the tied head is there once


@pytest.mark.parametrize(
    ("note", "said"),
    [
        ({"format": 2, "layers": [2]}, "has format 2; this selfspec reads 1"),
        ({"format": 1, "layers": [6]}, r"has the exits \[6\]; this model has 6 layers"),
        ({"format": 1, "layers": []}, "has the exits"),
        ({"format": 1, "layers": [2], "vocabulary": [5, 3]}, "not ascending"),
        ({"format": 1, "layers": [2], "vocabulary": [259]}, "not of this model"),
        ({"format": 1, "layers": ["2"]}, "must be a token id"),
    ],
)
def test_a_note_that_does_not_fit(folder, tmp_path, note, said):
    from selfspec.model.checkpoint import read_config

    (tmp_path / "config.json").write_text((find_checkpoint(folder).folder / "config.json").read_text())
    (tmp_path / "exits.json").write_text(json.dumps(note))
    with pytest.raises(CorruptModelError, match=said):
        read_config(tmp_path)


def test_numbers_that_are_none_and_memory_that_is_not_there(checkpoint, data, tmp_path, monkeypatch):
    """Guards the last good checkpoint, and one clear line for each."""
    options = options_of(data, limit=2000)
    job = Setup(checkpoint, options, tmp_path / "nan").job(torch.device("cpu"))
    events = train(job, accelerator_of(options, "cpu"))
    while next(events).progress.step < 2:
        pass
    job.learner.decoder.head.data[0, 0] = torch.nan
    with pytest.raises(TrainingError, match=r"not finite after step 2; no checkpoint .* lower --learning-rate"):
        next(events)

    def fails(*_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("selfspec.train.layerskip.learner.head_cross_entropy", fails)
    with pytest.raises(OutOfMemoryError, match="lower --batch-tokens"):
        run(checkpoint, options, tmp_path / "memory")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"curriculum": "slow"}, "curriculum is 'slow'; it must be one of rotational, gradual, none"),
        ({"exit_weights": "cube"}, "exit_weights is 'cube'; it must be one of sum, linear, uniform"),
        ({"store": "int8"}, "store is 'int8'; it must be one of bfloat16, float16, float32"),
        ({"dropout_over_time": "late"}, "must be one of constant, exponential"),
        ({"dropout": 1.0}, "dropout is 1.0; it must be at least 0 and below 1"),
        ({"gradual": 1.5}, "gradual is 1.5; it must be from 0 to 1"),
        ({"exit_scale": 0.0}, "exit_scale is 0.0; it must be above 0"),
        ({"rotation": 0}, "rotation"),
        ({"layers": "2,x"}, "layers is '2,x'; it must be numbers"),
        ({"plain": True, "draft_vocabulary": 9}, "plain notes no exits"),
    ],
)
def test_options_that_are_none(data, changes, said):
    with pytest.raises(OptionError, match=said):
        options_of(data, **changes)


def test_what_does_not_fit_the_model_or_the_data(checkpoint, data, tmp_path):
    with pytest.raises(OptionError, match="layers has 6; this model has 6 layers, so an exit must be 1 to 5"):
        Setup(checkpoint, options_of(data, layers="6"), tmp_path / "a")
    described = json.loads((Path(data) / "data.json").read_text())
    described["model"]["tokenizer"] = "0"
    (tmp_path / "data.json").write_text(json.dumps(described))
    shutil.copy(next(Path(data).glob("*.safetensors")), tmp_path)
    with pytest.raises(OptionError, match="another tokenizer than"):
        Setup(checkpoint, options_of(str(tmp_path)), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_plain_is_the_control(data):
    """Guards the control: no exit learns, no layer is left out, and nothing of the recipe is noted."""
    options = options_of(data, plain=True, layers="2,4")
    assert options.exits_of(6) == ()
    assert options.most_dropout == 0.0
    samples = [Sample(row, 2, 1.0) for row in sentences(3, 9, 2)]
    pack = Packer(samples, 6, options, torch.device("cpu"))([0, 1, 2], Progress(), 0.5)
    assert (list(pack.exits), list(pack.weights)) == ([6], [1.0])
    assert all(batch.kept is None for batch in pack.batches)


def test_families_that_cap_their_logits_are_refused(checkpoint):
    from selfspec.errors import UnsupportedModelError
    from selfspec.train.layerskip.decoder import Decoder

    with pytest.raises(UnsupportedModelError, match="caps its logits"):
        Decoder(SimpleNamespace(), replace(checkpoint.config, logit_cap=30.0))
