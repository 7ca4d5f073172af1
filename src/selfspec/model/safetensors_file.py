"""The safetensors container: headers are checked against the file before any weight is read."""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

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
    """One tensor of a file: its precision, shape, and bytes."""

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


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
    tensors = _parse(path, raw)
    _check_offsets(path, tensors, file_bytes - 8 - length)
    return Header({name: entry[0] for name, entry in tensors.items()}, raw, file_bytes)


def _damaged(path: Path, what: str) -> CorruptModelError:
    return CorruptModelError(f"{quoted(path)} is damaged: {what}; download it again")


def _parse(path: Path, raw: bytes) -> dict[str, tuple[TensorInfo, int, int]]:
    try:
        values = json.loads(raw)
        entries = {name: entry for name, entry in values.items() if name != "__metadata__"}
        return {name: _entry(path, name, entry) for name, entry in entries.items()}
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(path, f"its header cannot be parsed ({one_line(error)})") from error


def _entry(path: Path, name: str, entry: dict[str, Any]) -> tuple[TensorInfo, int, int]:
    if entry["dtype"] not in _DTYPES:
        raise UnsupportedModelError(
            f"the tensor {one_line(name, 80)!r} in {quoted(path)} has the precision "
            f"{one_line(entry['dtype'], 20)}; supported: {', '.join(_DTYPES)}"
        )
    dtype = _DTYPES[entry["dtype"]]
    shape = tuple(int(length) for length in entry["shape"])
    begin, end = (int(offset) for offset in entry["data_offsets"])
    if min(shape, default=0) < 0 or end - begin != DTYPE_BYTES[dtype] * math.prod(shape):
        raise _damaged(path, f"the bytes of {one_line(name, 80)!r} do not match its shape")
    return TensorInfo(dtype, shape, end - begin), begin, end


def _check_offsets(path: Path, tensors: Mapping[str, tuple[TensorInfo, int, int]], data_bytes: int) -> None:
    expected = 0
    for _, begin, end in sorted(tensors.values(), key=lambda entry: entry[1:]):
        if begin != expected:
            raise _damaged(path, "its tensors overlap or leave gaps")
        expected = end
    if expected != data_bytes:
        raise _damaged(path, f"it has {data_bytes} bytes of weights where its header says {expected}")


def write_float32(
    path: Path, shapes: Mapping[str, tuple[int, ...]], tensors: Iterable[tuple[str, np.ndarray[Any, Any]]]
) -> None:
    """Write float32 tensors one by one, so that memory holds a single tensor and not the model.

    ``tensors`` yields (name, array) in the order of ``shapes``.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)  # readers map the weights: keep them aligned
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        for (name, shape), (given, array) in zip(shapes.items(), tensors, strict=True):
            assert given == name
            assert array.shape == shape
            file.write(np.ascontiguousarray(array, dtype="<f4").data)
