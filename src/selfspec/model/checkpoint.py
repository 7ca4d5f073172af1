"""A Hugging Face folder, checked completely before any weight is read."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from selfspec.errors import CorruptModelError, ModelNotFoundError, UnsupportedModelError
from selfspec.model.exits import NOTE, read_exits
from selfspec.model.families import config_from_hf, is_ignored, weight_shapes, weights_by_role, with_layout_of
from selfspec.model.mtp import PREFIX as MODULE
from selfspec.model.reading import Fields, listed, one_line, quoted, read_json, read_json_if_there
from selfspec.model.safetensors_file import Header, have_same_bytes, read_header
from selfspec.model.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from selfspec.model.config import ModelConfig

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_TEXTS = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja", "chat_templates/*.jinja", NOTE,
)  # fmt: skip
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checked checkpoint on this machine.

    ``weight_files`` maps every canonical weight name of the model to its safetensors file. ``fingerprint``
    is a SHA-256 over the configuration, the headers and samples of the weights: cheap, and different
    for different models. ``module_files`` are those of a multi-token module (`selfspec.model.mtp`), if it has one.
    """

    name: str
    folder: Path
    config: ModelConfig
    weight_files: Mapping[str, Path]
    tokenizer: Tokenizer
    fingerprint: str
    module_files: Mapping[str, Path] = field(default_factory=dict)


def read_config(folder: Path) -> ModelConfig:
    """The configuration of a folder that may have no weights.

    Raises
    ------
    ModelNotFoundError, UnsupportedModelError, CorruptModelError
        There is no ``config.json``, or it is of another architecture, or damaged.
    """
    config = config_from_hf(read_json(folder / "config.json"), f"config.json of {quoted(folder)}")
    generation = Fields(read_json_if_there(folder / "generation_config.json"), "generation_config.json")
    config = replace(config, exits=read_exits(folder, config))
    return _with_eos(config, generation.ids("eos_token_id") or config.eos_token_ids)


def open_folder(folder: Path, name: str) -> Checkpoint:
    """Check a Hugging Face folder; only safetensors weights are accepted.

    Raises
    ------
    ModelNotFoundError
        A file that every checkpoint has is not there.
    UnsupportedModelError
        Another architecture, unknown tensors, or weights in pickle files.
    CorruptModelError
        A damaged, incomplete or contradictory file.
    """
    config = read_config(folder)
    files = _weight_files(folder)
    headers = {file: read_header(folder / file) for file in sorted(set(files.values()))}
    found = _tensors(headers, files)
    config = with_layout_of(config, found)
    _check_tensors(folder, config, {tensor: headers[file] for tensor, file in found.items()})
    _check_tied_head(folder, config, headers, found)
    config, tokenizer = _with_tokenizer(folder, config)
    return Checkpoint(
        name=name,
        folder=folder,
        config=replace(config, dtype=_stored_dtype(headers)),
        weight_files={tensor: folder / found[tensor] for tensor in weight_shapes(config)},
        tokenizer=tokenizer,
        fingerprint=_fingerprint(folder, headers),
        module_files={tensor: folder / file for tensor, file in found.items() if tensor.startswith(MODULE)},
    )


def open_texts(folder: Path) -> tuple[ModelConfig, Tokenizer]:
    """Configuration and tokenizer of a folder that may have no weights; raises as ``open_folder``."""
    return _with_tokenizer(folder, read_config(folder))


def text_files(folder: Path) -> list[Path]:
    """The files that `open_texts` reads, of those that there are."""
    return [path for pattern in _TEXTS for path in sorted(folder.glob(pattern))]


def _with_tokenizer(folder: Path, config: ModelConfig) -> tuple[ModelConfig, Tokenizer]:
    tokenizer = Tokenizer.from_folder(folder, limit=config.vocab_size)
    if tokenizer.base_vocab_size > config.vocab_size:
        raise CorruptModelError(
            f"tokenizer.json in {quoted(folder)} has {tokenizer.base_vocab_size} tokens, but config.json has "
            f"vocab_size {config.vocab_size}: the two files belong to different models"
        )
    return _with_eos(config, tokenizer.eos_token_ids), tokenizer


def _with_eos(config: ModelConfig, ids: tuple[int, ...]) -> ModelConfig:
    if wrong := [token for token in ids if token >= config.vocab_size]:
        raise CorruptModelError(
            f"eos_token_id is {wrong[0]}; it must be below vocab_size ({config.vocab_size}): correct "
            "generation_config.json, or download the checkpoint again"
        )
    return replace(config, eos_token_ids=ids)


# -- which files ------------------------------------------------------------------------------------------


