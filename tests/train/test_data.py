"""Data for trained heads: shards, the folder that survives a kill, and what is read from it."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import selfspec
from selfspec import OptionError
from selfspec.train import folder as folders
from selfspec.train.answers import Answering, seed_of
from selfspec.train.data import draft_vocabulary, read_data
from selfspec.train.folder import growing
from selfspec.train.own_text import own_texts
from selfspec.train.shards import Text, read_shard, write_shard

MODEL = {"name": "m", "fingerprint": "f"}
PROVENANCE = {
    "format": 1,
    "model": MODEL,
    "vocab_size": 12,
    "eos_token_ids": [9],
    "special_ids": [9, 11],
    "temperatures": [0.0, 0.7, 1.0],
    "seed": 3,
    "version": "1",
}
TEMPERATURES = PROVENANCE["temperatures"]


def text(tokens, prompt_length=1, temperature=0.7, source=0, draw=0):
    return Text(np.asarray(tokens, np.int32), prompt_length, temperature, source, draw)


def plain(found):
    """Texts as a mapping that compares; a text twice is a mistake."""
    rows = [((t.source, round(t.temperature, 4), t.draw), (t.prompt_length, t.tokens.tolist())) for t in found]
    assert len({key for key, _ in rows}) == len(rows)
    return dict(rows)


def written(path, texts, provenance=PROVENANCE):
    with growing(path, provenance) as folder:
        for each in texts:
            folder.add(each)
    return path


@pytest.fixture(scope="module")
def engine(tiny):
    return selfspec.load(tiny, draft="plain", threads=1)


@pytest.fixture
def answering(engine):
    prompts = [{"prompt": "abc"}, {"messages": [{"role": "user", "content": "x y"}]}, {"prompt": "hello"}]
    return Answering(engine, prompts, TEMPERATURES, seed=3, max_new_tokens=6)


def run(answering, path, slots=2):
    with growing(path, PROVENANCE | {"vocab_size": 259}) as folder:
        for _ in answering.run(folder, slots, "plain"):
            pass
    data = read_data(path)
    assert (folder.answer_tokens, len(folder), folder.shards) == (data.answer_tokens, len(data), len(data.shards))
    return plain(data)


def test_answers_are_those_of_generate(answering, engine, tmp_path):
    """Guards the seams of a text: prompt tokens, length, temperature and seed are those of one text alone."""
    found = run(answering, tmp_path / "d")
    assert len(found) == 9
    for source, prompt in enumerate(answering.prompts):
        tokens = engine.encode(**prompt)
        for index, temperature in enumerate(TEMPERATURES):
            seed = seed_of(3, (index << 32) + source)
            alone = engine.generate(tokens, temperature=temperature, seed=seed, max_new_tokens=6)
            assert found[source, temperature, 0] == (len(tokens), [*tokens, *alone.token_ids])
    seeds = {seed_of(seed, number) for seed in range(3) for number in range(99)}
    assert len(seeds) == 3 * 99  # a collision of 297 in 2^32 has odds of 1 in 100,000


def test_a_folder_goes_on_from_wherever_it_was_killed(answering, tmp_path, monkeypatch):
    """Guards every moment of a run, within a shard's, too: no text is lost, none is there twice."""
    monkeypatch.setattr(folders, "SHARD_TOKENS", 14)
    moments, path = [], tmp_path / "d"

    def photographed(function):
        def call(*args):
            result = function(*args)
            moments.append(shutil.copytree(path, tmp_path / f"moment{len(moments)}"))
            return result

        return call

    with monkeypatch.context() as patch:
        patch.setattr(folders.Folder, "add", photographed(folders.Folder.add))
        patch.setattr(folders, "write_shard", photographed(write_shard))
        want = run(answering, path)
    assert len(moments) == 9 + len(list(path.glob("*.safetensors"))) >= 12
    assert not list(path.glob("*.partial*"))
    kept = [(moment / "answers.partial").read_bytes().count(b"\n") - 1 for moment in moments]
    assert max(kept) < 9  # what is in a shard leaves the journal
    for moment in moments:
        assert run(answering, moment, slots=3) == want
        assert not list(moment.glob("*.partial*"))
    (cut := moments[0] / "answers.partial").write_bytes(b'{"batch": {"for')
    assert run(answering, cut.parent) == want


def test_a_target_of_tokens_is_met_without_preferring_short_texts(answering, engine, tmp_path):
    """Guards --tokens: texts under way are kept, prompts are answered again at temperatures above 0 only."""
    answering.tokens = 70
    found = run(answering, tmp_path / "d")
    answers = sum(len(tokens) - length for length, tokens in found.values())
    assert 70 <= answers <= 70 + 2 * 6
    assert {key for key in found if key[2] == 0} == {(s, t, 0) for s in range(3) for t in TEMPERATURES}
    again = {key for key in found if key[2] > 0}
    assert again
    assert all(temperature > 0 for _, temperature, _ in again)
    for source, temperature, draw in again:
        seed = seed_of(3, ((draw * 3 + TEMPERATURES.index(temperature)) << 32) + source)
        length, tokens = found[source, temperature, draw]
        options = {"temperature": temperature, "seed": seed, "max_new_tokens": 6}
        assert tokens[length:] == list(engine.generate(tokens[:length], **options).token_ids)
    answering.temperatures, answering.tokens = [0.0], 10_000
    assert len(run(answering, tmp_path / "greedy")) == 3


