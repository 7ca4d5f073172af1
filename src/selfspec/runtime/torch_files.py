"""Files in torch's format: tensors by name, and nothing else; no code of a file is run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from selfspec.errors import CorruptModelError, OptionError
from selfspec.model.reading import one_line, quoted

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray


def read_tensors(file: Path) -> dict[str, NDArray[Any]]:
    """What a file holds; floats in float32.

    Raises
    ------
    CorruptModelError
        It cannot be read, or holds something else than tensors by name.
    """
    try:
        values = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # of pickle, zipfile and torch, and they change
        raise CorruptModelError(f"{quoted(file)} cannot be read as torch's tensors ({one_line(error)})") from error
    if not isinstance(values, dict) or not all(isinstance(value, torch.Tensor) for value in values.values()):
        raise CorruptModelError(f"{quoted(file)} holds something else than tensors by name")
    return {
        str(name): (value.float() if value.is_floating_point() else value).numpy() for name, value in values.items()
    }


def write_tensors(file: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write tensors by name."""
    try:
        torch.save({name: torch.from_numpy(array) for name, array in tensors.items()}, file)
    except OSError as error:
        raise OptionError(f"{quoted(file)} cannot be written: {one_line(error)}") from error
