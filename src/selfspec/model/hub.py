"""Checkpoints of the Hugging Face hub: downloaded once, then served from its local cache."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from selfspec.errors import ModelNotFoundError, RuntimeMissingError
from selfspec.model.reading import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

# Files of the top folder only (sub-folders hold copies in other formats), and named chat templates.
_WANTED = ["*.json", "*.safetensors", "*.jinja"]
_UNWANTED = ["*/*.json", "*/*.safetensors", "[!c]*/*.jinja", "consolidated*"]


def is_hub_id(text: str) -> bool:
    """Whether a name has the form of a hub id: ``organisation/name``."""
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", text, re.ASCII) is not None


def download(name: str, notify: Callable[[str], None]) -> Path:
    """The local folder of a hub id, with the weights; no network is needed for what is there already.

    Raises
    ------
    ModelNotFoundError
        Unknown, gated, or neither reachable nor in the local cache.
    """
    notify(f"looking up {name} on the Hugging Face hub")
    return _fetch(name, _WANTED)


def download_config(name: str) -> Path:
    """Like ``download``, but the small configuration files only."""
    return _fetch(name, ["config.json", "generation_config.json"])


def _fetch(name: str, wanted: list[str]) -> Path:
    try:
        import huggingface_hub
    except ImportError as error:
        raise RuntimeMissingError(
            f"{name!r} is on the Hugging Face hub; pip install huggingface_hub to download it"
        ) from error
    try:
        folder = huggingface_hub.snapshot_download(name, allow_patterns=wanted, ignore_patterns=_UNWANTED)
    except Exception as error:  # of three libraries, and they change
        raise ModelNotFoundError(_message(name, error)) from error
    return Path(folder)


def _message(name: str, error: Exception) -> str:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "GatedRepoError" in kinds:
        return f"{name!r} is gated on the Hugging Face hub; accept its terms there and run: hf auth login"
    if "RepositoryNotFoundError" in kinds:
        return (
            f"{name!r} is no folder here and no public model of the Hugging Face hub; check the spelling, or "
            "run: hf auth login"
        )
    if kinds & {"LocalEntryNotFoundError", "OfflineModeIsEnabled"}:
        return (
            f"{name!r} is no folder here and not in the local Hugging Face cache, and the hub cannot be "
            "reached; connect once to download it, or give a folder"
        )
    return f"{name!r} is no folder here, and downloading it failed: {one_line(error)}"
