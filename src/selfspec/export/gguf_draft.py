"""A draft as a GGUF file, made of the model's own GGUF file: its blocks, its tokenizer, fewer layers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.errors import OptionError
from selfspec.export.cut import check_layers, config_of_draft
from selfspec.model.families import gguf_weights
from selfspec.model.gguf import gguf_config
from selfspec.model.gguf_file import contents, open_reader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from selfspec.export.cut import Cutting
    from selfspec.model.config import ModelConfig

_LAYER = re.compile(r"blk\.(\d+)\.(.*)")
_ARCHITECTURE = "general.architecture"


def write_gguf(source: Path, config: ModelConfig, cutting: Cutting, out: Path) -> None:
    """Write the draft of the GGUF file ``source``, whose model is ``config``, to ``out``, and read its head back.

    What is silent becomes zeros in float32. Raises UnsupportedModelError as `check_layers`.
    """
    import gguf

    reader = open_reader(source)
    architecture = contents(reader.fields[_ARCHITECTURE])
    writer = gguf.GGUFWriter(out, architecture)
    fields = {
        name: field
        for name, field in reader.fields.items()
        if name != _ARCHITECTURE and not name.startswith("GGUF.")
    }
    prefix = f"{architecture}."
    own = {name: contents(field) for name, field in fields.items() if name.startswith(prefix)}
    own = config_of_draft(own, f"{prefix}block_count", cutting, config.num_layers)
    for name, field in fields.items():
        kinds = field.types
        writer.add_key_value(
            name, own.get(name) if name in own else contents(field), kinds[0], kinds[-1] if len(kinds) > 1 else None
        )
    tensors = list(_tensors(reader, config, cutting))
    for name, data, kind in tensors:
        writer.add_tensor_info(name, data.shape, data.dtype, data.nbytes, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, data, _ in tensors:
        writer.write_tensor_data(data)
    writer.close()
    check_layers(gguf_config(out), config, cutting)


def _tensors(reader: Any, config: ModelConfig, cutting: Cutting) -> Iterator[tuple[str, Any, Any]]:
    """Name in the draft, numbers as they are stored, and their type."""
    import gguf

    silent = {tensor for each in gguf_weights(config) if each.name in cutting.silent for tensor in each.tensors}
    numbers = {layer: i for i, layer in enumerate(cutting.layers)}
    for tensor in reader.tensors:
        found = _LAYER.fullmatch(tensor.name)
        if found and int(found[1]) not in numbers:
            continue
        name = f"blk.{numbers[int(found[1])]}.{found[2]}" if found else tensor.name
        if tensor.name in silent:
            shape = tuple(int(length) for length in reversed(tensor.shape))
            yield name, np.zeros(shape, np.float32), gguf.GGMLQuantizationType.F32
        else:
            yield name, tensor.data, tensor.tensor_type


def not_a_gguf(model: str) -> OptionError:
    """Why a folder cannot be exported as a GGUF file, and how to get one."""
    return OptionError(
        f"--format gguf needs the model as a GGUF file, and {model} is a folder: export --format hf, and convert "
        "both with llama.cpp's convert_hf_to_gguf.py"
    )
