"""The folder of a run: what it was begun with stands in train.json, and only the same goes on with it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from selfspec.documents import json_line, write_whole
from selfspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FREE = frozenset({
    "data", "epochs", "minutes", "held_out_tokens", "evaluate_minutes", "checkpoint_minutes",
})  # fmt: skip
"""What a later sitting may ask otherwise and still go on."""


def run_begun(out: Path) -> dict[str, Any] | None:
    """What train.json says, if a run has begun in ``out``; its ``texts`` are as many as it learns from.

    Raises OptionError if it cannot be read, and where ``out`` is a file.
    """
    if out.exists() and not out.is_dir():
        raise OptionError(f"--out {str(out)!r} is a file; name a new folder, or that of an earlier run")
    path = out / "train.json"
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {**found, "texts": int(found["texts"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OptionError(f"{str(path)!r} cannot be read ({error}); give another --out") from error


def claim(out: Path, identity: Mapping[str, Any], begun: Mapping[str, Any] | None) -> None:
    """Write train.json, or see that it is of the same run; fields that it does not have are newer than it.

    Raises OptionError for another run, and where the folder cannot be made.
    """
    asked = json.loads(json_line(identity))
    if begun is not None:
        if other := [name for name in asked if name in begun and begun[name] != asked[name]]:
            raise OptionError(
                f"--out {str(out)!r} holds a run with another {' and '.join(other)}; give the same again to go on "
                "with it, or another --out"
            )
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"--out {str(out)!r} cannot be made: {error.strerror}") from error
    write_whole(out / "train.json", json.dumps(asked, indent=1) + "\n")
