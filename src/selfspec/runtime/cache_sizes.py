"""Bytes of a cache before there is one, and without torch: what `Cache.nbytes` will say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec.runtime.cpu import kv_bytes_per_token
from selfspec.runtime.rings import Rings
from selfspec.runtime.states import kept_bytes
from selfspec.types import MOST_ROWS

if TYPE_CHECKING:
    from selfspec.model.config import ModelConfig

_CELLS = 16  # of which the native core makes a block
_SEGMENT = 128  # cells, in which its rings grow


def packed_cache_bytes(config: ModelConfig, kv: str, slots: int, length: int) -> int:
    """Of the native core, with keys and values in a precision of `runtime.cpu.KV`."""
    whole = _padded(length, _CELLS)
    rings = (_padded(cells, _SEGMENT) if cells < length else whole for cells in _cells(config, length))
    places = sum(ring if 0 < ring < whole else whole for ring in rings)
    return slots * places * (kv_bytes_per_token(config, kv) // config.num_layers)


def torch_cache_bytes(config: ModelConfig, width: int, slots: int, length: int) -> int:
    """Of the torch runtime beside weights of ``width`` bytes, the states of recurrent layers included."""
    cell = 2 * config.num_kv_heads * config.head_dim * width
    return slots * (sum(_cells(config, length)) * cell + kept_bytes(config, width))


def _cells(config: ModelConfig, length: int) -> list[int]:
    """Of each layer, for texts of ``length``; both runtimes cut longer passes than `MOST_ROWS`."""
    return Rings.of(config, MOST_ROWS).sizes(length)


def _padded(number: int, to: int) -> int:
    return number + -number % to
