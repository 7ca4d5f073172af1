"""`selfspec bundle`: whole or not at all, complete by itself, and one line for what cannot be."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

import selfspec
from selfspec.cli.main import VERBS
from selfspec.errors import OptionError
from selfspec.export import bundle as bundling
from selfspec.export.install import machine

WORDS = ("one two one two", "--max-new-tokens", "6", "--ignore-eos")


def profile_of(fingerprint):
    """The least that a finished profile has; of another machine."""
    identity = {"fingerprint": fingerprint, "runtime": "cpu", "runs_on": "cpu", "precision": "float32"}
    identity["machine"] = {"platform": "elsewhere"}
    return {"identity": identity, "passes": [{"seconds": [1.0, 1.1]}], "exits": {}}


@pytest.fixture
def small(monkeypatch):
    """Bundles of two wheels: all of them take seconds."""
    monkeypatch.setattr(bundling, "needed", lambda _: [distribution("jinja2"), distribution("markupsafe")])


@pytest.fixture
def made(call, tiny, small, tmp_path):
    """A bundle in 8 bits, and what was said of it."""
    done = call("bundle", tiny, "--out", tmp_path / "box", "--bits", 8, "--json")
    assert done.exit_code == 0, done.output
    return tmp_path / "box", json.loads(done.stdout)


def test_it_is_complete_and_its_model_loads(made, tiny):
    """Guards the contents: every file is in SHA256SUMS, and model/ is the model that was packed."""
    box, said = made
    files = {path.relative_to(box).as_posix() for path in box.rglob("*") if path.is_file()}
    sums = dict(reversed(line.split("  ")) for line in (box / "SHA256SUMS").read_text().splitlines())
    assert files - {"SHA256SUMS"} == set(sums)
    assert all(hashlib.sha256((box / name).read_bytes()).hexdigest() == digest for name, digest in sums.items())
    top = {"README.txt", "install.py", "machine.json", "model", "run.sh", "SHA256SUMS", "wheels"}
    assert {path.name for path in box.iterdir()} == top
    assert {path.name for path in (box / "wheels").iterdir()} == set(said["wheels"])
    assert len(said["wheels"]) == 2
    assert (said["model"], said["precision"], said["folder"]) == ("tiny", "int8", str(box))
    assert os.access(box / "run.sh", os.X_OK)
    assert json.loads((box / "machine.json").read_text()) == machine()
    assert machine()["python"] in (box / "README.txt").read_text()
    (want, got) = (
        selfspec.load(model, bits=8).generate([1, 2, 1, 2], max_new_tokens=8) for model in (tiny, box / "model")
    )
    assert want.token_ids == got.token_ids
    assert [path.name for path in box.parent.iterdir()] == ["box"], "nothing is left aside"


def test_what_cannot_be_bundled_is_one_line(refused, call, tiny, made, tmp_path):
    """Guards the refusals; nothing is written for any of them."""
    box, _ = made
    (tmp_path / "other.json").write_text(json.dumps(profile_of("0")))
    new = tmp_path / "new"
    for options, words in [
        (("--out", box), r"--out '.*box' is there already; name a new folder, or remove it"),
        (("--out", tmp_path / "no" / "box"), "cannot be written: its folder does not exist"),
        (("--out", "/proc/box"), "cannot write '/proc/box': No such file or directory; free some space, or name"),
        (("--out", new, "--bits", 5), "bits is 5; it must be one of 4, 8, 16, 32"),
        (("--out", new, "--profile", tmp_path / "none.json"), "there is no none.json"),
        (("--out", new, "--profile", box / "machine.json"), "is no finished file of `selfspec profile --out`"),
        (("--out", new, "--profile", tmp_path / "other.json"), "belongs to other weights or bits"),
    ]:
        assert re.search(words, refused("bundle", tiny, *options))
    assert "no folder or file" in refused("bundle", "./nothing", "--out", new)
    assert "is packed in int8" in refused("bundle", box / "model", "--out", new, "--bits", 4)
    assert {path.name for path in tmp_path.iterdir()} == {"box", "other.json"}


def test_an_interruption_leaves_nothing(call, tiny, small, tmp_path, monkeypatch):
    """Guards half bundles: they appear whole, by one rename."""

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(bundling, "write_wheel", interrupt)
    assert call("bundle", tiny, "--out", tmp_path / "box").exit_code == 130
    assert not list(tmp_path.iterdir())


def test_a_profile_of_these_weights_goes_along(call, tiny, small, tmp_path):
    """Guards --profile: a file of these very weights is taken as it is."""
    about = profile_of(selfspec.load(tiny, bits=4).fingerprint)
    (tmp_path / "p.json").write_text(json.dumps(about))
    done = call("bundle", tiny, "--out", tmp_path / "box", "--bits", 4, "--profile", tmp_path / "p.json")
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "box" / "profile.json").read_text()) == about
    assert "profile.json" in (tmp_path / "box" / "README.txt").read_text()


def test_a_draft_in_fewer_bits_goes_along(call, tiny, small, tmp_path):
    """Guards `--draft quantized`: the box has no checkpoint to pack anew, so its weights lie in the bundle."""
    box = tmp_path / "box"
    done = call("bundle", tiny, "--out", box, "--bits", 16, "--draft", "quantized:draft_bits=4", "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert (said["precision"], said["draft_bits"]) == ("bfloat16", [4])
    assert said["model_bytes"] == sum(path.stat().st_size for path in (box / "model").rglob("packed.bin"))
    assert (box / "draft").read_text() == "quantized:draft_bits=4\n"
    assert "quantized:draft_bits=4" in (box / "README.txt").read_text()
    ask = {"draft": "quantized", "draft_bits": 4, "max_new_tokens": 24, "ignore_eos": True}
    want, got = (selfspec.load(m, bits=16).generate([1, 2, 1, 2], **ask) for m in (tiny, box / "model"))
    assert got.token_ids == want.token_ids
    assert got.stats.drafted == want.stats.drafted > 0, "the same weights draft"
    assert "int8" not in os.listdir(box / "model")
    with pytest.raises(OptionError, match="is packed in bfloat16"):
        selfspec.load(box / "model", draft="quantized", draft_bits=8)
    again = call(
        "bundle", box / "model", "--out", tmp_path / "again", "--draft", "auto:candidates=(quantized:draft_bits=4)"
    )
    assert again.exit_code == 0, again.output
    for name in ("packed.bin", "int4/packed.bin"):
        assert (tmp_path / "again" / "model" / name).read_bytes() == (box / "model" / name).read_bytes()


def test_a_draft_that_a_box_could_not_make_is_one_line(refused, tiny, small, tmp_path):
    """Guards bundles against drafts that would fail on the box alone: another model, a file of this machine."""
    new, corpus = tmp_path / "new", tmp_path / "corpus.txt"
    corpus.write_text("one two")
    (tmp_path / "p.json").write_text(json.dumps(profile_of(selfspec.load(tiny, bits=8).fingerprint)))
    for draft, words in [
        ("nothing", "drafter is 'nothing'; it must be one of"),
        ("ngram:depth=3", "has no option depth"),
        (f"draft_model:draft_model={tiny}", "the draft opens '.*', and a bundle has one model; name another draft"),
        (f"suffix:corpus={corpus}", "the draft has corpus '.*corpus.txt', a file of this machine"),
        (f"auto:candidates=(ngram,suffix:corpus={corpus})", "a file of this machine"),
        ("quantized:draft_bits=8", "draft_bits is 8, but this model runs in int8; it must be fewer: 4"),
    ]:
        assert re.search(words, refused("bundle", tiny, "--out", new, "--bits", 8, "--draft", draft))
    asked = ("--bits", 8, "--draft", "ngram", "--profile", tmp_path / "p.json")
    assert "a profile is for the draft auto" in refused("bundle", tiny, "--out", new, *asked)
    assert not new.exists()


def test_the_script_drafts_as_the_bundle_says(call, tiny, small, tmp_path):
    """Guards run.sh: the draft is that of the bundle where nobody names one, for verbs with such a flag."""
    box, venv = tmp_path / "box", tmp_path / "venv"
    assert call("bundle", tiny, "--out", box, "--draft", "suffix:gamma=3").exit_code == 0
    (venv / "bin").mkdir(parents=True)
    (venv / "ready").write_text(f"{venv}\n")
    (venv / "bin" / "python").write_text('#!/bin/sh\nshift 3\necho "$@"\n')
    (venv / "bin" / "python").chmod(0o755)

    def said(*words):
        return on_the_box(box, *words, SELFSPEC_VENV=str(venv)).stdout.strip()

    model, own = f"--model {box / 'model'}", "--draft suffix:gamma=3"
    assert said("a prompt", "--seed", "1") == f"generate {model} {own} a prompt --seed 1"
    assert said() == f"chat {model} {own}"
    assert said("serve", "--drafts", "ngram") == f"serve {model} {own} --drafts ngram"
    assert said("batch", "a", "--draft", "plain") == f"batch {model} a --draft plain"
    assert said("generate", "--draft=plain") == f"generate {model} --draft=plain"
    assert said("certify") == f"certify {model}"


def on_the_box(box, *words, **environment):
    """The script with nothing around it; gives what it printed, or the line of its error."""
    where = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "HOME": "/nowhere"} | environment
    return subprocess.run([box / "run.sh", *words], env=where, cwd="/", capture_output=True, text=True, check=False)


def test_the_script_says_what_a_box_lacks(made):
    """Guards a fleet: another machine, no Python, a damaged wheel, a folder not to be written: one line each."""
    box, _ = made
    assert "run.sh: there is no /no/python; install" in on_the_box(box, PYTHON="/no/python").stderr
    assert "set SELFSPEC_VENV" in on_the_box(box, SELFSPEC_VENV="/proc/nowhere/venv").stderr
    wheel = next((box / "wheels").glob("*.whl"))
    wheel.write_bytes(wheel.read_bytes()[:-1])
    done = on_the_box(box)
    assert done.stderr == f"run.sh: {wheel} is damaged; copy the bundle again\n"
    (box / "machine.json").write_text(json.dumps({**machine(), "python": "CPython 3.99", "abi": "cpython-399"}))
    done = on_the_box(box)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert re.search(r"this bundle needs CPython 3.99 on .* and .* is .*; set PYTHON to the right one", done.stderr)
    assert not (box / ".venv").exists()


def test_the_script_names_verbs_that_take_a_model(call):
    """Guards run.sh against verbs that come and go."""
    script = Path(bundling.__file__).with_name("run.sh").read_text()
    named = set(re.search(r"^(generate .*)\)$", script, re.MULTILINE)[1].split(" | "))
    assert named == {verb for verb in VERBS if re.search(r"^  --model ", call(verb, "--help").stdout, re.MULTILINE)}


@pytest.mark.slow
def test_a_bundle_runs_without_a_network(call, tiny, tmp_path):
    """Guards the whole: made by one command, it installs itself where no network is, starts again, and can move."""
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps(profile_of(selfspec.load(tiny).fingerprint)))
    draft = ("--draft", "auto:candidates=(suffix,quantized:draft_bits=4)")
    done = call("bundle", tiny, "--out", tmp_path / "box", "--profile", profile, *draft)
    assert done.exit_code == 0, done.output
    want = call("generate", *WORDS, "--model", tiny).stdout
    alone = ["unshare", "-rn"] if shutil.which("unshare") else []
    if subprocess.run([*alone, "true"], check=False).returncode:
        alone = []  # a container that may not make one

    def run(box, *words):
        where = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable}
        command = [*alone, box / "run.sh", *words]
        return subprocess.run(command, env=where, cwd="/", capture_output=True, text=True, check=True)

    first, second = (run(tmp_path / "box", *WORDS) for _ in range(2))
    assert "installing" in first.stderr
    assert "installing" not in second.stderr
    assert first.stdout == second.stdout == want
    assert "another runs_on and machine" in second.stderr, "the profile goes to the controller"
    assert "another" not in run(tmp_path / "box", *WORDS, "--draft", "plain").stderr
    assert run(tmp_path / "box", "generate", "--help").stdout.startswith("Usage:")
    assert "--port" in run(tmp_path / "box", "serve", "--help").stdout  # the extra came along
    (tmp_path / "box").rename(tmp_path / "moved")
    moved = run(tmp_path / "moved", *WORDS)
    assert (moved.stdout, "installing" in moved.stderr) == (want, True)
