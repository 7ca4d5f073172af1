"""Faults from outside: disks that fill up, kills, two processes, little memory, clocks that jump.

Conversions have theirs in tests/model/test_conversion_cache.py, packing in test_packed_cache.py, data for heads in
tests/train/test_data.py, training in test_heads_training.py, the server in tests/server.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import time
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from random_heads import random_facts, random_head

import selfspec
from selfspec import journal, tuned
from selfspec.decode import Loop
from selfspec.documents import write_whole
from selfspec.errors import OptionError, OutOfMemoryError
from selfspec.loading import has_native
from selfspec.model.head_file import write_head
from selfspec.train.shards import Text, read_shard, write_shard

linux = pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="limits as Linux has them")
FORKS = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns of forks beside threads


@contextmanager
def small_files(size):
    """No file may grow beyond ``size`` bytes in here: the write fails half-way, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# -- whole or not at all ----------------------------------------------------------------------------------


def _text(path, number):
    write_whole(path, f"{number}" * 9000)


def _tuned(path, number):
    tuned.save({"number": number, "more": "x" * 9000}, path)


def _head(path, number):
    write_head(path, random_head(random_facts("exit_head", "linear"), seed=number))


def _results(path, number):
    with journal.opened(path, {"number": number}, overwrite=True) as kept:
        kept.add(1, {"text": f"{number}" * 9000})
        kept.finish([1])


WRITERS = {"document": _text, "tuned": _tuned, "head": _head, "batch": _results}
WRONG = (OptionError, OSError)  # the command line makes one line of both


@pytest.mark.parametrize("name", WRITERS)
def test_a_disk_that_fills_up_leaves_the_old_file(name, tmp_path):
    """Guards every file that is replaced: what was there stays whole, and it works again."""
    write, path = WRITERS[name], tmp_path / "out"
    write(path, 1)
    before = path.read_bytes()
    with small_files(3000), pytest.raises(WRONG):
        write(path, 2)
    assert path.read_bytes() == before
    assert {file.name for file in tmp_path.iterdir()} <= {"out", "out.partial"}
    write(path, 2)
    assert path.read_bytes() != before
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("name", WRITERS)
def test_an_error_of_the_last_step_leaves_the_old_file(name, tmp_path, monkeypatch):
    """Guards the renaming, which fails on a disk that has become read-only."""
    write, path = WRITERS[name], tmp_path / "out"
    write(path, 1)
    before = path.read_bytes()

    def fails(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fails)
        with pytest.raises(WRONG, match="Read-only"):
            write(path, 2)
    assert path.read_bytes() == before
    write(path, 2)
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


@linux
@FORKS
@pytest.mark.parametrize("name", WRITERS)
def test_a_kill_in_the_middle_of_a_write_leaves_the_old_file(name, tmp_path, monkeypatch):
    """Guards SIGKILL between the writing and the renaming; the next write needs no hand."""
    write, path = WRITERS[name], tmp_path / "out"
    write(path, 1)
    before = path.read_bytes()
    child = os.fork()
    if child == 0:
        Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        write(path, 2)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert path.read_bytes() == before
    write(path, 2)
    assert path.read_bytes() != before


@linux
@FORKS
@pytest.mark.parametrize("name", ["document", "tuned", "head"])
def test_two_processes_that_write_at_once_leave_one_whole_file(name, tmp_path):
    """Guards names of scratch files: readers see one of the two contents, never a mixture or none."""
    write, path = WRITERS[name], tmp_path / "out"
    whole = set()
    for number in (1, 2):
        write(path, number)
        whole.add(path.read_bytes())
    children = []
    for number in (1, 2):
        children.append(os.fork())
        if not children[-1]:
            for _ in range(60):
                write(path, number)
            os._exit(0)
    running = set(children)
    while running:
        assert path.read_bytes() in whole
        running -= {child for child in running if os.waitpid(child, os.WNOHANG)[0]}
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_a_shard_that_does_not_fit_is_none(tmp_path):
    """Guards data for heads: one line, no half of a file, and the number is used again."""
    texts = [Text(np.arange(4000, dtype=np.int32), 1, 0.0, 0)]
    with small_files(3000), pytest.raises(OptionError, match=r"cannot be written.*what is done is kept"):
        write_shard(tmp_path, texts)
    assert list(tmp_path.iterdir()) == []
    assert len(read_shard(write_shard(tmp_path, texts))) == 1


# -- long runs --------------------------------------------------------------------------------------------


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(f'{{"prompt": "abc {n}"}}\n' for n in range(12)))
    return path


