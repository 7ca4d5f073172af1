"""Typed look-ups in files that others wrote; a mistake becomes one line with the file and the key."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfspec.errors import CorruptModelError, ModelNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # half of a character; two make one
_MOST = 2**40  # no size is larger, and sums of sizes stay printable


_LONGEST_NAME = 255


def quoted(value: object) -> str:
    """The value in quotes, without newlines, at most 300 characters of it."""
    return one_line(repr(str(value)), 300)


def expanded(text: str | os.PathLike[str]) -> Path:
    """The path with ``~`` resolved; raises ModelNotFoundError where there is no such home, or no such name."""
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise ModelNotFoundError(f"{quoted(text)} is in the home of an unknown user; give a full path") from error
    if any(len(os.fsencode(part)) > _LONGEST_NAME for part in path.parts):
        raise ModelNotFoundError(
            f"{quoted(text)} has a part of more than {_LONGEST_NAME} bytes, which no file is called"
        )
    return path


def one_line(error: object, limit: int = 200) -> str:
    """The message of a library, on one line of at most ``limit`` characters."""
    text = " ".join(str(error).split())
    if not text and isinstance(error, BaseException):
        text = type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"


def listed(names: Iterable[object], most: int = 4) -> str:
    """The first few names and how many there are beyond them."""
    every = [one_line(name, 80) for name in names]
    rest = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + rest


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``.

    Raises
    ------
    ModelNotFoundError
        There is no such file.
    CorruptModelError
        It cannot be read, or is not a JSON object.
    """
    try:
        raw = path.read_bytes()
        values = json.loads(raw)
        if _SURROGATE.search(raw):
            json.dumps(values, ensure_ascii=False).encode()  # a ValueError where one stands alone
    except FileNotFoundError:
        raise ModelNotFoundError(f"there is no {path.name} in {quoted(path.parent)}") from None
    except OSError as error:
        raise CorruptModelError(f"cannot read {quoted(path)}: {one_line(error.strerror)}") from error
    except (ValueError, RecursionError) as error:
        raise CorruptModelError(
            f"{quoted(path)} is not valid JSON ({one_line(error)}); download the file again"
        ) from error
    if not isinstance(values, dict):
        raise CorruptModelError(
            f"{quoted(path)} holds a {type(values).__name__} where a JSON object belongs; download it again"
        )
    return values


def read_json_if_there(path: Path) -> dict[str, Any]:
    """Like ``read_json``, but an absent file counts as an empty object."""
    return read_json(path) if os.path.lexists(path) else {}  # a dangling link is damage


class Fields:
    """The entries of a JSON object or of GGUF metadata, checked as they are read; null counts as absent.

    A key without a default is required. All methods raise ``CorruptModelError``, with the ``remedy``.
    """

    def __init__(
        self, values: Mapping[str, Any], source: str, remedy: str = "download the checkpoint again"
    ) -> None:
        self._values = values
        self._remedy = remedy
        self.source = source

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def raw(self, key: str) -> Any:
        """The entry as it is; None if absent."""
        return self._values.get(key)

    def raw_items(self) -> dict[str, Any]:
        """All entries as they are."""
        return dict(self._values)

    def integer(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        """An integer of at least ``minimum``."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= _MOST:
            raise self.wrong(key, value, f"an integer of at least {minimum} and at most {_MOST}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, value, "a number")
        if not (math.isfinite(value) and value > 0):
            raise self.wrong(key, value, "a finite number above 0")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, value, "a string")
        return value

    def ids(self, key: str, what: str = "token id") -> tuple[int, ...]:
        """Token ids, or other numbers: an integer, a list of integers, or nothing."""
        value = self._values.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in ids):
            raise self.wrong(key, value, f"a {what} or a list of {what}s")
        return tuple(dict.fromkeys(ids))

    def child(self, key: str) -> Fields | None:
        """A nested object, or None if absent."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(key, value, "an object")
        return Fields(value, f"{self.source}, {key}", self._remedy)

    def wrong(self, key: str, value: object, allowed: str) -> CorruptModelError:
        """The error for an entry that is not what it must be."""
        return CorruptModelError(
            f"{key} is {one_line(repr(value), 80)} in {self.source}; it must be {allowed}: "
            f"correct the file, or {self._remedy}"
        )

    def _get(self, key: str, default: object) -> Any:
        value = self._values.get(key)
        value = default if value is None else value
        if value is None:
            raise CorruptModelError(f"{self.source} has no {key}, which is required; {self._remedy}")
        return value
