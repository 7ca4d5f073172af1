"""The conversion cache: every source is converted once, completely or not at all, and checked on each use."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from selfspec.errors import ModelError
from selfspec.model.disk import sync
from selfspec.model.reading import expanded, one_line, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VARIABLE = "SELFSPEC_CACHE"
FORMAT = 1  # of an entry; a new number makes all entries anew
MANIFEST = "selfspec.json"
COPIED = {"texts": "copied"}  # noted where configuration and tokenizer are still those of a checkpoint


def cache_folder() -> Path:
    """Where conversions are kept: ``SELFSPEC_CACHE``, else the user's cache folder of the system."""
    if given := os.environ.get(VARIABLE):
        return expanded(given).absolute()
    from platformdirs import user_cache_path

    return user_cache_path("selfspec", appauthor=False)


def converted(
    source: Path,
    convert: Callable[[Path, Path], None],
    notify: Callable[[str], None],
    form: str = "",
    sha256: str | None = None,
) -> Path:
    """The folder that ``convert(source, folder)`` filled for this source, now or earlier.

    An entry belongs to the content of the source, not to its name, and to the ``form`` that it is converted to;
    ``sha256`` says what the content is where the source is not a single file. It appears by one rename, so an
    interrupted conversion leaves nothing; processes that want the same entry at once take turns. Sizes and
    checksums are verified on every call; a damaged entry is made anew, and ``notify`` is told.

    Raises
    ------
    ModelError
        The cache folder cannot be written, or is full. What ``convert`` raises passes through.
    """
    try:
        sha256 = sha256 or _sha256(source)
    except OSError as error:
        raise ModelError(f"cannot read {quoted(source)}: {one_line(error.strerror)}") from error
    home = cache_folder()
    entry = home / "-".join(filter(None, (sha256[:32], form, f"v{FORMAT}")))
    if problem_of(entry) is None:
        return entry
    with _writable(home), _turn(entry, source, notify):
        problem = problem_of(entry)  # again: another process may have been faster
        if problem is None:
            return entry
        _sweep(home, entry)
        if entry.exists():
            notify(f"the converted {source.name} in {entry} is damaged ({problem}); converting it again")
            _remove(entry)
        else:
            notify(f"converting {source.name}, once; the result stays in {entry}")
        _build(source, entry, sha256, convert)
    return entry


def write_manifest(folder: Path, about: dict[str, Any]) -> None:
    """Note size and SHA-256 of every file in a folder, and what it is ``about``."""
    files = {name: _described(folder / name) for name in sorted(_files(folder))}
    (folder / MANIFEST).write_text(json.dumps({**about, "files": files}, indent=2), encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, Any]:
    """What is noted of a folder; empty if there is no such note, or it cannot be read."""
    try:
        found = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def has_own_texts(folder: Path) -> bool:
    """Whether a conversion wrote configuration and tokenizer of a folder, so that they need no mending."""
    return (folder / MANIFEST).exists() and not COPIED.items() <= read_manifest(folder).items()


def checksum(entry: Path, name: str) -> str:
    """The SHA-256 of a file of an entry, as it is noted there."""
    noted: str = json.loads((entry / MANIFEST).read_bytes())["files"][name]["sha256"]
    return noted


@contextmanager
def _writable(home: Path) -> Iterator[None]:
    try:
        home.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise ModelError(
            f"cannot write the cache folder {quoted(home)}: {one_line(error.strerror or error)}; "
            f"set {VARIABLE} to a folder that can be written"
        ) from error


@contextmanager
def _turn(entry: Path, source: Path, notify: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of an entry; the system releases it when a process dies."""
    lock = _lock(entry)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        notify(f"waiting for another process that converts {source.name}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _lock(entry: Path) -> FileLock:
    return FileLock(entry.with_name(f"{entry.name}.lock"))


def _build(source: Path, entry: Path, sha256: str, convert: Callable[[Path, Path], None]) -> None:
    scratch = Path(tempfile.mkdtemp(prefix=f"{entry.name}.tmp-", dir=entry.parent))
    try:
        convert(source, scratch)
        about = {"name": source.name, "size": source.stat().st_size, "sha256": sha256}
        write_manifest(scratch, {"format": FORMAT, "source": about})
        for path in (*scratch.iterdir(), scratch):
            sync(path)
        scratch.chmod(0o755)
        scratch.rename(entry)
        sync(entry.parent)
    finally:  # of an interruption too; after the rename there is nothing to remove
        shutil.rmtree(scratch, ignore_errors=True)


def _remove(entry: Path) -> None:
    """Take a damaged entry away in one step; who still reads it keeps its files."""
    grave = Path(tempfile.mkdtemp(prefix=f"{entry.name}.tmp-", dir=entry.parent))
    entry.rename(grave / "damaged")
    shutil.rmtree(grave, ignore_errors=True)


def _sweep(home: Path, own: Path) -> None:
    """Remove what processes left that died while converting: their locks are free. Ours is held by us."""
    for scratch in home.glob("*.tmp-*"):
        entry = scratch.with_name(scratch.name.split(".tmp-")[0])
        if entry == own:
            shutil.rmtree(scratch, ignore_errors=True)
            continue
        lock = _lock(entry)
        try:
            with lock.acquire(timeout=0):
                shutil.rmtree(scratch, ignore_errors=True)
        except Timeout:
            pass


def problem_of(entry: Path, unread: Callable[[str], bool] = lambda _: False) -> str | None:
    """What is wrong with the files of an entry; None if they are as they were written.

    Of files that are ``unread`` by their names only the sizes are looked at.
    """
    if not entry.is_dir():
        return "it does not exist"
    try:
        files: dict[str, dict[str, Any]] = json.loads((entry / MANIFEST).read_bytes())["files"]
        there = _files(entry)
        if there != set(files):
            return f"{', '.join(sorted(there ^ set(files)))} missing or unexpected"
        for name, expected in files.items():
            size = (entry / name).stat().st_size
            if size != expected["size"]:
                return f"{name} has {size} bytes, not {expected['size']}"
        # the small files first
        for name, expected in sorted(files.items(), key=lambda item: item[1]["size"]):
            if not unread(name) and _sha256(entry / name) != expected["sha256"]:
                return f"{name} has a wrong checksum"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return one_line(error)
    return None


def _files(folder: Path) -> set[str]:
    """Names of all files of a folder but the manifest, those of inner folders with a slash."""
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    return found - {MANIFEST}


def _described(path: Path) -> dict[str, Any]:
    return {"size": path.stat().st_size, "sha256": _sha256(path)}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
