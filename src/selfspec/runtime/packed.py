"""Weights packed for the native core: written once into the conversion cache, then mapped or read into memory.

An entry has ``packed.bin``, the buffers one after the other, each at a multiple of 64 bytes, and
``packed.json``, which says what they are. One entry belongs to the weights, the bits, and the layout.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.errors import CorruptModelError, OptionError
from selfspec.model.cache import checksum, converted
from selfspec.model.checkpoint import open_texts
from selfspec.model.disk import room
from selfspec.model.gguf import convert, gguf_kinds
from selfspec.model.load import config_of, find_checkpoint, locate, silent
from selfspec.model.packed_folder import open_packed, packing_of
from selfspec.model.reading import one_line, quoted
from selfspec.model.stored import from_safetensors
from selfspec.runtime.blocks import EXACT_BLOCKS, KIND_OF_BLOCKS
from selfspec.runtime.cpu_model import precision_of, require_supported
from selfspec.runtime.held import held
from selfspec.runtime.packing import (
    KIND_OF_BITS,
    KIND_OF_DTYPE,
    KINDS,
    Packed,
    PackedWeights,
    pack,
    pack_blocks,
    packed_bytes,
)
from selfspec.runtime.parts import parts_by_name

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from selfspec.model.config import ModelConfig
    from selfspec.model.stored import Stored
    from selfspec.model.tokenizer import Tokenizer
    from selfspec.runtime.parts import Part

LAYOUT = 2  # of the buffers and of packed.json; a new number packs anew
_ALIGNMENT = 64
_FALLBACK = "int8"  # for block types that no kind holds
_SAMPLED_ROWS = 64  # of each matrix, for the error of rounding


@dataclass(frozen=True, slots=True)
class PackedModel:
    """A model for the native core.

    ``folder`` has the packed weights, ``texts`` configuration and tokenizer. ``rounding`` is the relative error
    (root of the mean square, of samples) of the worst matrix that was rounded, 0 where all weights are those of
    the checkpoint. ``fingerprint`` is the SHA-256 of the packed weights.
    """

    name: str
    config: ModelConfig
    tokenizer: Tokenizer
    weights: PackedWeights
    rounding: float
    fingerprint: str
    folder: Path
    texts: Path

    def held(self) -> PackedWeights:
        """The weights for many passes (`runtime.held`); ``weights`` are mapped."""
        return _read(self.folder, self.config, open_bytes=held)[0]


def find_packed(
    model: str | os.PathLike[str],
    bits: int | None = None,
    *,
    notify: Callable[[str], None] = silent,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> PackedModel:
    """Find a model as ``find_checkpoint`` does, and pack it if that has not been done.

    Parameters
    ----------
    bits
        4, 8, 16 or 32 bits a weight; None keeps the precision of the file. Blocks of Q4_0, Q4_1, Q5_0 and Q8_0
        are taken over as they are, those of Q4_K with their scales rounded to fp16; other block types become
        int8.
    progress
        Called with the weights packed so far and in all.

    Raises
    ------
    OptionError
        Other bits.
    SelfspecError
        As ``find_checkpoint``.
    """
    _check_bits(bits)

    def write(folder: Path, config: ModelConfig, stored: Iterator[tuple[str, Stored]]) -> None:
        require_supported(config)
        _write(folder, _cut(config, stored), bits, lambda done: progress(done, config.parameters))

    form = f"cpu-{'stored' if bits is None else KIND_OF_BITS[bits]}-{LAYOUT}"
    kind, path, name = locate(model)
    if kind == "packed":
        return _complete(path, name, bits)
    if kind == "gguf":
        entry = converted(path, lambda source, folder: convert(source, folder, write), notify, form)
        texts, (config, tokenizer) = entry, open_texts(entry)
    else:
        checkpoint = find_checkpoint(model, notify=notify, progress=progress)
        texts, config, tokenizer = checkpoint.folder, checkpoint.config, checkpoint.tokenizer

        def pack(_source: Path, folder: Path) -> None:
            write(folder, config, from_safetensors(checkpoint.weight_files))

        entry = converted(checkpoint.folder, pack, notify, form, checkpoint.fingerprint)
    weights, rounding = _read(entry, config)
    return PackedModel(name, config, tokenizer, weights, rounding, checksum(entry, "packed.bin"), entry, texts)


def _complete(folder: Path, name: str, bits: int | None) -> PackedModel:
    """The model of a folder that was packed elsewhere."""
    packing = _packing(folder, bits)
    config, tokenizer = open_packed(folder, LAYOUT, packing)
    weights, rounding = _read(packing, config, "copy or pack it again")
    _check_packed_bits(packing, config, weights, bits)
    fingerprint = checksum(folder, (packing / "packed.bin").relative_to(folder).as_posix())
    return PackedModel(name, config, tokenizer, weights, rounding, fingerprint, packing, folder)


def _packing(folder: Path, bits: int | None) -> Path:
    return packing_of(folder, None if bits is None else KIND_OF_BITS[bits])


def _check_packed_bits(folder: Path, config: ModelConfig, weights: PackedWeights, bits: int | None) -> None:
    """Raise OptionError where a packed model has other bits than those that are asked for."""
    inexact = [part.key for parts in parts_by_name(config).values() for part in parts if not part.is_exact]
    kinds = {found.kind for key in inexact if isinstance(found := weights[key], Packed)}
    wanted = {KIND_OF_BITS[bits], "fp16" if bits == 16 else ""} if bits is not None else kinds
    if not kinds <= wanted:
        raise OptionError(
            f"bits is {bits}; {quoted(folder)} is packed in {precision_of(config, weights)} and cannot be packed "
            "anew: leave bits out, or give the checkpoint that it was made of"
        )


def packed_sizes(model: str | os.PathLike[str], bits: int | None = None) -> tuple[str, dict[str, int]]:
    """The precision of what ``find_packed`` would make, and the bytes of each part; no weights are read.

    Raises as it does, and UnsupportedModelError for a model that the core cannot run.
    """
    _check_bits(bits)
    kind, path, _ = locate(model)
    config = config_of(model)
    require_supported(config)
    if kind == "packed":
        packing = _packing(path, bits)
        weights, _ = _read(packing, config, "copy or pack it again")
        _check_packed_bits(packing, config, weights, bits)
        return precision_of(config, weights), {key: weight.data.nbytes for key, weight in weights.items()}
    kinds = gguf_kinds(path) if kind == "gguf" else {}
    matrices: PackedWeights = {}
    sizes: dict[str, int] = {}
    for name, parts in parts_by_name(config).items():
        for part in parts:
            if part.is_vector:
                sizes[part.key] = 4 * int(np.prod(part.shape))
                continue
            packed, (rows, columns) = _kind(part, kinds.get(name, config.dtype), bits), part.shape
            matrices[part.key] = Packed(packed, rows, columns, np.empty(0, dtype=np.uint8))
            sizes[part.key] = packed_bytes(packed, rows, columns)
    return precision_of(config, matrices), sizes


def _check_bits(bits: int | None) -> None:
    if bits is not None and bits not in KIND_OF_BITS:
        allowed = ", ".join(map(str, sorted(KIND_OF_BITS)))
        raise OptionError(f"bits is {bits!r}; it must be one of {allowed}, or left out (as stored)")


# -- writing ----------------------------------------------------------------------------------------------


def _cut(config: ModelConfig, stored: Iterator[tuple[str, Stored]]) -> Iterator[tuple[Part, Stored]]:
    """The parts of all weights, as the core wants them."""
    parts = parts_by_name(config)
    for name, weight in stored:
        for part in parts[name]:
            yield part, part.of(weight)


def _write(
    folder: Path, parts: Iterator[tuple[Part, Stored]], bits: int | None, packed: Callable[[int], None]
) -> None:
    entries: dict[str, dict[str, Any]] = {}
    begin, done, rounding = 0, 0, 0.0
    with (folder / "packed.bin").open("wb") as file:
        for part, weight in parts:
            kind, data, error = _pack(part, weight, bits)
            with room(folder, data.nbytes + _ALIGNMENT):
                file.write(bytes(-begin % _ALIGNMENT))
                file.write(data.data)
            begin += -begin % _ALIGNMENT
            entries[part.key] = {"kind": kind, "shape": list(part.shape), "begin": begin, "bytes": data.nbytes}
            begin += data.nbytes
            rounding = max(rounding, error)
            packed(done := done + int(np.prod(part.shape)))
    head = {"layout": LAYOUT, "rounding": rounding, "weights": entries}
    (folder / "packed.json").write_text(json.dumps(head, indent=1), encoding="utf-8")


def _pack(part: Part, weight: Stored, bits: int | None) -> tuple[str, NDArray[Any], float]:
    """Kind (a vector has none), data, and the relative error of rounding."""
    if part.is_vector:
        return "", np.ascontiguousarray(weight.dense(), dtype="<f4"), 0.0
    blocks, kind = weight.kind.upper(), _kind(part, weight.kind, bits)
    if kind == KIND_OF_BLOCKS.get(blocks):
        made = pack_blocks(weight.data, blocks)
        return kind, made.data, 0.0 if blocks in EXACT_BLOCKS else _error(made, weight.dense())
    dense = weight.dense()
    made = pack(dense, kind)
    return kind, made.data, _error(made, dense)


def _kind(part: Part, stored: str, bits: int | None) -> str:
    """How a matrix that was of a `Stored` kind is packed."""
    if part.is_exact:
        return "fp32"
    exact = KIND_OF_BLOCKS.get(stored.upper()) or KIND_OF_DTYPE.get(stored)
    if bits == 16 and exact == "fp16":
        return exact  # bf16 would round it
    return (exact or _FALLBACK) if bits is None else KIND_OF_BITS[bits]


def _error(made: Packed, dense: NDArray[np.float32]) -> float:
    rows = np.unique(np.linspace(0, len(dense) - 1, _SAMPLED_ROWS).astype(np.int64))
    want = dense[rows].astype(np.float64)
    size = float(np.square(want).sum())
    return float(np.sqrt(np.square(made.unpack(rows) - want).sum() / size)) if size else 0.0


# -- reading ----------------------------------------------------------------------------------------------


def _read(
    entry: Path,
    config: ModelConfig,
    remedy: str = "delete that folder, and they are made again",
    open_bytes: Callable[[Path], NDArray[np.uint8]] = lambda file: np.memmap(file, np.uint8, "r").view(np.ndarray),
) -> tuple[PackedWeights, float]:
    """The weights of an entry, by default mapped, and the error of rounding.

    Its files have the checksums that are noted beside them. What they say of themselves is checked all the same,
    before anything is read through it.
    """
    parts = [part for parts in parts_by_name(config).values() for part in parts]
    try:
        head = json.loads((entry / "packed.json").read_bytes())
        buffer = open_bytes(entry / "packed.bin")
        if head["layout"] != LAYOUT or set(head["weights"]) != {part.key for part in parts}:
            raise ValueError("packed.json lists the parts of another model")
        spans = {part.key: _span(part, head["weights"][part.key], len(buffer)) for part in parts}
        _check_apart(spans)
        weights = {
            part.key: _mapped(part, head["weights"][part.key]["kind"], buffer[spans[part.key]]) for part in parts
        }
        return weights, float(head["rounding"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptModelError(
            f"the packed weights in {quoted(entry)} are not those of this model ({one_line(error)}); {remedy}"
        ) from error


def _span(part: Part, about: dict[str, Any], size: int) -> slice:
    """Where the bytes of a part are; ValueError for what cannot be them."""
    kind, shape, begin, count = (about[name] for name in ("kind", "shape", "begin", "bytes"))
    if part.is_vector:
        fits, wanted = kind == "", 4 * int(np.prod(part.shape))
    else:
        fits = kind == "fp32" if part.is_exact else kind in KINDS
        wanted = packed_bytes(kind, *part.shape) if fits else 0
    if not fits or tuple(shape) != part.shape or type(begin) is not int or count != wanted:
        raise ValueError(f"{part.key} has another kind, shape or size")
    if begin < 0 or begin % _ALIGNMENT or begin + wanted > size:
        raise ValueError(f"{part.key} lies outside of packed.bin, or at no multiple of {_ALIGNMENT}")
    return slice(begin, begin + wanted)


def _check_apart(spans: dict[str, slice]) -> None:
    ordered = sorted(spans.items(), key=lambda item: item[1].start)
    for (one, first), (other, second) in pairwise(ordered):
        if first.stop > second.start:
            raise ValueError(f"{one} and {other} overlap")


def _mapped(part: Part, kind: str, data: NDArray[np.uint8]) -> Packed | NDArray[np.float32]:
    if part.is_vector:
        return data.view("<f4").reshape(part.shape)
    rows, columns = part.shape
    return Packed(kind, rows, columns, data)
