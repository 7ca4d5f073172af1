"""Keys, values and states of the torch runtime."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

from selfspec.errors import OutOfMemoryError
from selfspec.runtime.base import Cache
from selfspec.runtime.rings import Rings
from selfspec.runtime.torch_states import States

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from selfspec.model.config import ModelConfig

FEWER = "ask for fewer tokens, or fewer texts at once"


class Store(NamedTuple):
    """What one layer keeps: keys and values, or states."""

    keys: Tensor
    values: Tensor
    states: States | None


class TorchCache(Cache):
    """Keys and values per layer: [slots, cells, KV heads, head width]. Zeroed, so unused cells stay finite.

    A layer without a window has ``length`` cells, one with a window no more than its ring; ``has_rings`` says
    whether some layer has fewer cells than a text may have. A recurrent layer has no cells, and ``states`` whose
    size does not depend on the length; ``block`` is how often it keeps one.
    """

    def __init__(
        self, length: int, rings: Rings, keys: list[Tensor], values: list[Tensor], states: Mapping[int, States]
    ) -> None:
        self.slots, self.length = keys[0].shape[0], length
        self.rings, self.keys, self.values, self.states = rings, keys, values, states
        self.block = next((kept.block for kept in states.values()), 1)
        self.has_rings = any(0 < t.shape[1] < length for t in keys)

    @classmethod
    def new(cls, like: Tensor, config: ModelConfig, shape: tuple[int, int], spare: tuple[int, int]) -> TorchCache:
        """Empty, of ``shape`` (slots, length), in the precision and place of ``like``.

        ``spare``: how many cells more than its window a ring has, and how often a recurrent layer keeps a state.
        """
        slots, length = shape
        layers = [config.layer(index) for index in range(config.num_layers)]
        rings = Rings.of(config, spare[0])
        heads = (config.num_kv_heads, config.head_dim)
        keys, values = (
            [writable(like, (slots, size, *heads)) for size in rings.sizes(length)] for _ in ("keys", "values")
        )
        states = {
            index: States(layer.recurrence, slots, spare[1], partial(writable, like))
            for index, layer in enumerate(layers)
            if layer.recurrence
        }
        return cls(length, rings, keys, values, states)

    def store(self, layer: int) -> Store:
        """What one layer keeps."""
        return Store(self.keys[layer], self.values[layer], self.states.get(layer))

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(t.nbytes for t in self.keys + self.values) + self.state_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes held by recurrent layers."""
        return sum(states.nbytes for states in self.states.values())

    def longer(self, length: int) -> TorchCache:
        """A longer copy; rings that have their full size already, and states, stay what they are."""
        with memory_for(f"a KV cache of {self.slots} x {length} tokens beside the one it replaces; {FEWER}"):
            sizes = self.rings.sizes(length)
            keys, values = (list(map(_lengthened, part, sizes)) for part in (self.keys, self.values))
            return TorchCache(length, self.rings, keys, values, self.states)

    def rewinds(self, written: int, to: int) -> bool:
        """See `Cache.rewinds`: a ring that has come round has lost what is older than its window.

        States have no way back from what is committed; at its beginning a text needs none.
        """
        if self.states:
            return to in (0, written)
        smallest = min((t.shape[1] for t in self.keys if 0 < t.shape[1] < self.length), default=0)
        return self.rings.rewinds(smallest, written, to)


def _lengthened(old: Tensor, length: int) -> Tensor:
    if old.shape[1] == length:
        return old
    new = writable(old, (old.shape[0], length, *old.shape[2:]))
    new[:, : old.shape[1]] = old
    return new


def writable(like: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """Zeros that may be written later, outside the `torch.inference_mode` that the caller may be in, too."""
    with torch.inference_mode(False):
        return like.new_zeros(shape, dtype=dtype)


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