@linux
def test_a_batch_on_a_full_disk_ends_in_one_line_and_goes_on(call, tiny, prompts, tmp_path):
    """Guards the journal: what was answered before the disk was full is not answered again, none is lost."""
    flags = ["--model", tiny, "--max-new-tokens", "12", "--slots", "2", "--threads", "1"]
    assert call("batch", prompts, tmp_path / "want", *flags).exit_code == 0
    with small_files(6000):
        result = call("batch", prompts, tmp_path / "out", *flags)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith("selfspec: error: ")
    assert "File too large" in result.stderr
    assert not (tmp_path / "out").exists()
    kept = (tmp_path / "out.partial").read_bytes().count(b"\n") - 1
    assert 0 < kept < 12
    result = call("batch", prompts, tmp_path / "out", *flags)
    assert result.exit_code == 0
    want, found = (
        [json.loads(line)["token_ids"] for line in (tmp_path / name).read_text().splitlines()]
        for name in ("want", "out")
    )
    assert found == want
    assert not list(tmp_path.glob("out.*"))


@linux
def test_a_batch_that_is_killed_goes_on(spawn, call, tiny, prompts, tmp_path):
    """Guards SIGKILL at any moment: the lock is free, the last line may be cut, the result is the same."""
    flags = ["--model", tiny, "--max-new-tokens", "300", "--ignore-eos", "--slots", "2", "--threads", "1"]
    process = spawn("batch", prompts, tmp_path / "out", *flags)
    partial = tmp_path / "out.partial"
    end = time.monotonic() + 60
    while not partial.exists() or partial.read_bytes().count(b"\n") < 3:
        assert time.monotonic() < end, process.stderr.read()
        time.sleep(0.005)
    assert call("batch", prompts, tmp_path / "out", *flags).exit_code == 2  # two at once
    process.kill()
    process.wait()
    with partial.open("ab") as file:
        file.write(b'{"line": 99, "te')
    assert call("batch", prompts, tmp_path / "out", *flags).exit_code == 0
    assert len((tmp_path / "out").read_text().splitlines()) == 12


@linux
def test_a_full_disk_behind_stdout_is_one_line(spawn, tiny):
    """Guards `selfspec ... > FILE`: not a traceback at the end of the interpreter."""
    with open("/dev/full", "wb") as full:
        process = spawn("generate", "hi", "--model", tiny, "--max-new-tokens", "3", "--threads", "1", stdout=full)
        said = process.communicate(timeout=60)[1].decode().splitlines()
    assert process.returncode == 2
    assert "No space left on device" in said[-1]
    assert not [line for line in said if "Traceback" in line]


# -- memory -----------------------------------------------------------------------------------------------


@linux
@FORKS
@pytest.mark.skipif(not has_native(), reason="the limit is too low for torch")
def test_memory_that_runs_out_is_one_line_and_the_engine_goes_on(tiny):
    """Guards a cache that does not fit: the error says so, and a smaller request is answered all the same."""
    engine = selfspec.load(tiny, threads=1, draft="plain", max_new_tokens=5)
    want = engine.generate("hi").token_ids
    child = os.fork()
    if child == 0:
        status = 1
        try:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + 200 * 2**20
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            try:
                list(engine.batch(["hi"] * 900, slots=900, max_new_tokens=4000))  # 0.9 GB of keys and values
            except OutOfMemoryError as error:
                status = 2 + ("\n" in str(error) or engine.generate("hi").token_ids != want)
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


# -- clocks -----------------------------------------------------------------------------------------------


def leaping(steps):
    """A clock that moves by these seconds, one after the other, for ever."""
    now, at = 1000.0, count()

    def clock():
        nonlocal now
        now += steps[next(at) % len(steps)]
        return now

    return clock


@pytest.mark.parametrize(
    "steps",
    [[0.001, -0.5, 0.001], [0.0], [0.001, 86400.0 * 365], [-1e-9]],
    ids=["back", "stands", "leaps", "creeps back"],
)
@pytest.mark.parametrize("draft", ["auto", "ngram", "early_exit:exit_layer=2", "suffix>early_exit:exit_layer=2"])
def test_clocks_that_jump_change_no_text(tiny, monkeypatch, steps, draft):
    """Guards the controller, look-up and figures: a clock may leap, stand or (virtual machines) go back.

    Texts are the same, and what is reported is JSON.
    """
    engine = selfspec.load(tiny, **({"threads": 1} if has_native() else {"dtype": "float64"}))
    options = {"max_new_tokens": 40, "ignore_eos": True}
    want = engine.generate("abc abc abc", draft="plain", **options).token_ids
    begin = Loop.__init__
    monkeypatch.setattr(
        Loop, "__init__", lambda loop, context, *_, **__: begin(loop, context, clock=leaping(steps))
    )
    monkeypatch.setattr(time, "perf_counter", leaping(steps))
    for _ in range(3):
        made = engine.generate("abc abc abc", draft=draft, **options)
        assert made.token_ids == want
        json.dumps(selfspec.documents.finite(made.to_dict()), allow_nan=False)
