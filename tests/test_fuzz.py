"""bench/fuzz.py for a few seconds, with the same cases every time; and that it sees what it looks for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from selfspec.loading import has_native

BENCH = Path(__file__).parents[1] / "bench"
pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/self/statm") or not has_native(),
    reason="limits as Linux has them, in the native core",
)


def run(*arguments, before=""):
    begin = f"import sys; sys.path.insert(0, {str(BENCH)!r}); import fuzz, fuzz_targets"
    program = f"{begin}\n{before}\nsys.exit(fuzz.main())"
    command = [sys.executable, "-c", program, *arguments]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    return done.returncode, done.stdout + done.stderr


def test_changed_files_are_read_or_refused_in_one_line():
    """Guards every reader of files and requests; results for `report` have a test of their own."""
    names = "folder,sharded,gguf,packed,head,data,corpus,requests"
    status, said = run("--cases", "20", "--seed", "5000", "--only", names)
    assert status == 0, said
    assert said.count(" 20 cases") == len(names.split(",")), said


BAD = {
    "an error of another kind": ("raise KeyError(3)", "KeyError: 3"),
    "an error of two lines": ("raise selfspec.ModelError('a\\nb')", "ModelError: a"),
    "a warning": ("warnings.warn('careful')", "UserWarning: careful"),
    "a crash": ("os.abort()", "the process ended with -6"),
    "no end": ("while True: pass", "longer than 4 s"),
    "much memory": ("bytes(3 << 30)", "MemoryError"),
    "some memory": ("len(bytearray(b'x') * 400_000_000)", "MB of memory"),
    "a file elsewhere": ("open('/etc/hostname').close()", "open '/etc/hostname'"),
    "a file written elsewhere": ("open(os.environ['ELSEWHERE'], 'a').close()", "/elsewhere'"),
    "a folder elsewhere": ("os.listdir('/etc')", "os.listdir '/etc'"),
    "a program": ("os.system('true')", "os.system"),
    "an unpickled object": ("pickle.loads(pickle.dumps(pathlib.Path))", "pickle.find_class"),
    "a connection": ("socket.socket().connect_ex(('127.0.0.1', 9))", "socket.connect"),
}


def test_the_fuzzer_sees_what_it_looks_for(tmp_path, monkeypatch):
    """Negative control: a reader that does one bad thing after the other, a case for each."""
    monkeypatch.setenv("ELSEWHERE", str(tmp_path / "elsewhere"))
    actions = "\n".join(f"    if number == {i}:\n        {action}" for i, (action, _) in enumerate(BAD.values()))
    before = (
        "import os, pathlib, pickle, socket, warnings, selfspec\n"
        "fuzz.SECONDS = 4\n"  # on a busy machine a process takes one to begin
        "def read(folder):\n"
        "    number = int((folder / 'number').read_text())\n"
        f"{actions}\n"
        "def change(folder, random):\n"
        "    (folder / 'number').write_text(str(random.number))\n"
        "class Numbered(fuzz.Random):\n"
        "    def __init__(self, name): self.number = int(name.partition(':')[2]); super().__init__(0)\n"
        "fuzz.Random = Numbered\n"
        "make = lambda folder: (folder / 'number').write_text('-1')\n"
        "fuzz_targets.TARGETS['bad'] = fuzz_targets.Target(make, read, change)"
    )
    status, said = run("--cases", str(len(BAD)), "--only", "bad", before=before)
    assert status == 1
    for number, (what, (_, words)) in enumerate(BAD.items()):
        part = said.partition(f"--- bad:{number}\n")[2].partition("\n---")[0]
        assert words in part, (what, said)
    assert f"'FOUND': {len(BAD)}" in said
