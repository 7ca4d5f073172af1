"""Keys and values of the torch runtime."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from selfspec.errors import OutOfMemoryError
from selfspec.runtime.base import Cache

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from selfspec.runtime.rings import Rings

FEWER = "ask for fewer tokens, or fewer texts at once"


class TorchCache(Cache):
    """Keys and values per layer: [slots, cells, KV heads, head width]. Zeroed, so unused cells stay finite.

    A layer without a window has ``length`` cells, one with a window no more than its ring; ``has_rings`` says
    whether some layer has fewer cells than a text may have.
    """

    def __init__(self, length: int, rings: Rings, keys: list[Tensor], values: list[Tensor]) -> None:
        self.slots, self.length = keys[0].shape[0], length
        self.rings, self.keys, self.values = rings, keys, values
        self.has_rings = any(t.shape[1] < length for t in keys)

    @classmethod
    def new(cls, like: Tensor, shape: tuple[int, ...], rings: Rings) -> TorchCache:
        """Empty, of ``shape`` [slots, length, KV heads, head width], in the precision and place of ``like``."""
        slots, length, *rest = shape
        parts = ([writable(like, (slots, size, *rest)) for size in rings.sizes(length)] for _ in ("keys", "values"))
        return cls(length, rings, *parts)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(t.nbytes for t in self.keys + self.values)

    def longer(self, length: int) -> TorchCache:
        """A longer copy; rings that have their full size already stay what they are."""
        with memory_for(f"a KV cache of {self.slots} x {length} tokens beside the one it replaces; {FEWER}"):
            sizes = self.rings.sizes(length)
            parts = (list(map(_lengthened, part, sizes)) for part in (self.keys, self.values))
            return TorchCache(length, self.rings, *parts)

    def rewinds(self, written: int, to: int) -> bool:
        """See `Cache.rewinds`: a ring that has come round has lost what is older than its window."""
        smallest = min((t.shape[1] for t in self.keys if t.shape[1] < self.length), default=0)
        return self.rings.rewinds(smallest, written, to)


def _lengthened(old: Tensor, length: int) -> Tensor:
    if old.shape[1] == length:
        return old
    new = writable(old, (old.shape[0], length, *old.shape[2:]))
    new[:, : old.shape[1]] = old
    return new


def writable(like: Tensor, shape: Sequence[int]) -> Tensor:
    """Zeros that may be written later, outside the `torch.inference_mode` that the caller may be in, too."""
    with torch.inference_mode(False):
        return like.new_zeros(*shape)


@contextmanager
def memory_for(what: str) -> Iterator[None]:
    """Turn torch's failed allocations, which are RuntimeErrors on a CPU, into an error that says for what."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or any(
            words in str(error) for words in ("allocate memory", "size calculation overflowed")
        ):
            raise OutOfMemoryError(f"there is not enough memory for {what}") from error
        raise
