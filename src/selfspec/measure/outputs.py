"""Whether two answers are the same, and if not, whether rounding explains it (docs/lossless.md, Precision)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from selfspec.measure.nearties import ROWS, NearTies, Place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.runtime.base import Runtime


@dataclass(frozen=True)
class Comparison:
    """How an answer compares with the baseline's; ``at`` is the first token that differs.

    ``gap`` is how far the lesser of the two tokens is below the best logit there, ``noise`` the largest difference
    between the logits of one-row and many-row passes; both are None where one text ends and the other goes on.
    """

    kind: Literal["equal", "near-tie", "different"]
    at: int | None = None
    gap: float | None = None
    noise: float | None = None


def compare(runtime: Runtime, prompt: Sequence[int], base: Sequence[int], other: Sequence[int]) -> Comparison:
    """Compare two greedy answers to ``prompt``."""
    ties = NearTies(runtime)
    ties.compare(prompt, other, base, Place(0, "", ROWS))
    if not ties.divergences:
        return Comparison("equal")
    (found,) = ties.divergences
    return Comparison("near-tie" if found.kind == "near-tie" else "different", found.index, found.gap, found.noise)
