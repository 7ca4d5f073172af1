"""JSON documents, on one line and on disk."""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING, Any

from selfspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORMAT = 1
"""Of what `selfspec profile` and `selfspec tune` keep."""


def json_line(document: object) -> str:
    """A document on one line; what is not finite becomes null, which every parser reads."""
    return json.dumps(finite(document), allow_nan=False)


def finite(value: Any) -> Any:
    """``value`` with null for every number that JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def other_fields(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """The fields of ``ours`` that have another value in ``theirs``, a document that was read."""
    ours = json.loads(json_line(ours))  # tuples have become lists on disk
    return [name for name in ours if theirs.get(name) != ours[name]]


def require_format(found: Any, what: str) -> None:
    """Raise OptionError where a document of `profile` or `tune` says that it is of another format than is read.

    One without a number is of the first, and what is no document is left to who reads it.
    """
    if isinstance(found, dict) and (number := found.get("format", 1)) != FORMAT:
        raise OptionError(
            f"{what} has format {repr(number)[:20]}; this selfspec reads {FORMAT}: use the one that wrote it"
        )


def write_whole(path: Path, text: str) -> None:
    """Write what --out names, whole or not at all; raises OptionError if it cannot be written."""
    try:
        replace_file(path, text)
    except OSError as error:
        raise OptionError(f"--out {str(path)!r} cannot be written: {error.strerror}") from error


def replace_file(path: Path, text: str) -> None:
    """Write ``text`` (UTF-8) aside and rename it: a reader sees the old file or the new one. Raises OSError."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    finally:  # of an interruption too; after the renaming there is nothing to remove
        aside.unlink(missing_ok=True)
