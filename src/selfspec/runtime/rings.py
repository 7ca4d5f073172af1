"""Layers with a window keep a ring of cells; what every runtime needs to know of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from selfspec.model.config import ModelConfig
    from selfspec.types import Rows


class Rings(NamedTuple):
    """The window of each layer, and how many cells more than that a ring has.

    Cell c of a text lies in place c modulo the size of the ring. ``spare`` is the most rows of a slot in one
    pass: what they overwrite is older than any window of this round or the next, accepted or not.
    """

    windows: tuple[int | None, ...]
    spare: int

    @classmethod
    def of(cls, config: ModelConfig, spare: int) -> Rings:
        """Those of a model."""
        return cls(tuple(config.layer(index).window for index in range(config.num_layers)), spare)

    def sizes(self, length: int) -> list[int]:
        """How many cells of a slot each layer needs for texts of ``length``."""
        return [length if window is None else min(length, window + self.spare) for window in self.windows]

    def rewinds(self, smallest: int, written: int, to: int) -> bool:
        """See `Cache.rewinds`: a ring that has come round has lost what is older than its window.

        ``smallest`` is the least number of cells of a layer that has not one for each of a text, 0 for none.
        """
        came_round = 0 < smallest < written + self.spare
        return not came_round or to >= written - 1


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
