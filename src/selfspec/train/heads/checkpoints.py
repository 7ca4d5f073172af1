"""Checkpoints of a run: accelerate's folders, which appear whole; the last two are kept.

Accelerate reads objects that are registered with it by unpickling whatever is there, which runs what a file says.
So where a run is stands in a JSON file beside its files, all of which are read as tensors and numbers only.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch

from selfspec.errors import OptionError
from selfspec.train.heads.progress import Progress

if TYPE_CHECKING:
    from pathlib import Path

    from accelerate import Accelerator

KEPT = 2
_PROGRESS = "progress.json"
_PICKLED = "custom_checkpoint_0.pkl"  # where it stood before


def latest(folder: Path) -> Path | None:
    """The last checkpoint."""
    found = _all(folder)
    return found[-1] if found else None


def _all(folder: Path) -> list[Path]:
    """The checkpoints, the first one first."""
    return sorted(folder.glob("step-[0-9]*"), key=lambda path: int(path.name.partition("-")[2]))


def save(accelerator: Accelerator, folder: Path, progress: Progress) -> Path:
    """Keep weights, optimiser, random numbers and progress; raises OptionError where they cannot be written."""
    path, aside = folder / f"step-{progress.step}", folder / f".step-{progress.step}"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        accelerator.save_state(str(aside))
        (aside / _PROGRESS).write_text(json.dumps(asdict(progress)), encoding="utf-8")
        shutil.rmtree(path, ignore_errors=True)
        aside.rename(path)
    except (OSError, RuntimeError) as error:  # torch writes a full disk as the latter
        shutil.rmtree(aside, ignore_errors=True)
        raise OptionError(
            f"no checkpoint can be written to {str(folder)!r}: {' '.join(str(error).split())}; make room, and run "
            "the same command again"
        ) from error
    for old in _all(folder)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return path


def restore(accelerator: Accelerator, path: Path) -> Progress:
    """Go on where a checkpoint was made; raises OptionError if it is damaged."""
    try:
        progress = _progress(path)
        accelerator.load_state(str(path))
        return progress
    except Exception as error:  # whatever a damaged file makes torch raise
        raise OptionError(
            f"the checkpoint {str(path)!r} cannot be read ({' '.join(str(error).split())[:200]}); remove it, and "
            "run the same command again to go on from the one before"
        ) from error


def _progress(path: Path) -> Progress:
    """Where the run was; what a later version added keeps its default."""
    if (old := path / _PICKLED).exists():
        found = torch.load(old, weights_only=True)
        (path / _PROGRESS).write_text(json.dumps(found), encoding="utf-8")
        old.unlink()
    found = json.loads((path / _PROGRESS).read_text(encoding="utf-8"))
    kinds = asdict(Progress())  # numbers; another one is converted, or an error
    return Progress(**{name: type(value)(found[name]) for name, value in kinds.items() if name in found})
