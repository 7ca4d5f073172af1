"""Cells that say a number by their colour too."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from selfspec.measure.quantities import number, ratio
from selfspec.reporting.view import Cell

if TYPE_CHECKING:
    from collections.abc import Mapping

_FULL = 2.0  # |log2 S| from which on the colour is full: S of 4, and of 1/4


def speedup(value: float | None, text: str | None = None, is_best: bool = False) -> Cell:
    """S: one colour above 1, another below. ``text`` None shows two digits."""
    shown = number(value, 1, ".2f") if text is None else text
    if value is None or not value > 0.0:
        return Cell(shown, is_best=is_best)
    size = math.log2(value)
    return Cell(shown, "gain" if size > 0.0 else "loss", min(abs(size) / _FULL, 1.0) ** 0.5, is_best)


def measured(cell: Mapping[str, Any] | None, is_best: bool = False) -> Cell:
    """A `selfspec.measure.pairs.Ratio` with its interval."""
    return Cell("-") if cell is None else speedup(float(cell["median"]), ratio(cell).strip(), is_best)


def level(rate: float | None) -> Cell:
    """A share, 0 to 1."""
    return Cell("-") if rate is None else Cell(f"{rate:.2f}", "level", min(max(float(rate), 0.0), 1.0))
