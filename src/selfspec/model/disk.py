"""Writing large files: enough room, or one clear line."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from selfspec.errors import ModelError
from selfspec.model.reading import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


@contextmanager
def room(folder: Path, num_bytes: int) -> Iterator[None]:
    """Write about ``num_bytes`` into ``folder`` inside of this.

    Raises
    ------
    ModelError
        There is too little space, now or while writing.
    """
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise _full(folder, num_bytes, f"only {_megabytes(free)} are free")
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise _full(folder, num_bytes, os.strerror(error.errno)) from error


def _full(folder: Path, num_bytes: int, why: str) -> ModelError:
    return ModelError(
        f"converting the model needs {_megabytes(num_bytes)} in {quoted(folder.parent)}: {why}; free some "
        "space, or set SELFSPEC_CACHE to a folder on another disk"
    )


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.0f} MB"


def sync(path: Path) -> None:
    """Make a file or folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
