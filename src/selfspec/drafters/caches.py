"""Caches of drafters that keep keys and values of their own, beside the target's."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

    from selfspec.context import Context
    from selfspec.runtime.base import Cache


class OwnCaches(WeakKeyDictionary["Context", "Cache"]):
    """One cache for each context, with its slots; it grows with what is asked of it, and goes with the context.

    ``bytes_per_text`` is the most that a text has had.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes_per_text = 0

    def of(self, context: Context, length: int, new_cache: Callable[[int, int], Cache]) -> Cache:
        """That of ``context``, of at least ``length`` cells; ``new_cache(slots, length)`` makes the first."""
        cache = self.get(context)
        if cache is None:
            cache = new_cache(context.cache.slots, length)
        elif cache.length < length:
            cache = cache.longer(length)
        self[context] = cache
        self.bytes_per_text = max(self.bytes_per_text, cache.nbytes // cache.slots)
        return cache
