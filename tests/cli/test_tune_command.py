"""`selfspec tune`: from prompts to a file that other verbs draft by, and back to none."""

from __future__ import annotations

import json

import pytest

import selfspec
from selfspec import tuned
from selfspec.measure import profile as profiling
from selfspec.measure import race

SMALL = ("--max-new-tokens", 8, "--gamma", 2, "--budget", "1s", "--finalists", 1, "--ignore-eos", "--threads", 1)


@pytest.fixture
def home(tmp_path, monkeypatch, tiny):
    """A cache folder of its own; the machine is not measured, and every section is short."""
    monkeypatch.setenv("SELFSPEC_CACHE", str(tmp_path / "cache"))
    selfspec.load(tiny)  # packs it
    monkeypatch.setattr(profiling, "measure_ceiling", lambda _: None)
    monkeypatch.setattr(profiling, "REPETITIONS", 1)
    monkeypatch.setattr(race, "MIN_PAIRS", 2)
    monkeypatch.setattr(race, "_MOST_ROUNDS", 1)
    return tmp_path / "cache" / "tuned"


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"Say {i}", "task": "t"}) for i in range(4)))
    return path


@pytest.fixture
def tune(call, home, tiny, prompts):
    """The verb on the tiny model."""
    return lambda *args: call(
        "tune", "--model", tiny, "--data", prompts, "--drafts", "early_exit,suffix,auto", *SMALL, *args
    )


def test_what_is_found_is_kept_used_and_forgotten(tune, call, tiny, home, tmp_path):
    """Guards the whole: the page, the file, `generate` by it, --no-tuned, --explain, another number of threads, and
    --forget."""
    result = tune("--out", tmp_path / "found.json")
    assert result.exit_code == 0, result.output
    for part in ("contenders", "on held-out prompts", "3 prompts to tune on, 1 held out", "kept in"):
        assert part in result.stdout
    (path,) = home.iterdir()
    found = json.loads(path.read_text())
    assert json.loads((tmp_path / "found.json").read_text()) == found | {"file": str(path)}
    assert found["recommendation"] in result.stdout
    assert {row["kind"] for row in found["contenders"]} == {"early_exit", "suffix", "auto"}
    assert found["tuning_prompts"] == 3
    assert all(column["equal_answers"] == column["answers"] for column in found["held_out"]["columns"].values())
    # whatever a clock of milliseconds chose: this is what must be drafted by
    found["choice"] = {"draft": "early_exit:exit_layer=1", "uses_profile": False}
    tuned.save(found, path)
    using = ("generate", "hello", "--model", tiny, "--max-new-tokens", 4, "--json", "--threads", 1)
    for more, draft, said in (
        ((), "early_exit", ""),
        (("--no-tuned",), "auto", ""),
        (("--gamma", 2), "auto", ""),
        (("--draft", "suffix"), "suffix", ""),
        (("--explain",), "auto", ""),
        (("--threads", 2), "auto", "with other threads"),
    ):
        result = call(*using, *more)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["draft"] == draft, more
        assert said in result.stderr
        assert result.stderr.count("tuned") == bool(said) * 2, result.stderr
    for said in ("forgotten: 1", "nothing was tuned"):
        result = tune("--forget")
        assert (result.exit_code, result.stdout) == (0, "")
        assert said in result.stderr
    assert list(home.iterdir()) == []


def test_one_document_of_two_precisions_and_nothing_kept(tune, home):
    """Guards --json, --also-bits and --no-save: one line, a result for each precision, no file."""
    result = tune("--also-bits", "8", "--no-save", "--json", "--drafts", "suffix")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [document["precision"] for document in found] == ["float32", "int8"]
    assert [document["file"] for document in found] == [None, None]
    assert not home.exists()


def test_an_interrupted_run_goes_on(tune, home, monkeypatch):
    """Guards Ctrl-C: what was measured is in the folder, the next run goes on with it, and clears it away."""
    track = race.Track.run

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(race.Track, "run", stopped)
    result = tune()
    assert result.exit_code == 130
    assert "run the same command again" in result.stderr
    (work,) = home.iterdir()
    answers = json.loads(work.read_text())["units"]["answers"]
    assert len(answers) >= 1

    monkeypatch.setattr(race.Track, "run", track)
    monkeypatch.setattr(profiling.Probe, "grid", stopped)  # what is there is not timed again
    result = tune("--budget", "2s")
    assert result.exit_code == 0, result.output
    assert [path.suffix for path in home.iterdir()] == [".json"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--for", "size"), "--for is 'size'"),
        (("--for", "latency@0"), "latency@N"),
        (("--budget", "soon"), "budget is 'soon'"),
        (("--drafts", "nobody"), "'nobody'"),
        (("--drafts", "plain"), "compared with anyway"),
        (("--drafts", "ngram:gamma=x"), "an integer"),
        (("--temperature", "0,1"), "tuned for one"),
        (("--max-new-tokens", 4), "at least 8"),
        (("--finalists", 0), "finalists"),
        (("--also-bits", "5"), "--also-bits is '5'"),
        (("--also-bits", "8,8"), "each once"),
        (("--bits", 8, "--also-bits", "8"), "leave one out"),
        (("--data", "nowhere.jsonl"), "nowhere.jsonl"),
        (("--tasks", "x"), "no task 'x'"),
        (("--limit", 1), "two different prompts"),
        (("--out", "no/such/file"), "its folder does not exist"),
        (("--drafts", "early_exit:exit_layer=9"), "exit layer is 9"),
    ],
)
def test_bad_input_is_one_line(refused, home, tiny, prompts, args, words):
    """Guards exit code 2 and one line; nothing is half-written, not even the work of a run."""
    line = refused("tune", "--model", tiny, "--data", prompts, *SMALL, *args)
    assert words in line
    assert not home.exists() or list(home.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said_first(refused, home, tiny, prompts):
    """Guards minutes of work: a file in the place of the folder is found before anything is measured."""
    home.write_text("")
    line = refused("tune", "--model", tiny, "--data", prompts, *SMALL)
    assert "cannot be made" in line
    assert "--no-save" in line
