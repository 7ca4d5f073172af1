"""The cache of compiled passes: a scratch cell in every layer, in memory that outlives the cache."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from selfspec.runtime.rings import Rings
from selfspec.runtime.torch_cache import FEWER, TorchCache, memory_for, writable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from selfspec.model.config import ModelConfig

CELLS = 128  # the cells of a layer are a multiple of it, the scratch cell included
KEPT = 2  # free memories that are kept for the next caches of their shapes


class Arena:
    """The memory of a cache: keys and values by layer [slots, cells + 1, KV heads, head width], zeroed.

    ``graphs`` is what was captured over it: addresses are part of that, so both live and die together.
    """

    def __init__(self, like: Tensor, heads: tuple[int, int], slots: int, sizes: Sequence[int]) -> None:
        self.shape = (slots, tuple(sizes))
        self.keys, self.values = (
            [writable(like, (slots, size and size + 1, *heads)) for size in sizes] for _ in ("keys", "values")
        )
        self.graphs: dict[Any, Any] = {}

    def clear(self) -> None:
        """Zeros again."""
        for stored in (*self.keys, *self.values):
            stored.zero_()


class Arenas:
    """Where caches get their memory, and leave it for the next one of the same shape.

    A new cache for every text would be captured anew for every text.
    """

    def __init__(self, like: Tensor, heads: tuple[int, int]) -> None:
        self._like, self._heads = like, heads
        self._free: list[Arena] = []

    def lease(self, slots: int, sizes: Sequence[int]) -> Lease:
        """Memory of this shape, zeroed; it comes back when nobody holds the lease."""
        shape = (slots, tuple(sizes))
        found = next((arena for arena in self._free if arena.shape == shape), None)
        if found is None:
            return Lease(Arena(self._like, self._heads, slots, sizes), self)
        self._free.remove(found)
        found.clear()
        return Lease(found, self)

    def give(self, arena: Arena) -> None:
        """It is free."""
        self._free = [*self._free, arena][-KEPT:]


class Lease:
    """The right to an arena."""

    def __init__(self, arena: Arena, arenas: Arenas) -> None:
        self.arena, self.arenas = arena, arenas
        weakref.finalize(self, arenas.give, arena).atexit = False


class StaticCache(TorchCache):
    """A `TorchCache` in leased memory, whose layers have a scratch cell behind their last one.

    ``keys`` and ``values`` are views without that cell, for passes that run as they are. Layers have more cells
    than were asked for: `CELLS` at a time.
    """

    def __init__(self, length: int, rings: Rings, lease: Lease) -> None:
        self.arena, self._lease = lease.arena, lease
        keys, values = ([stored[:, :-1] for stored in part] for part in (self.arena.keys, self.arena.values))
        super().__init__(length, rings, keys, values, {})

    @classmethod
    def of(cls, config: ModelConfig, shape: tuple[int, int], spare: int, arenas: Arenas) -> StaticCache:
        """Empty, of ``shape`` (slots, length); a ring has ``spare`` cells more than its window."""
        rings = Rings.of(config, spare)
        return cls(shape[1], rings, arenas.lease(shape[0], rounded(rings.sizes(shape[1]))))

    @property
    def nbytes(self) -> int:
        """Bytes held, scratch cells included."""
        return sum(stored.nbytes for stored in (*self.arena.keys, *self.arena.values))

    def longer(self, length: int) -> StaticCache:
        """See `Cache.longer`: the same memory where it is long enough."""
        sizes = rounded(self.rings.sizes(length))
        if (self.slots, sizes) == self.arena.shape:
            return StaticCache(length, self.rings, self._lease)
        with memory_for(f"a KV cache of {self.slots} x {length} tokens beside the one it replaces; {FEWER}"):
            made = StaticCache(length, self.rings, self._lease.arenas.lease(self.slots, sizes))
        for old, new in zip((*self.keys, *self.values), (*made.keys, *made.values), strict=True):
            new[:, : old.shape[1]] = old
        return made


def rounded(sizes: Sequence[int]) -> tuple[int, ...]:
    """So many cells of each layer that they are a multiple of `CELLS` with the scratch cell; 0 stays 0."""
    return tuple(size and -(-(size + 1) // CELLS) * CELLS - 1 for size in sizes)
