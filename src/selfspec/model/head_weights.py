"""Weights of heads that are not held: those of one of several, and those that a file has anyway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray


class OfOne(Mapping[str, "NDArray[np.float32]"]):
    """The weights of one of Medusa's heads, under the names of a head that is alone."""

    def __init__(self, weights: Mapping[str, NDArray[np.float32]], index: int) -> None:
        self._weights = weights
        self._names = {
            f"0.{rest}": name for name in weights for i, _, rest in [name.partition(".")] if i == f"{index}"
        }

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        return self._weights[self._names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Passing(Mapping[str, "NDArray[np.float32]"]):
    """Weights that are held until they are let go: who asks for one later has all of them read again."""

    def __init__(
        self, held: Mapping[str, NDArray[np.float32]], read: Callable[[], Mapping[str, NDArray[np.float32]]]
    ) -> None:
        self._names, self._read = tuple(held), read
        self._held: Mapping[str, NDArray[np.float32]] | None = held

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        if name not in self._names:
            raise KeyError(name)
        held = self._held
        if held is None:
            held = self._held = self._read()
        return held[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names  # without a look at the weights

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def let_go(self) -> None:
        """Hold them no longer."""
        self._held = None
