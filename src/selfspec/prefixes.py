"""How far two sequences agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def shared_length(one: Sequence[Any], other: Sequence[Any]) -> int:
    """The number of leading entries in which they are equal."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:  # often, and much faster
        return most
    return next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
