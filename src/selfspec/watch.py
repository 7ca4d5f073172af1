"""What verification shows of its inner layers to drafters that ask: the outputs of layers, by row of a draft."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from selfspec.types import SubLayer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from selfspec.types import Array, Draft, LayerPlan


class Watched(NamedTuple):
    """What verification showed of the rows of one draft.

    ``states`` holds by (row, layer) what left the layer [1, d], where the row ran it in verification; ``logits``
    [len(draft) + 1, V] are the target's.
    """

    states: dict[tuple[int, int], Array]
    logits: Array


class Watch:
    """States that drafts want to see of a verification: the outputs of layers, by row."""

    def __init__(self, drafts: Sequence[Draft]) -> None:
        self._taps = {SubLayer(layer - 1) for draft in drafts for layer in draft.watch or ()}
        self._seen: dict[tuple[int, int], Array] = {}

    def within(self, plan: LayerPlan) -> list[SubLayer]:
        """The taps of a part of the pass."""
        return [step for step in plan.steps if step in self._taps] if self._taps else []

    def saw(self, tapped: Mapping[SubLayer, Array], rows: Sequence[int]) -> None:
        """What a part of the pass gave, for these rows of it."""
        for tap, states in tapped.items():
            for i, row in enumerate(rows):
                self._seen[row, tap.layer + 1] = states[i : i + 1]

    def of(self, first: int, count: int) -> dict[tuple[int, int], Array]:
        """Those of a draft whose rows begin at ``first``, by (row of the draft, layer)."""
        return {
            (row - first, layer): state
            for (row, layer), state in self._seen.items()
            if first <= row < first + count
        }
