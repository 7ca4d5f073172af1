"""Files that appear as a whole, or not at all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def replace_file(path: Path, text: str) -> None:
    """Write ``text`` (UTF-8) aside and rename it: a reader sees the old file or the new one. Raises OSError."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    finally:  # of an interruption too; after the renaming there is nothing to remove
        aside.unlink(missing_ok=True)
