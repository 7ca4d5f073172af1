"""`selfspec profile`: tables, one JSON document, and a file that a later run goes on with."""

from __future__ import annotations

import json
import signal
import time

import pytest

from selfspec.measure import profile as profiling
from selfspec.measure.passes import Ceiling

SMALL = ("--max-new-tokens", 6, "--gamma", 2, "--contexts", 8, "--limit", 1, "--pairs", 2, "--ignore-eos")


@pytest.fixture
def profile(call, tiny, data, monkeypatch):
    """The verb on the tiny model; the machine is not measured, which takes seconds."""
    monkeypatch.setattr(profiling, "measure_ceiling", lambda _: Ceiling(10**6, 2 * 10**6, 10**9, 10**10, 0.1))
    monkeypatch.setattr(profiling, "REPETITIONS", 2)

    def run(*args):
        return call("profile", "--model", tiny, "--data", data, *SMALL, *args)

    return run


def test_tables_for_people(profile):
    """Guards the page: every part of the profile is there, both temperatures, nothing left out."""
    result = profile("--points", "3:2")
    assert result.exit_code == 0, result.output
    page = result.stdout
    titles = ["roofline", "passes of T rows", "a plain round at temperature 0", "exits at temperature 0:"]
    titles += ["exits at temperature 0.8", "predicted S at temperature 0 ", "predicted S at temperature 0.8"]
    titles += ["S predicted and measured"]
    places = [page.index(title) for title in titles]
    assert places == sorted(places)
    assert "LEFT OUT" not in page


def test_one_document(profile):
    """Guards --json: nothing else on stdout; every exit, every point, measured ones with their pairs."""
    result = profile("--points", "3:2", "--check", 1, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [row["exit_layer"] for row in found["exits"]["0.8"]] == [1, 2, 3]
    assert {(p["exit_layer"], p["gamma"]) for p in found["points"]["0"]} == {
        (k, g) for k in (1, 2, 3) for g in (1, 2)
    }
    assert (found["checks"][0]["exit_layer"], found["checks"][0]["gamma"]) == (3, 2)
    assert all(check["measured"]["pairs"] == check["equal_answers"] == 2 for check in found["checks"])
    assert found["passes"][0]["v"][0] == 1.0
    assert found["roofline"][0]["kv_bytes"] > 0
    assert found["left_out"] == {}


def test_a_file_is_gone_on_with(profile, call, tiny, tmp_path, monkeypatch):
    """Guards --out: what is there is kept, another budget, check or number of pairs goes on; auto reads it."""
    out = tmp_path / "profile.json"
    first = profile("--out", out, "--check", 0, "--json")
    assert first.exit_code == 0, first.output
    kept = json.loads(out.read_text())
    assert {name: kept[name] for name in json.loads(first.stdout)} == json.loads(first.stdout)

    def never(*_):
        raise AssertionError("measured again")

    monkeypatch.setattr(profiling, "measure_agreement", never)
    monkeypatch.setattr(profiling, "pass_seconds", never)
    monkeypatch.setattr(profiling.Probe, "grid", never)
    second = profile("--out", out, "--check", 1, "--budget", "1m")
    assert second.exit_code == 0, second.output
    assert "S predicted and measured" in second.stdout
    now = json.loads(out.read_text())
    assert {**now["units"], "checks": {}} == {**kept["units"], "checks": {}}
    assert len(now["units"]["checks"]) == 2
    using = ("generate", "hello", "--model", tiny, "--profile", out, "--max-new-tokens", 4)
    for more, is_other in (((), False), (("--bits", 8), True)):
        result = call(*using, *more)
        assert result.exit_code == 0, result.output
        assert ("with another fingerprint and precision" in result.stderr) is is_other
    assert {path.name for path in tmp_path.iterdir()} == {"data.jsonl", "profile.json"}, "nothing is left aside"


@pytest.mark.parametrize(
    ("args", "words"), [(("--gamma", 1), "another options"), (("--bits", 8), "another precision")]
)
def test_a_file_of_something_else_is_refused(profile, refused, tiny, data, tmp_path, args, words):
    """Guards against a mixture: nothing is measured, and the file stays as it was."""
    out = tmp_path / "profile.json"
    assert profile("--out", out, "--check", 0).exit_code == 0
    before = out.read_bytes()
    profile(*args, "--check", 0)  # what is converted once is converted now
    line = refused("profile", "--model", tiny, "--data", data, *SMALL, "--out", out, *args)
    assert words in line
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"identity": {}, "units": {}}', '{"identity": {"a": 1}, "units": 3}']
)
def test_a_file_that_is_no_profile_is_refused(refused, tiny, tmp_path, text):
    """Guards somebody's file: it is neither read as something nor replaced."""
    out = tmp_path / "notes.txt"
    out.write_text(text)
    assert "no profile" in refused("profile", "--model", tiny, "--out", out)
    assert out.read_text() == text


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--budget", "soon"), "such as 90s, 2m or 1h"),
        (("--points", "4:1"), "it must be 1 to 3"),
        (("--points", "2:9"), "must be 1 to 8"),
        (("--contexts", "0x"), "numbers of tokens"),
        (("--contexts", "4096"), "leaves room"),
        (("--tasks", "c"), "there are a, b"),
        (("--data", "/no/file"), "cannot be read"),
        (("--out", "/no/folder/file"), "cannot be written"),
        (("--out", "/"), "is a folder"),
        (("--max-new-tokens", 5000), "no prompt fits"),
        (("--temperature", "warm"), "numbers from 0"),
    ],
)
def test_a_mistake_is_one_line(refused, tiny, data, args, words):
    """Guards every check that is made before measuring: nothing is printed but the error."""
    assert words in refused("profile", "--model", tiny, "--data", data, *args)


def test_answers_without_a_round_predict_nothing_and_say_so(call, tiny, data, monkeypatch):
    """Guards an empty result: where every answer has one token, the page says why there is no prediction."""
    monkeypatch.setattr(profiling, "measure_ceiling", lambda _: None)
    monkeypatch.setattr(profiling, "REPETITIONS", 1)
    right = profiling.Profile._answer
    monkeypatch.setattr(profiling.Profile, "_answer", lambda *args: right(*args) | {"overlaps": None})
    result = call("profile", "--model", tiny, "--data", data, *SMALL, "--temperature", 0)
    assert result.exit_code == 0, result.output
    assert "no prediction: no answer has a second token" in result.stdout
    assert "roofline: not measured" in result.stdout


def test_an_interrupted_run_has_kept_what_it_measured(spawn, tiny, data, tmp_path):
    """Guards resumption for real: Ctrl-C, one line, a whole file, and the rest is measured by the next run."""
    out = tmp_path / "profile.json"
    flags = (
        "--data",
        data,
        "--max-new-tokens",
        200,
        "--gamma",
        2,
        "--budget",
        "1h",
        "--contexts",
        "8",
        "--out",
        out,
    )
    process = spawn("profile", "--model", tiny, *flags)
    until = time.monotonic() + 60
    while not (out.exists() and "answers" in json.loads(out.read_text())["units"]):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert b"run the same command again" in process.stderr.read()
    found = json.loads(out.read_text())
    assert len(found["units"]["passes"]) == 15
    assert "left_out" not in found, "an unfinished run has no result"
