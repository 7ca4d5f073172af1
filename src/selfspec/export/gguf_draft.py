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
from selfspec.model.head_file import BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from selfspec.export.cut import Cutting
    from selfspec.model.config import ModelConfig
    from selfspec.model.families import GgufWeight

_LAYER = re.compile(r"blk\.(\d+)\.(.*)")
_ARCHITECTURE = "general.architecture"


def write_gguf(source: Path, config: ModelConfig, cutting: Cutting, out: Path) -> None:
    """Write the draft of the GGUF file ``source``, whose model is ``config``, to ``out``, and read its head back.

    What is silent becomes zeros in float32; matrices of a trained head are kept in Q8_0. Raises
    UnsupportedModelError as `check_layers`.
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
    changed = {
        w.tensors[0]: (w, cutting.changed[w.name]) for w in gguf_weights(config) if w.name in cutting.changed
    }
    numbers = {layer: i for i, layer in enumerate(cutting.layers)}
    for tensor in reader.tensors:
        found = _LAYER.fullmatch(tensor.name)
        if found and int(found[1]) not in numbers:
            continue
        name = f"blk.{numbers[int(found[1])]}.{found[2]}" if found else tensor.name
        if tensor.name in changed:
            weight, ours = changed[tensor.name]
            yield name, *_packed(_as_stored(weight, ours))
        elif tensor.name in silent:
            shape = tuple(int(length) for length in reversed(tensor.shape))
            yield name, np.zeros(shape, np.float32), gguf.GGMLQuantizationType.F32
        else:
            yield name, tensor.data, tensor.tensor_type


def _as_stored(weight: GgufWeight, ours: NDArray[np.float32]) -> NDArray[np.float32]:
    """What a weight of ours is in a GGUF file: `GgufWeight.change` undone."""
    if weight.dense:  # something was added
        return ours - weight.change([np.zeros(weight.stored, np.float32)])
    rows = weight.change([np.arange(weight.stored[0])])
    theirs = np.empty_like(ours)
    theirs[rows] = ours
    return theirs


def _packed(values: NDArray[np.float32]) -> tuple[NDArray[Any], Any]:
    """Numbers as they are stored, and their type: vectors exactly, matrices in 8 bits as heads are here."""
    import gguf

    if values.ndim == 1:
        return values, gguf.GGMLQuantizationType.F32
    kind = gguf.GGMLQuantizationType.F16 if values.shape[1] % BLOCK else gguf.GGMLQuantizationType.Q8_0
    return gguf.quants.quantize(values, kind), kind


def not_a_gguf(model: str) -> OptionError:
    """Why a folder cannot be exported as a GGUF file, and how to get one."""
    return OptionError(
        f"--format gguf needs the model as a GGUF file, and {model} is a folder: export --format hf, and convert "
        "both with llama.cpp's convert_hf_to_gguf.py"
    )
