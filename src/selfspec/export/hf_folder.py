"""A draft as a Hugging Face folder: the kept layers' tensors byte by byte, under their new numbers."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.errors import UnsupportedModelError
from selfspec.export.cut import check_layers, config_of_draft
from selfspec.model.checkpoint import open_folder, read_config, text_files
from selfspec.model.exits import NOTE
from selfspec.model.families import family_of, layout_of, weight_shapes
from selfspec.model.reading import quoted, read_json, read_json_if_there
from selfspec.model.safetensors_file import read_header, write_raw

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from selfspec.export.cut import Cutting
    from selfspec.model.checkpoint import Checkpoint
    from selfspec.model.safetensors_file import Raw

_WEIGHTS = "model.safetensors"


def write_folder(checkpoint: Checkpoint, cutting: Cutting, out: Path, gamma: int) -> None:
    """Write the draft into an empty folder, and read it back.

    The settings of transformers' assisted decoding are in its generation config, where it looks for them: ``gamma``
    tokens a round, always.

    Raises
    ------
    UnsupportedModelError
        As `check_layers`.
    """
    config = checkpoint.config
    key = family_of(config).key("num_hidden_layers")
    told = read_json(checkpoint.folder / "config.json")
    if told.get(key) != config.num_layers:
        raise UnsupportedModelError(
            f"config.json of {quoted(checkpoint.folder)} does not say {key} where it should"
        )
    for file in text_files(checkpoint.folder):
        if file.name == NOTE:  # a draft has fewer layers
            continue
        target = out / file.relative_to(checkpoint.folder)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, target)
    (out / "config.json").write_text(json.dumps(config_of_draft(told, key, cutting, config.num_layers), indent=2))
    settings = read_json_if_there(checkpoint.folder / "generation_config.json")
    settings |= {
        "num_assistant_tokens": gamma,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
    (out / "generation_config.json").write_text(json.dumps(settings, indent=2))
    check_layers(read_config(out), config, cutting)
    write_raw(out / _WEIGHTS, dict(_tensors(checkpoint, cutting)))
    open_folder(out, out.name)  # every name and shape is what config.json asks for


def _tensors(checkpoint: Checkpoint, cutting: Cutting) -> Iterator[tuple[str, Raw]]:
    """Name in the draft -> bytes, mapped from the checkpoint's files."""
    headers = {path: read_header(path) for path in set(checkpoint.weight_files.values())}
    prefix = layout_of(checkpoint.config).prefix
    numbers = {layer: i for i, layer in enumerate(cutting.layers)}
    for name in weight_shapes(checkpoint.config):
        path = checkpoint.weight_files[name]
        info = headers[path].tensors[name]
        if name.startswith(prefix):
            layer, _, rest = name.removeprefix(prefix).partition(".")
            if int(layer) not in numbers:
                continue
            renamed = f"{prefix}{numbers[int(layer)]}.{rest}"
        else:
            renamed = name
        data: Any = np.zeros(info.num_bytes, np.uint8)
        if name in cutting.changed:
            data = _rounded(cutting.changed[name], info.dtype)
        elif name not in cutting.silent and info.num_bytes:
            data = np.memmap(path, np.uint8, "r", info.begin, (info.num_bytes,))
        yield renamed, (info.dtype, info.shape, data)


def _rounded(weight: NDArray[np.float32], dtype: str) -> NDArray[np.uint8]:
    """The bytes of a weight in the precision of the others."""
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(weight).view(np.uint32)
        found: NDArray[Any] = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")
    else:
        found = weight.astype(np.dtype(dtype).newbyteorder("<"))
    return np.ascontiguousarray(found).reshape(-1).view(np.uint8)
