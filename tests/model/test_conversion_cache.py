import errno
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from filelock import FileLock

from selfspec.errors import ModelError
from selfspec.model import disk as disk_module
from selfspec.model import find_checkpoint
from selfspec.model.cache import cache_folder, converted

SAID = "converting"


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("SELFSPEC_CACHE", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source.gguf"
    path.write_bytes(b"source")
    return path


def fill(source, folder):
    (folder / "a").write_text("aaaa")
    (folder / "b").write_text("bbbb")


def never(source, folder):
    raise AssertionError("converted again")


def quiet(message):
    pass


def left(home):
    """Everything in the cache but the locks."""
    return sorted(path.name for path in home.iterdir() if path.suffix != ".lock")


def run(script, home, *arguments):
    code = "import sys, time, os\nfrom pathlib import Path\n" + textwrap.dedent(script)
    environment = {**os.environ, "SELFSPEC_CACHE": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_once(source, home):
    """A second call, another name or another time stamp of the same content convert nothing."""
    said = []
    entry = converted(source, fill, said.append)
    assert [SAID in line for line in said] == [True]
    assert converted(source, never, said.append) == entry
    copy = source.with_name("other.gguf")
    copy.write_bytes(source.read_bytes())
    assert converted(copy, never, said.append) == entry
    assert len(said) == 1
    assert left(home) == [entry.name]
    source.write_bytes(b"another")
    assert converted(source, fill, quiet) != entry


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: (entry / "a").write_text("aaba"),
        lambda entry: (entry / "a").write_text("aaa"),
        lambda entry: (entry / "b").unlink(),
        lambda entry: (entry / "extra").write_text("x"),
        lambda entry: (entry / "selfspec.json").write_text("{"),
        lambda entry: (entry / "selfspec.json").write_text("[]"),
        lambda entry: (entry / "selfspec.json").unlink(),
    ],
)
def test_damaged_entries_are_made_anew_and_it_is_said(source, home, damage):
    """A flipped bit in the cache changed what a model says, for ever and silently."""
    said = []
    entry = converted(source, fill, quiet)
    damage(entry)
    assert converted(source, fill, said.append) == entry
    assert (entry / "a").read_text() == "aaaa"
    assert len(said) == 1
    assert "damaged" in said[0]
    assert left(home) == [entry.name]
    converted(source, never, quiet)


def test_a_flipped_weight_bit(write_gguf):
    """The same with a real conversion: one byte in the middle of the weights."""
    path, _ = write_gguf()
    weights = find_checkpoint(path).folder / "model.safetensors"
    good = weights.read_bytes()
    middle = len(good) // 2
    weights.write_bytes(good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :])
    said = []
    find_checkpoint(path, notify=said.append)
    assert weights.read_bytes() == good
    assert len(said) == 1
    assert "model.safetensors has a wrong checksum" in said[0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
def test_interrupted(source, home, error):
    """Ctrl-C in a conversion left half a model that the next start believed in."""

    def interrupted(source, folder):
        fill(source, folder)
        raise error

    with pytest.raises(error):
        converted(source, interrupted, quiet)
    assert left(home) == []
    converted(source, fill, quiet)


def test_killed(source, home):
    """A killed process cannot clean up; the next conversion does, also after one of another model."""
    script = """
        from selfspec.model.cache import converted
        def die(source, folder):
            (folder / "a").write_text("half")
            os._exit(9)
        converted(Path(sys.argv[1]), die, print)
    """
    process = run(script, home, source)
    process.communicate(timeout=60)
    assert process.returncode == 9
    assert len(left(home)) == 1
    other = source.with_name("other.gguf")
    other.write_bytes(b"other")
    entry = converted(other, fill, quiet)
    assert left(home) == [entry.name]


def test_two_processes_at_once(source, home, tmp_path):
    """Both wrote into the same folder; now the second waits and uses what the first made."""
    script = """
        from selfspec.model.cache import converted
        def slow(source, folder):
            Path(sys.argv[2]).open("a").write("converted ")
            time.sleep(1.5)
            (folder / "a").write_text("done")
        print((converted(Path(sys.argv[1]), slow, print) / "a").read_text())
    """
    processes = [run(script, home, source, tmp_path / "log") for _ in range(2)]
    answers = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], answers
    assert (tmp_path / "log").read_text() == "converted "
    assert all(out.splitlines()[-1] == "done" for out, _ in answers)
    assert len(left(home)) == 1


def test_disk_full_while_writing(write_gguf, home):
    """A full disk ended in a stack trace and half a model."""
    path, _ = write_gguf()
    script = """
        import resource
        from selfspec.errors import ModelError
        from selfspec.model import find_checkpoint
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
        try:
            find_checkpoint(sys.argv[1])
        except ModelError as error:
            print(error)
    """
    process = run(script, home, path)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert len(out.splitlines()) == 1
    assert str(home) in out
    assert " MB " in out
    assert "SELFSPEC_CACHE" in out
    assert left(home) == []


def test_disk_full_before_writing(write_gguf, home, monkeypatch, refused):
    """It is known before the first byte that there is no room."""
    path, _ = write_gguf()
    usage = disk_module.shutil.disk_usage(path)
    monkeypatch.setattr(disk_module.shutil, "disk_usage", lambda folder: usage._replace(free=1_000_000))
    with refused(ModelError, str(home), "needs 20 MB", "only 1 MB are free"):
        find_checkpoint(path)
    assert left(home) == []


def test_a_cache_that_cannot_be_written(source, home, refused):
    """A cache folder below a file, or on a read-only disk."""
    home.write_text("a file")
    with refused(ModelError, str(home), "SELFSPEC_CACHE"):
        converted(source, fill, quiet)


def test_a_read_only_cache_is_read(source, home, tmp_path, monkeypatch, refused):
    """What is converted already needs no lock and no write; what is not is one line."""
    entry = converted(source, fill, quiet)

    def fails(*_args, **_options):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for owner, name in ((Path, "mkdir"), (FileLock, "acquire"), (tempfile, "mkdtemp"), (os, "open")):
        monkeypatch.setattr(owner, name, fails)
    assert converted(source, never, quiet) == entry
    (tmp_path / "other.gguf").write_bytes(b"other")
    with refused(ModelError, str(home), "Read-only", "SELFSPEC_CACHE"):
        converted(tmp_path / "other.gguf", fill, quiet)


def test_where_the_cache_is(monkeypatch, home):
    """An empty variable counts as none; ~ is the home folder."""
    assert cache_folder() == home
    monkeypatch.setenv("SELFSPEC_CACHE", "~/x")
    assert cache_folder().name == "x"
    assert "~" not in str(cache_folder())
    monkeypatch.setenv("SELFSPEC_CACHE", "")
    assert cache_folder().name == "selfspec"
