"""A draft as OpenVINO's IR: of a GGUF file by OpenVINO GenAI itself, of a folder by optimum-intel."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from selfspec.errors import RuntimeMissingError

if TYPE_CHECKING:
    from pathlib import Path


def write_openvino(source: Path, out: Path) -> None:
    """Convert a Hugging Face folder or a GGUF file into an IR with its tokenizer, in the precision that is stored.

    A GGUF file must be alone in its folder: OpenVINO GenAI puts the IR beside it, whence it is moved to ``out``.
    Raises RuntimeMissingError where what converts is missing.
    """
    if source.is_dir():
        exporter = _needed("optimum.exporters.openvino", "'optimum[openvino]'")
        exporter.main_export(str(source), str(out), task="text-generation-with-past", library_name="transformers")
        return
    genai = _needed("openvino_genai", "openvino-genai")
    genai.LLMPipeline(str(source), "CPU", enable_save_ov_model=True)
    for path in source.parent.iterdir():
        if path != source:
            path.rename(out / path.name)


def _needed(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise RuntimeMissingError(
            f"{module} is missing, which converts this model; install it with: pip install {package}"
        ) from error
