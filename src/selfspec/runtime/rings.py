"""Layers with a window keep a ring of cells; what every runtime needs to know of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from selfspec.types import namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from selfspec.model.config import ModelConfig
    from selfspec.types import Array, Integers, Rows, SubLayer


class Rings(NamedTuple):
    """The window of each layer, and how many cells more than that a ring has.

    Cell c of a text lies in place c modulo the size of the ring. ``spare`` is the most rows of a slot in one
    pass: what they overwrite is older than any window of this round or the next, accepted or not. A layer without
    attention has a window of 0, and no cells.
    """

    windows: tuple[int | None, ...]
    spare: int

    @classmethod
    def of(cls, config: ModelConfig, spare: int) -> Rings:
        """Those of a model."""
        layers = [config.layer(index) for index in range(config.num_layers)]
        return cls(tuple(layer.window if layer.attends else 0 for layer in layers), spare)

    def sizes(self, length: int) -> list[int]:
        """How many cells of a slot each layer needs for texts of ``length``."""
        return [
            length if window is None else min(length, window and window + self.spare) for window in self.windows
        ]

    def rewinds(self, smallest: int, written: int, to: int) -> bool:
        """See `Cache.rewinds`: a ring that has come round has lost what is older than its window.

        ``smallest`` is the least number of cells of a layer that has not one for each of a text, 0 for none.
        """
        came_round = 0 < smallest < written + self.spare
        return not came_round or to >= written - 1


def run_in_parts(
    run: Callable[[Array, Rows], tuple[Array, Mapping[SubLayer, Array]]],
    hidden: Array,
    rows: Rows,
    parts: Sequence[Integers],
) -> tuple[Array, dict[SubLayer, Array]]:
    """A pass ``run(hidden, rows)`` as several, one after the other, with the rows of each of ``parts``: `split`."""
    made = [run(hidden[part], rows.take(part)) for part in parts]
    back = np.argsort(np.concatenate(parts))

    def whole(pieces: list[Array]) -> Array:
        return namespace(pieces[0]).concat(pieces, axis=0)[back]

    states = whole([states for states, _ in made])
    return states, {tap: whole([tapped[tap] for _, tapped in made]) for tap in made[0][1]}


def split(rows: Rows, most: int) -> list[np.ndarray[Any, Any]]:
    """Sets of rows [r] to run one after the other, none with more than ``most`` of a slot; none if all fit."""
    if len(rows) <= most:
        return []
    order = np.lexsort((rows.cells, rows.slots))
    _, starts, counts = np.unique(rows.slots[order], return_index=True, return_counts=True)
    if counts.max() <= most:
        return []
    assert rows.lineage is None, "no tree has as many rows"
    rank = np.arange(len(rows)) - np.repeat(starts, counts)
    return [order[rank // most == part] for part in range(int(rank.max()) // most + 1)]
