"""The results of a long run on disk: kept as they come, and taken up again after a kill.

They are written to ``OUT.partial``, one line each, in the order in which they ended; its first line says what the
run was asked for. A last line that was cut by a kill is dropped. Who keeps the journal moves its results to where
they belong: all at the end, in order (`Journal.finish`), or now and then (`Journal.clear`).
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from selfspec.documents import json_line, other_fields
from selfspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path
    from typing import BinaryIO

_REMEDY = "give another OUT, or give --overwrite to start anew"


def partial_of(out: Path) -> Path:
    """Where the results of an unfinished run are."""
    return out.with_name(f"{out.name}.partial")


@contextmanager
def opened(
    out: Path, identity: Mapping[str, Any], overwrite: bool = False, remedy: str = _REMEDY
) -> Iterator[Journal]:
    """The journal of ``out``; one run at a time. ``remedy`` is what to do about an unfinished run of another kind.

    Raises
    ------
    OptionError
        ``identity``, a JSON object, is not that of the unfinished run that is there; another run is writing; or
        the file is damaged.
    """
    place = partial_of(out)
    lock = FileLock(f"{place}.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise OptionError(f"another run is writing {str(out)!r}; wait for it, or give another OUT") from None
    journal = None
    try:
        if overwrite:
            place.unlink(missing_ok=True)
        places, failed, end = _read(place, identity, remedy)
        with place.open("r+b" if end else "w+b") as file:
            file.truncate(end)
            file.seek(end)
            journal = Journal(out, file, places, failed)
            if not end:
                journal.append({"batch": dict(identity)})
            yield journal
    finally:
        if journal is not None and journal.is_finished:
            place.unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):
            os.unlink(f"{place}.lock")


class Journal:
    """Results by the number of their line; ``failed`` counts the errors among them."""

    def __init__(self, out: Path, file: BinaryIO, places: dict[int, tuple[int, int]], failed: int) -> None:
        self._out = out
        self._file = file
        self._places = places  # of each result in the file: offset and bytes
        self.failed = failed
        self.is_finished = False

    def __contains__(self, number: int) -> bool:
        return number in self._places

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __getitem__(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._line(number))
        return found

    def add(self, number: int, result: Mapping[str, Any]) -> None:
        """Keep the result of line ``number``; a kill after this does not lose it."""
        self._places[number] = self.append({"line": number, **result})
        self.failed += "error" in result

    def append(self, document: object) -> tuple[int, int]:
        """Write one line; where it is."""
        start = self._file.seek(0, os.SEEK_END)
        line = f"{json_line(document)}\n".encode()
        self._file.write(line)
        self._file.flush()
        return start, len(line)

    def clear(self) -> None:
        """Forget the results: they are safe elsewhere."""
        self._file.seek(0)
        end = len(self._file.readline())
        self._file.truncate(end)
        self._places.clear()
        self.failed = 0

    def finish(self, numbers: Iterable[int]) -> None:
        """Write ``OUT``; the journal goes when it is closed."""
        self.write(numbers)
        self.is_finished = True

    def write(self, numbers: Iterable[int]) -> None:
        """Write ``OUT``: the results in the order of ``numbers``, all of which are there."""
        new = self._out.with_name(f"{self._out.name}.new")
        with new.open("wb") as file:
            for number in numbers:
                file.write(self._line(number))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._out)

    def _line(self, number: int) -> bytes:
        start, size = self._places[number]
        self._file.seek(start)
        return self._file.read(size)


def _read(place: Path, identity: Mapping[str, Any], remedy: str) -> tuple[dict[int, tuple[int, int]], int, int]:
    """Of an unfinished run: the place of each result, how many are errors, and where the whole lines end."""
    places: dict[int, tuple[int, int]] = {}
    failed = end = 0
    if not place.exists():
        return places, failed, end
    with place.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            try:
                found = json.loads(line)
                if end:
                    places[int(found["line"])] = (end, len(line))
                    failed += "error" in found
                else:
                    _require_same(place, found["batch"], identity, remedy)
            except (ValueError, KeyError, TypeError) as error:
                if isinstance(error, OptionError):
                    raise
                raise OptionError(
                    f"{str(place)!r} is not an unfinished run, or damaged; remove it, {remedy}"
                ) from error
            end += len(line)
    return places, failed, end


def _require_same(place: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any], remedy: str) -> None:
    if other := other_fields(theirs, ours):
        raise OptionError(
            f"{str(place)!r} is an unfinished run with another {' and '.join(other)}; finish that one, {remedy}"
        )