def test_prompts_that_cannot_be_answered_are_named(answering, tmp_path):
    """Guards long prompts and those that the model refuses: the others go on."""
    answering.prompts = [{"prompt": "x" * 50}, {"prompt": "ok"}, {"prompt": " "}]
    answering.max_prompt_tokens, answering.tokens = 45, 40
    assert {source for source, _, _ in run(answering, tmp_path / "d")} == {1}
    assert "more than the 45" in answering.left_out[0]
    assert "is empty" in answering.left_out[2]


def test_data_are_read_as_they_were_written(tmp_path):
    """Guards order, boundaries and counts, over shards and folders."""
    texts = [text([1, 2, 3], 2, 0.0), text([4, 5], 1, 1.0, 7, 2), text([6, 7, 8, 9], 1, 0.7, 1)]
    one = written(tmp_path / "a", texts[:2])
    written(one, texts[2:])
    two = written(tmp_path / "b", [text([3, 9], source=5)])
    data = read_data(one, two)
    assert (len(data), data.tokens, data.answer_tokens, data.vocab_size) == (4, 11, 6, 12)
    assert data.lengths.tolist() == [3, 2, 4, 2]
    assert [t.answer.tolist() for t in data] == [[3], [5], [7, 8, 9], [9]]
    assert [data[i].tokens.tolist() for i in range(4)] == [t.tokens.tolist() for t in data]
    assert plain(data) == plain([*texts, text([3, 9], source=5)])
    assert data[1].draw == 2
    with pytest.raises(IndexError):
        data[4]
    old = load_file(one / "answers-00000.safetensors")
    del old["draws"]
    save_file(old, one / "answers-00000.safetensors")
    assert [t.draw for t in read_data(one)] == [0, 0, 0]


def test_the_draft_vocabulary_is_what_is_counted(tmp_path):
    """Guards VocabTrim: answers count, then prompts, then ids; special tokens are in whatever happens."""
    texts = [text([7, 7, 4, 4, 5, 3], 2), text([3, 5, 4, 4], 1, source=4), text([2, 4, 5], 1, source=4, draw=1)]
    data = read_data(written(tmp_path / "d", texts))
    # answers: 4 five times, 5 three times, 3 once; prompts: 7 twice, 2 and 3 once
    for size, ids in [
        (2, [9, 11]),
        (3, [4, 9, 11]),
        (5, [3, 4, 5, 9, 11]),
        (6, [3, 4, 5, 7, 9, 11]),
        (8, [0, 2, 3, 4, 5, 7, 9, 11]),
        (99, list(range(12))),
    ]:
        assert draft_vocabulary(data, size)[0].tolist() == ids
    # each of the two prompts chooses for the other: the choice of the second (4, 5, 2) covers 2, 3, 3 tokens of the
    # answers to the first, that of the first (4, 3, 5) 3, 3, 5 tokens of those to the second
    assert [draft_vocabulary(data, size)[1] * 9 for size in (2, 3, 4, 5, 99)] == pytest.approx([0, 5, 6, 8, 9])
    one = read_data(written(tmp_path / "one", texts[:1]))
    assert draft_vocabulary(one, 3)[1] == 0.5  # nobody else could choose
    with pytest.raises(OptionError, match="special tokens alone are 2"):
        draft_vocabulary(data, 1)


def test_own_texts_are_answers_in_their_place(engine):
    """Guards where an answer begins and ends: as decoding would have it, up to the end-of-text token."""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"}]
    more = [*turns, {"role": "user", "content": "d"}, {"role": "assistant", "content": "e"}]
    lines = [{"messages": more}, {"prompt": "a", "response": "bc"}, {"text": "rst"}, {"text": "r"}, {"foo": 1}]
    lines += [{"messages": more[:1]}, {"prompt": "x" * 5000, "answer": "y"}]
    found = list(own_texts(engine, "\n".join(map(json.dumps, lines)).encode(), "f", 10))
    encode, eos = engine.tokenizer.encode, engine.config.eos_token_ids[0]
    first, second = (engine.encode(messages=more[:n]) for n in (1, 3))
    good = {(t.source, t.draw): (t.prompt_length, t.tokens.tolist()) for _, t in found if isinstance(t, Text)}
    assert good == {
        (10, 0): (len(first), [*first, *encode("bc"), eos]),
        (10, 1): (len(second), [*second, *encode("e"), eos]),
        (11, 0): (len(first), [*first, *encode("bc"), eos]),
        (12, 0): (1, encode("rst")),
    }
    bad = {source: str(error) for source, error in found if not isinstance(error, Text)}
    assert [
        word in bad[n] for n, word in [(13, "second token"), (14, "neither"), (15, "no answer"), (16, "no room")]
    ]
    assert set(bad) == {13, 14, 15, 16}
    pieces = [t for _, t in own_texts(engine, b"z" * 2050, "f")]
    assert [(t.prompt_length, len(t.tokens), t.draw) for t in pieces] == [(1, 1024, 0), (1, 1024, 1), (1, 2, 2)]


