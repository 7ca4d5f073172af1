"""A draft as OpenVINO's IR, converted by optimum-intel."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from selfspec.errors import RuntimeMissingError

if TYPE_CHECKING:
    from pathlib import Path


def write_openvino(folder: Path, out: Path) -> None:
    """Convert a Hugging Face ``folder`` into an IR with its tokenizer, in the precision that is stored.

    Raises RuntimeMissingError where optimum-intel is missing.
    """
    try:
        exporter = import_module("optimum.exporters.openvino")
    except ModuleNotFoundError as error:
        raise RuntimeMissingError(
            "optimum-intel is missing, which converts models for OpenVINO; install it with: pip install "
            "'optimum[openvino]'"
        ) from error
    exporter.main_export(str(folder), str(out), task="text-generation-with-past", library_name="transformers")
