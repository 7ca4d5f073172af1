"""Where recurrent layers keep what they keep (see `selfspec.runtime.states`), and which rows need what of it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from selfspec.runtime.states import ring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from selfspec.model.config import Recurrence
    from selfspec.types import Rows

    Whole = np.ndarray[Any, np.dtype[np.int64]]
    ToTensor = Callable[[np.ndarray[Any, Any]], Tensor]  # on the device


class States:
    """What one recurrent layer keeps of every slot.

    ``inputs`` [slots, ring, channels] of the convolution, in the precision of the model. Where there is a state:
    ``bases`` [slots, 2, heads, key dim, value dim] at the beginnings of the last two blocks, and of their rows
    ``keys`` [slots, 2, block, key heads, key dim], ``values`` [slots, 2, block, heads, value dim] and ``decays``
    [slots, 2, block, heads], the logarithm of what is left, after the row, of the state at the block's beginning.
    """

    def __init__(self, recurrence: Recurrence, slots: int, block: int, make: Callable[..., Tensor]) -> None:
        r = recurrence
        self.block = block
        self.inputs = make((slots, ring(r, block), r.channels))
        self._parts = [self.inputs]
        if r.key_dim:
            wide = torch.promote_types(self.inputs.dtype, torch.float32)
            self.bases = make((slots, 2, r.value_heads, r.key_dim, r.value_dim), wide)
            self.keys = make((slots, 2, block, r.key_heads, r.key_dim), wide)
            self.values = make((slots, 2, block, r.value_heads, r.value_dim), wide)
            self.decays = make((slots, 2, block, r.value_heads), torch.float64)
            self._parts += [self.bases, self.keys, self.values, self.decays]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(part.nbytes for part in self._parts)


class Runs:
    """The rows of a pass as runs, one for each slot: its rows stand at neighbouring positions."""

    def __init__(self, rows: Rows, block: int, device: torch.device) -> None:
        self._order = np.lexsort((rows.positions, rows.slots))
        slots, self._begins, counts = np.unique(rows.slots[self._order], return_index=True, return_counts=True)
        self._firsts = rows.positions[self._order][self._begins]
        run, offset = _ragged(np.zeros_like(counts), counts)
        assert (rows.positions[self._order] == self._firsts[run] + offset).all(), "a state needs every row"
        self._slots, self._counts, self._block, self._device = slots, counts, block, device
        self.slots = self.tensor(slots)
        self.layout = Layout(self.tensor, self._order, (run, offset), counts, len(rows))
        self._rings: dict[tuple[int, int], tuple[Tensor, ...]] = {}

    def tensor(self, values: np.ndarray[Any, Any]) -> Tensor:
        """On the device."""
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device)

    def ring(self, size: int, taps: int) -> tuple[Tensor, ...]:
        """Of a ring with ``size`` places: what is read before a pass, and what is written after it.

        Read: the places of the ``taps - 1`` positions before each run, and which of them there are, both
        [runs, taps - 1]. Written: slots, places, and rows, the last ones of each run.
        """
        if (size, taps) not in self._rings:
            before = self._firsts[:, None] + np.arange(1 - taps, 0)
            run, offset = _ragged(np.maximum(self._counts - size, 0), self._counts)
            places, rows = (self._firsts[run] + offset) % size, self._order[self._begins[run] + offset]
            made = (before % size, before >= 0, self._slots[run], places, rows)
            self._rings[size, taps] = tuple(map(self.tensor, made))
        return self._rings[size, taps]

    @cached_property
    def waves(self) -> list[Wave]:
        """The rows in the order in which they need each other's states."""
        return list(self._cut())

    def _cut(self) -> Iterator[Wave]:
        missing = self._firsts % self._block  # rows of its first block that a run does not have
        for index in range(int((missing + self._counts - 1).max()) // self._block + 1):
            starts = np.maximum(index * self._block - missing, 0)
            stops = np.minimum((index + 1) * self._block - missing, self._counts)
            runs = np.flatnonzero(starts < stops)
            run, offset = _ragged(starts[runs], stops[runs])
            firsts, counts = (self._firsts + starts)[runs], (stops - starts)[runs]
            rows, step = self._order[self._begins[runs][run] + offset], offset - starts[runs][run]
            layout = Layout(self.tensor, rows, (run, step), counts, len(self._order))
            yield Wave(self.tensor, layout, self._slots[runs], (firsts, counts), self._block)


class Layout:
    """Rows of a pass between [R, ...] and [runs, longest, ...], padded with zeros at the end.

    ``rows`` [m] are theirs, ``at`` where they stand: their runs and places. All rows of one run in order, as most
    passes have them, are a view.
    """

    def __init__(self, tensor: ToTensor, rows: Whole, at: tuple[Whole, Whole], counts: Whole, total: int) -> None:
        self.shape = len(counts), int(counts.max())
        self._is_view = self.shape == (1, total) and bool((rows[:-1] < rows[1:]).all())
        self._rows, self._at = tensor(rows), tuple(map(tensor, at))

    def padded(self, values: Tensor) -> Tensor:
        """Values of all rows of the pass [R, ...] as [runs, longest, ...]."""
        if self._is_view:
            return values[None]
        out = values.new_zeros(*self.shape, *values.shape[1:])
        out[self._at] = values[self._rows]
        return out

    def flat(self, values: Tensor) -> Tensor:
        """The way back, for these rows only: [m, ...]."""
        return values[0] if self._is_view else values[self._at]

    def put(self, out: Tensor, values: Tensor) -> Tensor:
        """``out`` [R, ...] with [runs, longest, ...] in the places of these rows."""
        if self._is_view:
            return values[0]
        out[self._rows] = values[self._at]
        return out


class Wave:
    """Rows of one block of each run, and where they stand in it.

    ``slots`` and ``half`` [runs] say which block that is, ``most_seen`` how many of its rows came before at most;
    ``seen`` [runs] how many did, and ``is_unseen`` [runs, most seen] which did not, None where all have as many.
    ``cells`` is the index of the rows in what is kept of rows. ``is_first`` are runs that have no state before,
    ``ended`` those whose block is full with these rows.
    """

    def __init__(
        self, tensor: ToTensor, layout: Layout, slots: Whole, spans: tuple[Whole, Whole], block: int
    ) -> None:
        firsts, counts = spans
        seen, half = firsts % block, firsts // block % 2
        self.layout, self.most_seen = layout, int(seen.max())
        self.slots, self.half, self.seen = tensor(slots), tensor(half), tensor(seen)
        is_unseen = np.arange(self.most_seen) >= seen[:, None]
        self.is_unseen = tensor(is_unseen) if is_unseen.any() else None
        run, step = _ragged(np.zeros_like(counts), counts)
        self.cells = tuple(map(tensor, (slots[run], half[run], seen[run] + step)))
        self.is_first = tensor(np.flatnonzero(firsts < block))
        self.ended = tensor(np.flatnonzero(seen + counts == block))
        self._single = (int(slots[0]), int(half[0])) if len(slots) == 1 else None

    def held(self, part: Tensor) -> Tensor:
        """What ``part`` [slots, 2, ...] of the states has of the blocks: [runs, ...], of one run a view."""
        return part[self.slots, self.half] if self._single is None else part[self._single][None]


def _ragged(starts: Whole, stops: Whole) -> tuple[Whole, Whole]:
    """All pairs (i, j) with starts[i] <= j < stops[i], in order."""
    counts = stops - starts
    i = np.repeat(np.arange(len(counts)), counts)
    return i, np.arange(len(i)) - np.repeat(np.cumsum(counts) - counts - starts, counts)