def _weight_files(folder: Path) -> dict[str, str]:
    """Tensor name -> file name as the index says; a single file is {"": file}."""
    if (folder / _SINGLE).exists():
        return {"": _SINGLE}
    if (folder / _INDEX).exists():
        return _read_index(folder)
    pickles = [path.name for pattern in _PICKLES for path in folder.glob(pattern)]
    if pickles:
        raise UnsupportedModelError(
            f"{quoted(folder)} has its weights in {listed(sorted(pickles))}: pickle files can run any "
            "code and are never loaded; load the model with transformers and save_pretrained it (safetensors)"
        )
    if ggufs := sorted(path.name for path in folder.glob("*.gguf")):
        raise ModelNotFoundError(f"{quoted(folder)} holds GGUF files ({listed(ggufs)}); give one of those files")
    raise ModelNotFoundError(f"there is neither {_SINGLE} nor {_INDEX} in {quoted(folder)}")


def _read_index(folder: Path) -> dict[str, str]:
    weight_map = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CorruptModelError(f"{quoted(folder / _INDEX)} has no weight_map; download it again")
    for tensor, file in weight_map.items():
        # judged by name: in the hub's cache the files themselves are links to elsewhere
        if not isinstance(file, str) or Path(file).name != file or "\\" in file or file in (".", ".."):
            raise CorruptModelError(
                f"{_INDEX} in {quoted(folder)} has {one_line(tensor, 80)!r} in {one_line(repr(file), 80)}; "
                "it must be a file of the same folder"
            )
    # unlike a path's own, this answers for names that no disk takes, too
    if missing := [file for file in sorted(set(weight_map.values())) if not os.path.isfile(folder / file)]:
        raise CorruptModelError(
            f"{listed(missing)} of {_INDEX} is not in {quoted(folder)}; download the missing files"
        )
    return weight_map


# -- which tensors ----------------------------------------------------------------------------------------


def _tensors(headers: Mapping[str, Header], files: Mapping[str, str]) -> dict[str, str]:
    """Tensor name -> file name, from the headers; an index must agree with them."""
    found = {tensor: file for file, header in headers.items() for tensor in header.tensors}
    if "" in files:
        return found
    if wrong := [tensor for tensor, file in files.items() if tensor not in headers[file].tensors]:
        raise CorruptModelError(
            f"{_INDEX} places {listed(wrong)} in files that do not have it; download the checkpoint again"
        )
    return {**found, **files}


def _check_tensors(folder: Path, config: ModelConfig, found: Mapping[str, Header]) -> None:
    shapes = weight_shapes(config)
    if missing := [tensor for tensor in shapes if tensor not in found]:
        raise CorruptModelError(
            f"the weights in {quoted(folder)} lack {listed(missing)}; config.json asks for them: "
            "download the checkpoint again"
        )
    unknown = [tensor for tensor in found if tensor not in shapes and not is_ignored(tensor, config)]
    if unknown:
        raise UnsupportedModelError(
            f"the weights in {quoted(folder)} have {listed(unknown)}, which {config.family} with this "
            "config.json does not use; they would be ignored, so the model is refused"
        )
    for tensor, shape in shapes.items():
        given = found[tensor].tensors[tensor].shape
        if given != shape:
            raise CorruptModelError(
                f"{tensor} in {quoted(folder)} has shape {given}; config.json asks for {shape}: the "
                "two files belong to different models"
            )


def _check_tied_head(
    folder: Path, config: ModelConfig, headers: Mapping[str, Header], found: Mapping[str, str]
) -> None:
    """A tied head may be stored as well, but only as a copy: another one would be a model that we do not run."""
    roles = weights_by_role(replace(config, tied_head=False))
    names = [roles[role].name for role in ("embedding", "head")]
    if not config.tied_head or names[1] not in found:
        return
    embedding, head = ((folder / found[name], headers[found[name]].tensors[name]) for name in names)
    if not have_same_bytes(embedding, head):
        raise CorruptModelError(
            f"config.json in {quoted(folder)} ties {names[1]} to the embedding, but the weights have a "
            "different one; set tie_word_embeddings to false, or delete that tensor"
        )


def _stored_dtype(headers: Mapping[str, Header]) -> str:
    """The precision that most bytes are stored in."""
    sizes: Counter[str] = Counter()
    for header in headers.values():
        for tensor in header.tensors.values():
            sizes[tensor.dtype] += tensor.num_bytes
    return sizes.most_common(1)[0][0]


def _fingerprint(folder: Path, headers: Mapping[str, Header]) -> str:
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file, header in headers.items():
        digest.update(f"{file} {header.file_bytes}".encode() + header.raw)
        with (folder / file).open("rb") as weights:
            # fine-tuned siblings differ in nothing but the weights
            for part in range(16):
                weights.seek(header.file_bytes * part // 16)
                digest.update(weights.read(4096))
    return digest.hexdigest()
