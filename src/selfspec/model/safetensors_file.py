"""The safetensors container: headers are checked against the file before any weight is read."""

from __future__ import annotations

import json
import math
import struct
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from selfspec.errors import CorruptModelError, UnsupportedModelError
from selfspec.model.config import DTYPE_BYTES
from selfspec.model.reading import one_line, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

# Names of the format -> names of ``ModelConfig.dtype``.
_DTYPES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_MOST_HEADER_BYTES = 100_000_000  # the limit of the format


class TensorInfo(NamedTuple):
    """One tensor of a file: its precision, shape, number of bytes, and where they begin in the file."""

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    begin: int


class Header(NamedTuple):
    """What a file says of itself; ``raw`` is the header as stored."""

    tensors: dict[str, TensorInfo]
    raw: bytes
    file_bytes: int


def read_header(path: Path) -> Header:
    """Read and check the header of a safetensors file; the weights are not touched.

    Raises
    ------
    CorruptModelError
        It cannot be parsed, or does not describe exactly the bytes that the file has.
    UnsupportedModelError
        A tensor has a precision that is not supported.
    """
    try:
        with path.open("rb") as file:
            file_bytes = path.stat().st_size
            length = int.from_bytes(file.read(8), "little") if file_bytes >= 8 else -1
            if not 0 < length <= min(_MOST_HEADER_BYTES, file_bytes - 8):
                raise _damaged(path, "it is truncated, or not a safetensors file")
            raw = file.read(length)
    except OSError as error:
        raise CorruptModelError(f"cannot read {quoted(path)}: {one_line(error.strerror)}") from error
    tensors = _parse(path, raw, 8 + length)
    _check_offsets(path, tensors, 8 + length, file_bytes)
    return Header(tensors, raw, file_bytes)


def _damaged(path: Path, what: str) -> CorruptModelError:
    return CorruptModelError(f"{quoted(path)} is damaged: {what}; download it again")


def _parse(path: Path, raw: bytes, start: int) -> dict[str, TensorInfo]:
    try:
        values = json.loads(raw)
        entries = {name: entry for name, entry in values.items() if name != "__metadata__"}
        return {name: _entry(path, name, entry, start) for name, entry in entries.items()}
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(path, f"its header cannot be parsed ({one_line(error)})") from error


def _entry(path: Path, name: str, entry: dict[str, Any], start: int) -> TensorInfo:
    if entry["dtype"] not in _DTYPES:
        raise UnsupportedModelError(
            f"the tensor {one_line(name, 80)!r} in {quoted(path)} has the precision "
            f"{one_line(entry['dtype'], 20)}; supported: {', '.join(_DTYPES)}"
        )
    dtype = _DTYPES[entry["dtype"]]
    shape = tuple(index(length) for length in entry["shape"])  # 1.5 and 1e999 are no lengths
    begin, end = (index(offset) for offset in entry["data_offsets"])
    if min(shape, default=0) < 0 or end - begin != DTYPE_BYTES[dtype] * math.prod(shape):
        raise _damaged(path, f"the bytes of {one_line(name, 80)!r} do not match its shape")
    return TensorInfo(dtype, shape, end - begin, start + begin)


def _check_offsets(path: Path, tensors: Mapping[str, TensorInfo], start: int, file_bytes: int) -> None:
    expected = start
    for info in sorted(tensors.values(), key=lambda info: (info.begin, info.num_bytes)):
        if info.begin != expected:
            raise _damaged(path, "its tensors overlap or leave gaps")
        expected += info.num_bytes
    if expected != file_bytes:
        raise _damaged(
            path, f"it has {file_bytes - start} bytes of weights where its header says {expected - start}"
        )


def have_same_bytes(first: tuple[Path, TensorInfo], second: tuple[Path, TensorInfo]) -> bool:
    """Whether two tensors are stored in the same precision with the same bits."""
    if first[1][:3] != second[1][:3]:
        return False
    one, two = (np.memmap(p, np.uint8, "r", info.begin, (info.num_bytes,)) for p, info in (first, second))
    return bool(np.array_equal(one, two))


def write_float32(
    path: Path, shapes: Mapping[str, tuple[int, ...]], tensors: Iterable[tuple[str, np.ndarray[Any, Any]]]
) -> None:
    """Write float32 tensors one by one, so that memory holds a single tensor and not the model.

    ``tensors`` yields (name, array) in the order of ``shapes``.
    """
    with path.open("wb") as file:
        file.write(_head({name: ("F32", shape, 4 * math.prod(shape)) for name, shape in shapes.items()}))
        for (name, shape), (given, array) in zip(shapes.items(), tensors, strict=True):
            assert given == name
            assert array.shape == shape
            file.write(np.ascontiguousarray(array, dtype="<f4").data)


Raw: TypeAlias = "tuple[str, tuple[int, ...], np.ndarray[Any, Any]]"
"""A tensor as it is stored: name of `ModelConfig.dtype`, shape, bytes."""


def write_raw(path: Path, tensors: Mapping[str, Raw]) -> None:
    """Write tensors as they are stored elsewhere; mapped ones are read one by one."""
    names = {dtype: name for name, dtype in _DTYPES.items()}
    with path.open("wb") as file:
        file.write(
            _head({name: (names[dtype], shape, data.nbytes) for name, (dtype, shape, data) in tensors.items()})
        )
        for _, _, data in tensors.values():
            file.write(data.data)


def _head(tensors: Mapping[str, tuple[str, tuple[int, ...], int]]) -> bytes:
    """The header of tensors that follow each other: (precision, shape, bytes)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)  # readers map the weights: keep them aligned
    return struct.pack("<Q", len(raw)) + raw
