"""Tokens that are on a device: the host knows how many, and waits for them when it looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from collections.abc import Callable


class Unseen(Sequence[int]):
    """The first ``count`` tokens of ``array`` [n] on a device, which ``fetch`` brings to the host."""

    def __init__(self, array: Any, count: int, fetch: Callable[[Any], list[int]]) -> None:
        self.array, self._count, self._fetch = array, count, fetch
        self._tokens: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...

    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        if self._tokens is None:
            self.show(self._fetch(self.array[: self._count]))
        assert self._tokens is not None
        return self._tokens[index]

    def show(self, tokens: Sequence[int]) -> None:
        """These are they: they came to the host with something else."""
        self._tokens = tuple(tokens)
        assert len(self._tokens) == self._count

    @property
    def marks(self) -> list[Mark]:
        """What stands for each in a list of tokens to embed, unseen."""
        return [Mark.of(self, place) for place in range(self._count)]


class Mark(int):
    """Stands for one token of an `Unseen`; as a number it is no token."""

    unseen: Unseen
    place: int

    @classmethod
    def of(cls, unseen: Unseen, place: int) -> Mark:
        """For the token at ``place``."""
        mark = cls(-1)
        mark.unseen, mark.place = unseen, place
        return mark


def unread(tokens: Sequence[int]) -> Sequence[int]:
    """``tokens``, or the marks of those that nobody has seen yet."""
    return tokens.marks if isinstance(tokens, Unseen) and tokens._tokens is None else tokens
