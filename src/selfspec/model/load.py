"""From what a user names to a checked checkpoint on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from selfspec.errors import ModelNotFoundError, UnsupportedModelError
from selfspec.model import hub
from selfspec.model.cache import converted
from selfspec.model.checkpoint import Checkpoint, open_folder, read_config
from selfspec.model.embedded import PACKAGED, find_embedded
from selfspec.model.gguf import convert, gguf_config
from selfspec.model.packed_folder import is_packed, name_of, only_native, packed_config
from selfspec.model.reading import expanded, one_line, quoted

if TYPE_CHECKING:
    from collections.abc import Callable

    from selfspec.model.config import ModelConfig

_ALLOWED = f"give {', '.join(PACKAGED)}, a Hugging Face folder, a .gguf file, or a hub id (organisation/name)"


def silent(_message: str) -> None:
    """Say nothing."""


def find_checkpoint(
    model: str | os.PathLike[str],
    *,
    notify: Callable[[str], None] = silent,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Checkpoint:
    """Find a model, convert or download it if needed, and check its files.

    Parameters
    ----------
    model
        ``"smollm2-135m"`` (the embedded model), ``"gemma3-270m"``, a Hugging Face folder, a ``.gguf`` file, or
        a hub id.
    notify
        Told, in one line each, what takes time or was repaired.
    progress
        Called with the weights converted so far and in all, when a GGUF file is converted.

    Raises
    ------
    ModelNotFoundError
        It is none of these, or not there.
    UnsupportedModelError
        An architecture, tokenizer or option that is not covered, or a folder of packed weights.
    CorruptModelError
        A damaged, incomplete or contradictory file.
    ModelError
        The conversion cache cannot be written.
    """
    kind, path, name = locate(model)
    if kind == "packed":
        raise only_native(path)
    if kind == "hub":
        path = hub.download(name, notify)
    elif kind == "gguf":
        path = converted(path, lambda source, folder: convert(source, folder, progress=progress), notify)
    return open_folder(path, name)


def config_of(model: str | os.PathLike[str]) -> ModelConfig:
    """The configuration of a model alone; a folder needs no weights, a GGUF is not converted.

    Raises as ``find_checkpoint``.
    """
    kind, path, name = locate(model)
    if kind == "hub":
        path = hub.download_config(name)
    if kind == "packed":
        return packed_config(path)
    return gguf_config(path) if kind == "gguf" else read_config(path)


def locate(model: str | os.PathLike[str]) -> tuple[str, Path, str]:
    """What was named: ("folder" | "packed" | "gguf" | "hub", its path, its name)."""
    if not isinstance(model, str | os.PathLike) or not os.fspath(model):
        raise ModelNotFoundError(f"the model is {one_line(repr(model), 80)}; {_ALLOWED}")
    text = os.fspath(model)
    if text in PACKAGED:
        return "gguf", find_embedded(text), text
    path = expanded(text)
    if path.is_dir():
        return ("packed", path, name_of(path)) if is_packed(path) else ("folder", path, path.resolve().name)
    if path.is_file():
        return "gguf", _checked_file(path), path.stem
    if isinstance(model, str) and path.suffix != ".gguf" and hub.is_hub_id(text):
        return "hub", path, text
    raise ModelNotFoundError(f"there is no folder or file {quoted(text)}; {_ALLOWED}")


def packed_folder(model: str | os.PathLike[str]) -> Path | None:
    """The folder that was named, if it has packed weights."""
    if not isinstance(model, str | os.PathLike) or os.fspath(model) in PACKAGED:
        return None
    path = expanded(model)
    return path if path.is_dir() and is_packed(path) else None


def _checked_file(path: Path) -> Path:
    if path.suffix == ".gguf":
        return path
    if path.suffix == ".safetensors":
        raise ModelNotFoundError(
            f"{quoted(path)} is one file of a checkpoint; give its folder {quoted(path.parent)}"
        )
    raise UnsupportedModelError(f"{quoted(path)} is no .gguf file; {_ALLOWED}")
