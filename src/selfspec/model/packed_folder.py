"""A folder with packed weights: a model that is complete by itself, and runs in the native core alone.

It has configuration and tokenizer as a checkpoint has them, ``packed.bin`` and ``packed.json``
(`runtime.packed`), and a manifest with sizes and checksums, which are verified whenever the folder is loaded.
The same weights in fewer bits, for drafts, are two such files in a folder of their own, such as ``int4``.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from selfspec.errors import CorruptModelError, UnsupportedModelError
from selfspec.model.cache import COPIED, FORMAT, has_own_texts, problem_of, read_manifest, write_manifest
from selfspec.model.checkpoint import open_texts, read_config, text_files
from selfspec.model.families import with_layout_of
from selfspec.model.reading import one_line, quoted, read_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from selfspec.model.config import ModelConfig
    from selfspec.model.tokenizer import Tokenizer

WEIGHTS = ("packed.bin", "packed.json")
_BYTES, _HEAD = WEIGHTS


def is_packed(folder: Path) -> bool:
    """Whether a folder has packed weights; those of a checkpoint go before them."""
    return (folder / _HEAD).is_file() and not list(folder.glob("*.safetensors*"))


def name_of(folder: Path) -> str:
    """The name of the model that was packed."""
    name = read_manifest(folder).get("name")
    return one_line(name, 80) if isinstance(name, str) and name else folder.resolve().name


def packed_config(folder: Path) -> ModelConfig:
    """The configuration, with the layout of the weights that were packed; raises as ``read_config``."""
    return _laid_out(folder, read_config(folder))


def packing_of(folder: Path, kind: str | None) -> Path:
    """Where a folder has its weights in a kind of packed matrix (None: as it was packed): there, or in itself."""
    own = folder / (kind or "")
    return own if (own / _HEAD).is_file() else folder


def open_packed(folder: Path, layout: int, packing: Path) -> tuple[ModelConfig, Tokenizer]:
    """Configuration and tokenizer of a folder whose files are as they were written.

    ``layout`` is the number that packed weights must have to be read here, ``packing`` the `packing_of` which they
    are; the bytes of others are not looked at.

    Raises
    ------
    UnsupportedModelError
        It was written by another version.
    CorruptModelError
        A file is missing, damaged, or was added.
    """
    about = read_manifest(folder)
    if not about:
        raise CorruptModelError(f"{quoted(folder)} has packed weights but no readable manifest; copy it again")
    head = read_json(packing / _HEAD)
    for what, number, wanted in (
        ("format", about.get("format"), FORMAT),
        ("layout", head.get("layout"), layout),
    ):
        if number != wanted and isinstance(number, int):
            age = "a newer" if number > wanted else "an older"
            raise UnsupportedModelError(
                f"{quoted(folder)} was packed by {age} selfspec ({what} {number}; this one reads {wanted}): "
                "use that version, or pack the model again with `selfspec bundle`"
            )
    own = (packing / _BYTES).relative_to(folder).as_posix()
    if problem := problem_of(folder, lambda name: name.endswith(_BYTES) and name != own):
        raise CorruptModelError(f"{quoted(folder)} is damaged ({problem}); copy or pack it again")
    config, tokenizer = open_texts(folder)
    return _laid_out(folder, config), tokenizer


def write_packed(
    weights: Path, texts: Path, target: Path, name: str, lighter: Sequence[tuple[str, Path]] = ()
) -> None:
    """Make an empty folder ``target`` one with the packed weights of a folder, and the ``texts`` of another.

    ``lighter`` are folders of the same weights in fewer bits, each with the kind of its matrices.
    """
    files = {target / file.relative_to(texts): file for file in text_files(texts)}
    for kind, source in (("", weights), *lighter):
        files |= {target / kind / file: source / file for file in WEIGHTS}
    for copy, file in files.items():
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, copy)
    about: dict[str, Any] = {"format": FORMAT, "name": name}
    write_manifest(target, about if has_own_texts(texts) else about | COPIED)


def only_native(folder: Path) -> UnsupportedModelError:
    """What to say where something else than the native core wants to read a packed folder."""
    return UnsupportedModelError(
        f"{quoted(folder)} holds weights packed for the native core, which nothing else reads; use runtime cpu, or "
        "give the checkpoint that it was made of"
    )


def _laid_out(folder: Path, config: ModelConfig) -> ModelConfig:
    weights = read_json(folder / _HEAD).get("weights")
    # the keys of parts begin with the name of the weight that they are of
    return with_layout_of(config, {key.partition(":")[0] for key in weights} if isinstance(weights, dict) else ())
