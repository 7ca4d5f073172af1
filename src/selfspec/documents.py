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


def write_whole(path: Path, text: str) -> None:
    """Write what --out names, whole or not at all; raises OptionError if it cannot be written."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        raise OptionError(f"--out {str(path)!r} cannot be written: {error.strerror}") from error
    finally:  # of an interruption too; after the renaming there is nothing to remove
        aside.unlink(missing_ok=True)