DAMAGE = {
    "prompts": ({"prompt_lengths": np.asarray([5], np.int32)}, "no prompt or no answer"),
    "ends": ({"ends": np.asarray([3], np.int64)}, "do not fill"),
    "types": ({"tokens": np.zeros(4, np.int64)}, "tokens is int64"),
    "counts": ({"sources": np.zeros(2, np.int32)}, "another number"),
    "heat": ({"temperatures": np.asarray([np.nan], np.float32)}, "temperature"),
    "more": ({"extra": np.zeros(1, np.int32)}, "it has extra"),
    "range": ({"tokens": np.asarray([1, 2, 3, 12], np.int32)}, "outside the model's 0 to 11"),
}


@pytest.mark.parametrize("kind", [*DAMAGE, "cut", "json", "format", "missing", "empty", "other"])
def test_damaged_folders_are_refused_in_one_line(kind, tmp_path):
    """Guards training against what is no data: the file is named."""
    path = written(tmp_path / "d", [text([1, 2, 3, 4])])
    shard, described, more = path / "answers-00000.safetensors", path / "data.json", []
    words = {"json": "data.json", "format": "format 2", "missing": "holds no data", "empty": "no texts yet"}
    match = words.get(kind, "damaged")
    if kind in DAMAGE:
        changes, match = DAMAGE[kind]
        save_file(load_file(shard) | changes, shard)
    elif kind == "cut":
        shard.write_bytes(shard.read_bytes()[:-1])
    elif kind == "json":
        described.write_text("{}")
    elif kind == "format":
        described.write_text(json.dumps(PROVENANCE | {"format": 2}))
    elif kind == "missing":
        described.unlink()
    elif kind == "empty":
        shard.unlink()
    elif kind == "other":
        match = "another checkpoint"
        more = [written(tmp_path / "e", [text([1, 2])], PROVENANCE | {"model": MODEL | {"fingerprint": "g"}})]
    with pytest.raises(OptionError, match=match) as error:
        read_data(path, *more)
    assert "\n" not in str(error.value)


def test_a_run_without_a_text_leaves_no_folder(tmp_path):
    """A wrong file left a folder that then refused the right one; what else is in a folder stays."""
    path = tmp_path / "d"
    with pytest.raises(KeyboardInterrupt), growing(path, PROVENANCE):
        raise KeyboardInterrupt
    assert not path.exists()
    path.mkdir()
    written(path, [])
    assert list(path.iterdir()) == []  # the user's own folder is not removed
    with growing(path, PROVENANCE):
        (path / "self-prompts.jsonl").touch()
    assert {file.name for file in path.iterdir()} == {"self-prompts.jsonl", "data.json"}
    written(path, [text([1, 2])])
    assert len(read_data(path)) == 1


def test_another_run_is_not_mixed_in(tmp_path):
    """Guards a folder against other options, strangers and a second process; a new version may go on."""
    path = written(tmp_path / "d", [text([1, 2])], PROVENANCE | {"self_prompts": {"count": 4}})
    with pytest.raises(OptionError, match="another seed"):
        written(path, [], PROVENANCE | {"seed": 4})
    with growing(path, PROVENANCE), pytest.raises(OptionError, match="another run is writing"):
        written(path, [])
    written(path, [text([3, 4], source=1)], PROVENANCE | {"version": "2", "self_prompts": {"count": 3}})
    found = read_data(path)
    assert len(found) == 2
    assert (found.provenance["version"], found.provenance["self_prompts"]) == ("1", {"count": 4})
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "thesis.tex").touch()
    for place in ("s", "s/thesis.tex"):
        with pytest.raises(OptionError, match="name"):
            written(tmp_path / place, [])


def test_what_a_broken_folder_says_is_short(tmp_path):
    """Guards the line: a fuzzed file had a format, and a header, of thousands of characters."""
    (tmp_path / "data.json").write_text(json.dumps({"format": "a" * 5000}))
    with pytest.raises(OptionError, match="is not what `selfspec train data` writes: format 'aaa") as refused:
        read_data(tmp_path)
    assert len(str(refused.value)) < 400 + len(str(tmp_path))
    header = json.dumps({"__metadata__": "a" * 5000}).encode()
    shard = tmp_path / "answers-00000.safetensors"
    shard.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(OptionError, match="is damaged") as refused:
        read_shard(shard)
    assert len(str(refused.value)) < 500 + len(str(tmp_path))
