"""Checkpoints of a run: accelerate's folders, which appear whole; the last two are kept."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from selfspec.errors import OptionError

if TYPE_CHECKING:
    from pathlib import Path

    from accelerate import Accelerator

KEPT = 2


def latest(folder: Path) -> Path | None:
    """The last checkpoint."""
    found = sorted(folder.glob("step-[0-9]*"), key=lambda path: int(path.name.partition("-")[2]))
    return found[-1] if found else None


def save(accelerator: Accelerator, folder: Path, step: int) -> Path:
    """Keep weights, optimiser, random numbers and progress; raises OptionError where they cannot be written."""
    path, aside = folder / f"step-{step}", folder / f".step-{step}"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        accelerator.save_state(str(aside))
        shutil.rmtree(path, ignore_errors=True)
        aside.rename(path)
    except (OSError, RuntimeError) as error:  # torch writes a full disk as the latter
        shutil.rmtree(aside, ignore_errors=True)
        raise OptionError(
            f"no checkpoint can be written to {str(folder)!r}: {' '.join(str(error).split())}; make room, and run "
            "the same command again"
        ) from error
    for old in sorted(folder.glob("step-[0-9]*"), key=lambda p: int(p.name.partition("-")[2]))[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return path


def restore(accelerator: Accelerator, path: Path) -> None:
    """Go on where a checkpoint was made; raises OptionError if it is damaged."""
    try:
        accelerator.load_state(str(path))
    except Exception as error:  # whatever a damaged file makes torch raise
        raise OptionError(
            f"the checkpoint {str(path)!r} cannot be read ({' '.join(str(error).split())[:200]}); remove it, and "
            "run the same command again to go on from the one before"
        ) from error
