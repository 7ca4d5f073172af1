"""``selfspec train data``: from flags to a folder, and what is refused."""

from __future__ import annotations

import json

import pytest

from selfspec.cli.train import VERBS
from selfspec.train.data import read_data
from selfspec.train.folder import Folder


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "abc"}\n{"messages": [{"role": "user", "content": "hi"}]}\n')
    return path


@pytest.fixture
def flags(tiny, prompts, tmp_path):
    return ["--prompts", prompts, "--out", tmp_path / "d", "--model", tiny, "--max-new-tokens", "5", "--slots", "2"]


def test_a_run_ends_goes_on_and_is_read(call, flags, tmp_path, monkeypatch):
    """Guards the verb: data.json, sums, Ctrl-C and the run after it, a larger target, other options."""
    whole = Folder.add

    def interrupted(self, text):
        whole(self, text)
        if len(self) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "add", interrupted)
        result = call("train", "data", *flags, "--temperatures", "0,1")
    assert result.exit_code == 130
    assert "2 texts are kept; run the same command again" in result.stderr
    assert len(read_data(tmp_path / "d")) == 2
    result = call("train", "data", *flags, "--temperatures", "0,1", "--json")
    sums = json.loads(result.stdout)
    data = read_data(tmp_path / "d")
    assert (sums["texts"], sums["resumed"], sums["left_out"]) == (4, 2, 0)
    assert sums["answer_tokens"] == data.answer_tokens
    assert {(t.source, t.temperature) for t in data} == {(0, 0.0), (0, 1.0), (1, 0.0), (1, 1.0)}
    facts = data.provenance
    assert (facts["temperatures"], facts["max_new_tokens"], facts["prompts"]["count"]) == ([0.0, 1.0], 5, 2)
    assert (facts["model"]["name"], facts["runtime"], facts["eos_token_ids"]) == ("tiny", "cpu", [257])
    assert len(facts["model"]["fingerprint"]) == 64
    more = ["--temperatures", "0,1", "--tokens", "40", "--slots", "3", "--draft", "ngram"]
    assert call("train", "data", *flags, *more).exit_code == 0
    assert read_data(tmp_path / "d").answer_tokens >= 40
    result = call("train", "data", *flags, "--temperatures", "0,1", "--seed", "1", "--system", "s")
    assert result.exit_code == 2
    assert "holds data of another seed and another wrapping" in result.stderr


def test_own_text_is_taken(call, tiny, tmp_path):
    """Guards --text: several files, sources that go on, what is left out, and a second run that adds nothing."""
    (tmp_path / "a.jsonl").write_text('{"text": "xyz"}\n{"text": ""}\n')
    (tmp_path / "b.txt").write_text("plain words")
    args = ["--text", tmp_path / "a.jsonl", "--text", tmp_path / "b.txt", "--out", tmp_path / "d", "--model", tiny]
    for resumed in (0, 2):
        result = call("train", "data", *args, "--json")
        sums = json.loads(result.stdout)
        assert (sums["texts"], sums["resumed"], sums["left_out"]) == (2, resumed, 1)
        assert "1 entries are left out; number 2: the text has no second token" in result.stderr
    assert [(t.source, len(t.answer)) for t in read_data(tmp_path / "d")] == [(0, 2), (2, 10)]


@pytest.mark.parametrize("bad", ['{"text": ""}\n{"texts": "a"}\n', '{"text": "abc"\n'])
def test_a_wrong_file_does_not_stand_in_the_way_of_the_right_one(call, refused, tiny, tmp_path, bad):
    """A file without a usable text left a folder that refused every other file afterwards."""
    (tmp_path / "bad").write_text(bad)
    (tmp_path / "good").write_text("plain words")
    flags = ["--out", tmp_path / "d", "--model", tiny, "--threads", "1"]
    assert (
        "bad" in (line := refused("train", "data", "--text", tmp_path / "bad", *flags)) or "none of the 2" in line
    )
    assert not (tmp_path / "d").exists()
    assert call("train", "data", "--text", tmp_path / "good", *flags).exit_code == 0
    line = refused("train", "data", "--text", tmp_path / "bad", *flags)
    assert "holds data of other texts" in line
    assert "is a file; name a new folder" in refused(
        "train", "data", "--text", tmp_path / "good", "--model", tiny, "--out", __file__
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "no prompts; give --prompts"),
        (["--prompts", "p", "--text", "t"], "text, and prompts"),
        (["--text", "t", "--seed", "1"], "--seed is for texts that the model writes"),
        (["--prompts", "nowhere"], "cannot be read"),
        (["--prompts", "p", "--temperatures", "0,x"], "temperatures is '0,x'"),
        (["--prompts", "p", "--tokens", "0"], "tokens is 0"),
        (["--prompts", "p", "--beginnings", "b"], "add --self-prompts"),
        (["--self-prompts", "3", "--no-chat"], "needs it"),
        (["--prompts", "p", "--gamma", "2"], "No such option"),
    ],
)
def test_what_is_refused_leaves_no_folder(refused, tiny, tmp_path, given, words):
    """Guards flags that contradict each other, before a model is loaded."""
    assert words in refused("train", "data", *given, "--out", tmp_path / "d", "--model", tiny)
    assert not (tmp_path / "d").exists()


def test_unknown_steps_are_named(refused):
    """Guards the group: its verbs, too, come from a table."""
    assert f"no verb 'nothing'; it must be one of {', '.join(VERBS)}" in refused("train", "nothing")


@pytest.mark.embedded
def test_the_embedded_model_asks_itself(call, tmp_path):
    """Guards --self-prompts end to end: prompts in words, behind the file's own, and answered."""
    (tmp_path / "p.txt").write_text("Name a river.\n")
    args = ["--prompts", tmp_path / "p.txt", "--self-prompts", "2", "--temperatures", "0", "--max-new-tokens", "1"]
    assert call("train", "data", *args, "--out", tmp_path / "d").exit_code == 0
    asked = [json.loads(line)["prompt"] for line in (tmp_path / "d/self-prompts.jsonl").read_text().splitlines()]
    assert [len(prompt.split()) >= 3 for prompt in asked] == [True, True]
    import selfspec

    decode = selfspec.load(runtime="cpu").tokenizer.decode
    found = {t.source: decode(t.prompt.tolist()) for t in read_data(tmp_path / "d")}
    assert [text in found[n] for n, text in enumerate(["Name a river.", *asked])] == [True] * 3
