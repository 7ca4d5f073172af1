"""What the target thinks of the tokens of a prompt, from the rows of its prefill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec.sampling import score

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.rounds import Score
    from selfspec.runtime.base import Runtime
    from selfspec.types import Array

_ROWS = 32  # whose logits are there at once: those of a whole prompt may be larger than the model


class PromptScores:
    """The `Score` of each token of a prompt but the first, which follows nothing, with ``count`` likeliest ones."""

    def __init__(self, prompt: Sequence[int], count: int) -> None:
        self._prompt, self._count = prompt, count
        self.scores: list[Score] = []

    def take(self, runtime: Runtime, hidden: Array, first: int) -> None:
        """Score what follows the rows whose states [R, d] these are, the first of them at position ``first``."""
        assert first == len(self.scores), "rows of a prompt run once, from its beginning"
        for start in range(0, hidden.shape[0], _ROWS):
            following = self._prompt[first + start + 1 : first + start + _ROWS + 1]
            if not following:
                return
            logits = runtime.logits(hidden[start : start + len(following)])
            pairs = zip(logits, following, strict=True)
            self.scores += [score(row, token, self._count) for row, token in pairs]
