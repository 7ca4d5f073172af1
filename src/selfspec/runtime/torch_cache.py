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

FEWER = "ask for fewer tokens, or fewer texts at once"


class TorchCache(Cache):
    """Keys and values per layer: [slots, length, KV heads, head width]. Zeroed, so unused cells stay finite."""

    def __init__(self, keys: list[Tensor], values: list[Tensor]) -> None:
        self.slots, self.length = keys[0].shape[:2]
        self.keys, self.values = keys, values

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(t.nbytes for t in self.keys + self.values)

    def longer(self, length: int) -> TorchCache:
        """A longer copy."""
        with memory_for(f"a KV cache of {self.slots} x {length} tokens beside the one it replaces; {FEWER}"):
            return TorchCache(*([_lengthened(t, length) for t in part] for part in (self.keys, self.values)))


def _lengthened(old: Tensor, length: int) -> Tensor:
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
