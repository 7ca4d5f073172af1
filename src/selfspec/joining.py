"""Rows of one pass that start at different layers: states put together in the order of the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from selfspec.types import namespace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.types import Array, Integers


def padded(starts: Sequence[int], rows: int) -> list[int]:
    """The layers at which so many rows start; those that no draft has begun start at 0."""
    return [*starts[:rows], *[0] * (rows - len(starts))]


def concatenate(arrays: list[Array]) -> Array:
    """Rows of several arrays [R, ...] in one."""
    return arrays[0] if len(arrays) == 1 else namespace(arrays[0]).concat(arrays, axis=0)


def select(array: Array, rows: Integers) -> Array:
    """The given rows of ``array`` [R, ...]; the array itself when that is all of them in order."""
    whole = len(rows) == array.shape[0] and np.array_equal(rows, np.arange(len(rows)))
    return array if whole else array[rows.tolist()]


def merge(hidden: Array | None, order: Integers, states: Array, joining: Integers) -> tuple[Array, Integers]:
    """Put two sets of rows together in ascending row order."""
    if hidden is None:
        return states, joining
    both = np.concatenate([joining, order])
    ascending = np.argsort(both)
    return select(concatenate([states, hidden]), ascending), both[ascending]
