"""Files that lie: valid ones are changed at random and read, in processes with little memory and time.

Checkpoints, GGUF files, packed folders, heads, profiles and what `tune` keeps, results for `report`, data for
heads, journals, corpora, and requests of the server and of batches. Every case must be read, or refused by an
error of ours in one line. What counts as a find: any other exception or warning, a crash, more than 30 s or 1 GB, a
file opened outside of the case, a program started, a connection, an unpickled object.

    python bench/fuzz.py --minutes 10
    python bench/fuzz.py --only gguf,head --cases 500 --seed 3
    python bench/fuzz.py --again folder:1234

Exit code 0: nothing found. 1: each find is told with what repeats it. Linux; one processor.
"""

from __future__ import annotations

import argparse
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import fuzz_targets

from selfspec.errors import SelfspecError

SECONDS = 30
MEMORY = 1 << 30  # bytes that a case may have beyond what the program has
SITTING = 200  # cases of one process
_LISTING = ("os.listdir", "os.scandir")  # of what is on sys.path, the working directory included
_OPENING = ("open", "os.listdir", "os.scandir", "shutil.copyfile")
_NEVER = (
    "pickle.find_class", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect",
    "marshal.loads", "ctypes.dlopen",
)  # fmt: skip


class Watch:
    """An audit hook: which files are opened outside of where a case may look, and what may never happen."""

    def __init__(self, home: Path) -> None:
        self.found: list[str] = []
        self.is_on = False
        self._inside = (str(home), "/dev/", "/proc/", "/sys/")
        self._code = tuple({sys.prefix, sys.base_prefix, *(path for path in sys.path if path)})
        sys.addaudithook(self)

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        """Called by the interpreter."""
        if not self.is_on:
            return
        if event in _NEVER and not (event == "marshal.loads" and self._imports()):
            self.found.append(f"{event} {args!r:.200}")
        elif event in _LISTING and self._imports():
            return
        elif event in _OPENING and isinstance(args[0], str | bytes | os.PathLike):
            path = os.path.abspath(os.fsdecode(args[0]))
            writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
            if not path.startswith(self._inside) and (writes or not path.startswith(self._code)):
                self.found.append(f"{event} {path!r:.200}")

    @staticmethod
    def _imports() -> bool:
        """Whether a module, or a plugin, is being looked for or imported: its code is unmarshalled."""
        frame: Any = sys._getframe(2)
        while frame:
            if "importlib" in frame.f_code.co_filename:
                return True
            frame = frame.f_back
        return False


