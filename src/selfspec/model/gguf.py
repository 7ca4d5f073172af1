"""GGUF files: read, checked, and written out once as an ordinary Hugging Face folder in float32."""

from __future__ import annotations

import json
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from selfspec.errors import CorruptModelError, UnsupportedModelError
from selfspec.model.disk import room
from selfspec.model.embedded import unpacked
from selfspec.model.families import config_from_hf, family_of, gguf_weights, weight_shapes
from selfspec.model.gguf_config import factors, hf_config
from selfspec.model.gguf_file import read_gguf
from selfspec.model.gguf_tokenizer import build_tokenizer, special_ids, token_strings
from selfspec.model.reading import listed, quoted
from selfspec.model.safetensors_file import write_float32
from selfspec.model.stored import BLOCK_TYPES, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from selfspec.model.config import ModelConfig
    from selfspec.model.families import GgufWeight
    from selfspec.model.reading import Fields

_KINDS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", **{kind.upper(): kind for kind in BLOCK_TYPES}}
"""GGUF type -> kind of a `Stored`."""
Writer: TypeAlias = "Callable[[Path, ModelConfig, Iterator[tuple[str, Stored]]], None]"


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    metadata: Fields
    tensors: Mapping[str, Any]  # name -> gguf.ReaderTensor, data not yet read
    hf_config: dict[str, Any]
    config: ModelConfig


def gguf_config(source: Path) -> ModelConfig:
    """The configuration of a GGUF file, or of a package that has one inside.

    Raises
    ------
    UnsupportedModelError, CorruptModelError
        As ``convert``.
    """
    with _head(source) as file:
        return file.config


def gguf_kinds(source: Path) -> dict[str, str]:
    """Canonical name -> `Stored` kind of every weight of a GGUF file, of which only the head is read.

    Raises as ``gguf_config``.
    """
    with _head(source) as file:
        _check_tensors(file)
        return {weight.name: _kind(file, weight) for weight in gguf_weights(file.config)}


def convert(
    source: Path,
    folder: Path,
    write: Writer | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> None:
    """Write the model of a GGUF file (or of a package that has one inside) into an empty folder.

    ``write(folder, config, weights)`` writes the weights, by default as ``model.safetensors`` in float32. They
    are those of a Hugging Face model: order of rows, layout and offsets of norms are undone. ``progress`` is
    called with the weights written so far and in all.

    Raises
    ------
    UnsupportedModelError
        An architecture, tokenizer, quantisation or option that is not covered.
    CorruptModelError
        Damaged, truncated, incomplete or contradictory.
    ModelError
        The disk is full.
    """
    with unpacked(source, folder) as path:
        file = _read(path)
        _check_tensors(file)
        with room(folder, 20_000_000):
            _write_texts(file, folder)
        (write or _write_float32)(folder, file.config, _counted(_stored(file), file.config.parameters, progress))


# -- reading ----------------------------------------------------------------------------------------------


@contextmanager
def _head(source: Path) -> Iterator[_File]:
    with tempfile.TemporaryDirectory() as scratch, unpacked(source, Path(scratch), head=True) as path:
        yield _read(path)


def _read(path: Path) -> _File:
    found = read_gguf(path)
    config = hf_config(found.metadata, found.tensors)
    return _File(*found, config, config_from_hf(config, found.metadata.source))


def _check_tensors(file: _File) -> None:
    wanted = {tensor: weight.stored for weight in gguf_weights(file.config) for tensor in weight.tensors}
    if missing := [name for name in wanted if name not in file.tensors]:
        raise CorruptModelError(f"{quoted(file.path)} lacks the tensors {listed(missing)}; download it again")
    read = {*wanted, *factors(file.config.family, file.hf_config)}
    if unknown := [name for name in file.tensors if name not in read]:
        raise UnsupportedModelError(
            f"{quoted(file.path)} has the tensors {listed(unknown)}, which {family_of(file.config).name} "
            "models here do not use; they would be ignored, so the model is refused"
        )
    if foreign := {t.tensor_type.name for t in file.tensors.values()} - set(_KINDS):
        raise UnsupportedModelError(
            f"{quoted(file.path)} has weights of the type {listed(sorted(foreign))}; supported: {', '.join(_KINDS)}"
        )
    for name, shape in wanted.items():
        given = tuple(int(length) for length in reversed(file.tensors[name].shape))
        if _without_ones(given) != _without_ones(shape):
            raise CorruptModelError(
                f"{name} in {quoted(file.path)} has shape {given}; its metadata asks for {shape}: download it again"
            )


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A matrix of one row may be kept as a vector."""
    return tuple(length for length in shape if length != 1)


# -- writing ----------------------------------------------------------------------------------------------


def _write_float32(folder: Path, config: ModelConfig, stored: Iterator[tuple[str, Stored]]) -> None:
    shapes = weight_shapes(config)
    with room(folder, 4 * config.parameters):
        write_float32(folder / "model.safetensors", shapes, ((name, weight.dense()) for name, weight in stored))


def _stored(file: _File) -> Iterator[tuple[str, Stored]]:
    """Every weight under its canonical name; of block types the rows stay as they are stored, where they can."""
    for weight in gguf_weights(file.config):
        found = [_tensor(file, tensor, weight.stored) for tensor in weight.tensors]
        kind, origin = _kind(file, weight), found[0].origin
        arrays = [each.data if each.kind == kind and not weight.dense else each.dense() for each in found]
        yield weight.name, Stored(kind, weight.shape, weight.change(arrays), origin)


def _counted(
    stored: Iterator[tuple[str, Stored]], total: int, progress: Callable[[int, int], None]
) -> Iterator[tuple[str, Stored]]:
    done = 0
    for name, weight in stored:
        yield name, weight
        progress(done := done + prod(weight.shape), total)


def _tensor(file: _File, name: str, shape: tuple[int, ...]) -> Stored:
    tensor = file.tensors[name]
    kind = _KINDS[tensor.tensor_type.name]
    data = tensor.data.view("<u2") if kind == "bfloat16" else tensor.data
    if kind not in BLOCK_TYPES:
        data = data.reshape(shape)
    return Stored(kind, shape, data, f"{name} in {quoted(file.path)}")


def _kind(file: _File, weight: GgufWeight) -> str:
    """The kind of a weight's `Stored`: that of its tensors if they have one, and nothing is to be computed."""
    kinds = {_KINDS[file.tensors[tensor].tensor_type.name] for tensor in weight.tensors}
    return "float32" if weight.dense or len(kinds) > 1 else kinds.pop()


def _write_texts(file: _File, folder: Path) -> None:
    tokens, ids = token_strings(file.metadata), special_ids(file.metadata)
    names = {key.removesuffix("_id"): tokens[ids[key]] for key in ids if isinstance(ids[key], int)}
    if isinstance(ids.get("eos_token_id"), list):
        names["eos_token"] = tokens[ids["eos_token_id"][0]]
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": file.config.context_length,
        **names,
    }
    if "tokenizer.chat_template" in file.metadata:
        settings["chat_template"] = file.metadata.text("tokenizer.chat_template")
    texts = {
        "config.json": json.dumps(file.hf_config, indent=2),
        "generation_config.json": json.dumps(ids, indent=2),
        "tokenizer.json": build_tokenizer(file.metadata).to_str(),
        "tokenizer_config.json": json.dumps(settings, indent=2, ensure_ascii=False),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
