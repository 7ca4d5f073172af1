"""Prompts that begin as earlier texts did: how far two of them agree, and which slot still holds what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST_SHARED = 16
"""Fewer tokens are not worth the rest of what a slot holds."""


class Rewinds(Protocol):
    """A cache, as far as it matters here."""

    def rewinds(self, written: int, to: int) -> bool:
        """Whether the first ``to`` cells of a text of ``written`` cells serve a text that goes on from there."""


def shared_length(one: Sequence[Any], other: Sequence[Any]) -> int:
    """The number of leading entries in which they are equal."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:  # often, and much faster
        return most
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), most)


class Prefixes:
    """The tokens whose keys and values free slots still hold."""

    def __init__(self) -> None:
        self._held: dict[int, list[int]] = {}  # of slots, who left first before the others

    def take(self, free: Sequence[int], prompt: Sequence[int], cache: Rewinds) -> tuple[int, int]:
        """One of the ``free`` slots for a prompt, and how many tokens of it are there already.

        It is the slot that has most of it; where that is too little, an empty one, or the one that was left first.
        At least the last token of a prompt has to run.
        """
        asked = list(prompt[:-1])
        found = {slot: self._usable(self._held[slot], asked, cache) for slot in self._held if slot in free}
        best = max(found, key=lambda slot: found[slot], default=None)
        if best is not None and found[best] >= LEAST_SHARED:
            del self._held[best]
            return best, found[best]
        empty = next((slot for slot in free if slot not in self._held), None)
        slot = next(iter(found)) if empty is None else empty
        self._held.pop(slot, None)
        return slot, 0

    def leave(self, slot: int, tokens: Sequence[int]) -> None:
        """A text has left its slot; its first cells hold ``tokens``."""
        if len(tokens) >= LEAST_SHARED:
            self._held[slot] = list(tokens)

    @staticmethod
    def _usable(held: list[int], asked: list[int], cache: Rewinds) -> int:
        shared = shared_length(held, asked)
        return shared if cache.rewinds(len(held), shared) else 0
