"""The Hugging Face folder that a training keeps: a new one takes the place of the one before as a whole."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from selfspec.errors import OptionError
from selfspec.model.reading import one_line, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """An empty folder that becomes ``target`` if all goes well; until then the one that is there stays.

    Raises OptionError where it cannot be written.
    """
    new, old = target.with_name(f".{target.name}"), target.with_name(f".{target.name}.old")
    _restore(old, target)  # where a kill came between the two renames below
    shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    try:
        new.mkdir()
        yield new
        if target.exists():
            target.rename(old)
        new.rename(target)
    except (OSError, SafetensorError) as error:
        why = one_line(getattr(error, "strerror", None) or error)
        raise OptionError(
            f"no checkpoint can be written to {quoted(target)}: {why}; make room, and run the same command again"
        ) from error
    finally:
        _restore(old, target)
        shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def _restore(old: Path, target: Path) -> None:
    if old.exists() and not target.exists():
        old.rename(target)


def say_precision(folder: Path, precision: str) -> None:
    """Let config.json say what the weights are in, under whichever of its two names for it is there."""
    file = folder / "config.json"
    said: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    names = [name for name in ("dtype", "torch_dtype") if name in said] or ["torch_dtype"]
    file.write_text(json.dumps(said | dict.fromkeys(names, precision), indent=2) + "\n", encoding="utf-8")
