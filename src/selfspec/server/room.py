"""Memory for texts: how many slots of which length the cache has, within a budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec.errors import OptionError
from selfspec.flight import Flight
from selfspec.server.failures import FieldError

if TYPE_CHECKING:
    from selfspec.generation import Generation
    from selfspec.runtime.base import Runtime


@dataclass(frozen=True)
class CacheLimits:
    """``budget`` are the most bytes of keys and values, 0 for no limit; ``keeps_prefixes`` as in `Flight`."""

    budget: int = 0
    keeps_prefixes: bool = True


class Room:
    """Makes the cache of a server, and says who has to wait.

    All slots are as long as the longest text that is under way. Where a long text leaves no room for all ``slots``,
    there are fewer for as long as it is there: it waits until those under way have ended, since cells cannot move.
    """

    def __init__(self, runtime: Runtime, slots: int, limits: CacheLimits) -> None:
        if limits.budget < 0:
            raise OptionError(f"the KV budget is {limits.budget}; it must be a positive number of bytes, or 0")
        self._runtime, self._slots, self._limits = runtime, slots, limits

    def require(self, limit: int) -> None:
        """Raise FieldError where a text of so many tokens, its prompt among them, never has room."""
        if not self._most_slots(limit):
            raise FieldError(
                f"the text may have {limit} tokens with its prompt, which take "
                f"{self._runtime.cache_bytes(1, limit)} bytes of keys and values; this server has "
                f"{self._limits.budget}: ask for fewer new tokens (max_tokens)",
                "max_tokens",
            )

    def suits(self, flight: Flight, limit: int) -> bool:
        """Whether a text of so many tokens may board when a slot is free; else the cache needs other slots."""
        most = self._most_slots(max(limit, flight.longest))
        return flight.slots >= most and self._fits(flight, limit)

    def flight(self, limit: int) -> Flight:
        """A new one, for a text of so many tokens."""
        return Flight(self._runtime, self._most_slots(limit), limit, self._limits.keeps_prefixes)

    def board(self, flight: Flight, index: int, generation: Generation) -> None:
        """Give a text a slot; a cache that is too short becomes twice as long where that fits: copies are few."""
        double = min(2 * flight.length, self._runtime.config.context_length)
        if not self._fits(flight, double):
            double = 0
        try:
            flight.board(index, generation, double)
        except MemoryError:
            flight.board(index, generation)

    def _fits(self, flight: Flight, length: int) -> bool:
        return length <= flight.length or flight.slots <= self._most_slots(length)

    def _most_slots(self, length: int) -> int:
        """Slots of so many cells within the budget; no more than the server has."""
        if not self._limits.budget:
            return self._slots
        return min(self._slots, self._limits.budget // self._runtime.cache_bytes(1, length))