def case_of(name: str, seed: int, valid: Path, place: Path) -> None:
    """Make a case in ``place``: the same one for the same name and seed; -1 is what is valid."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(valid, place)
    if seed >= 0:
        fuzz_targets.TARGETS[name].change(place, Random(f"{name}:{seed}"))


def outcome(name: str, place: Path, watch: Watch | None = None) -> tuple[str, str]:
    """("read" | "refused" | "FOUND", what was said or found) of a case."""
    if watch:
        watch.found.clear()
        watch.is_on = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fuzz_targets.TARGETS[name].read(place)
        said = ("read", "")
    except SelfspecError as error:
        text = str(error)
        is_clear = text and "\n" not in text and len(text) < 2000 and not isinstance(error, MemoryError)
        said = ("refused" if is_clear else "FOUND", f"{type(error).__name__}: {text}")
    except BaseException:  # noqa: BLE001 (the find)
        said = ("FOUND", traceback.format_exc(limit=-12))
    finally:
        if watch:
            watch.is_on = False
    if watch and watch.found:
        return "FOUND", f"{watch.found[0]} ({said[0]})"
    return said


def sitting(name: str, seeds: range, valid: Path, home: Path, pipe: int) -> None:
    """In a process of its own: tell of each case when it begins, and how it ended."""
    with open("/proc/self/statm", encoding="ascii") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    watch, place, cache = Watch(home), home / "case", home / "cache"
    kept = {path.name for path in cache.iterdir()}
    for seed in (-1, *seeds):
        case_of(name, seed, valid, place)
        os.write(pipe, f"{seed}\0begun\0\n".encode())
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        kind, said = outcome(name, place, watch)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        if grown > 300_000:
            kind, said = "FOUND", f"{grown / 1000:.0f} MB of memory ({kind} {said})"
        if seed < 0:
            if kind == "read":
                continue
            kind, said = "FOUND", f"what is valid was not read: {said}"
        text = said.replace("\n", "\1").replace("\0", " ")[:3000]
        os.write(pipe, f"{seed}\0{kind}\0{text}\n".encode("utf-8", "replace"))
        for path in cache.iterdir():
            if path.name not in kept:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def run(name: str, seeds: range, home: Path) -> list[tuple[int, str, str]]:
    """The outcomes of cases of one target, read in processes that may crash."""
    valid = home / f"valid-{name}"
    if not valid.exists():
        valid.mkdir()
        fuzz_targets.TARGETS[name].make(valid)
    found: list[tuple[int, str, str]] = []
    while len(seeds):
        ended = _one_sitting(name, seeds[:SITTING], valid, home, found)
        seeds = seeds[ended:]
    return found


def _one_sitting(name: str, seeds: range, valid: Path, home: Path, found: list[tuple[int, str, str]]) -> int:
    """How many cases came to an end; a crash or a case without end counts as its end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            sitting(name, seeds, valid, home, writing)
            os._exit(0)
        finally:  # a mistake of this program
            traceback.print_exc()
            os._exit(70)
    os.close(writing)
    count, waiting, rest = 0, -1, b""
    while True:
        ready = select.select([reading], [], [], SECONDS)[0]
        data = os.read(reading, 65536) if ready else b""
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            number, kind, said = line.decode("utf-8", "replace").split("\0")
            waiting = int(number)
            if kind != "begun":
                count, waiting = count + (waiting >= 0), -1
                found.append((int(number), kind, said.replace("\1", "\n")))
    os.close(reading)
    if not ready:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status != 70
    if waiting >= 0 or not count:
        why = f"longer than {SECONDS} s" if not ready else f"the process ended with {status}"
        where = "" if waiting >= 0 else "before a case began, or reading what is valid: "
        found.append((max(waiting, seeds[count]), "FOUND", where + why))
        count += 1
    return count


def main(arguments: list[str] | None = None) -> int:
    """Run until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--only", default=",".join(fuzz_targets.TARGETS), help="targets with commas")
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the others count up")
    parser.add_argument("--cases", type=int, help="so many of each target, instead of --minutes")
    parser.add_argument("--again", metavar="TARGET:SEED", help="repeat one case here, and leave its files")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
        home = Path(temporary)
        fuzz_targets.prepare(home)
        tempfile.tempdir = str(home / "tmp")  # of what selfspec makes for the time being
        Path(tempfile.tempdir).mkdir()
        if asked.again:
            return _again(*asked.again.split(":"), home)
        names = asked.only.split(",")
        counts: dict[str, Counter[str]] = {name: Counter() for name in names}
        finds: dict[str, str] = {}
        end, first, step = time.monotonic() + asked.minutes * 60, asked.seed, asked.cases or 50
        while first == asked.seed or (asked.cases is None and time.monotonic() < end):
            for name in names:
                for seed, kind, said in run(name, range(first, first + step), home):
                    counts[name][kind] += 1
                    if kind == "FOUND":
                        lines = said.strip().splitlines()
                        if finds.setdefault(f"{name}: {lines[-1][:120]}", f"{name}:{seed}") == f"{name}:{seed}":
                            print(f"--- {name}:{seed}\n{said}", flush=True)
            first += step
    for name, count in counts.items():
        print(f"{name:9} {sum(count.values()):7} cases: {dict(count)}")
    for what, again in finds.items():
        print(f"FOUND {what} (--again {again})")
    return 1 if finds else 0


def _again(name: str, seed: str, home: Path) -> int:
    valid, place = home / f"valid-{name}", home / "case"
    valid.mkdir()
    fuzz_targets.TARGETS[name].make(valid)
    case_of(name, int(seed), valid, place)
    print("\n".join(outcome(name, place, Watch(home))))
    kept = Path(f"fuzz-{name}-{seed}")
    shutil.copytree(place, kept, dirs_exist_ok=True)
    print(f"its files are in {kept}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
