"""Texts packed into flat rows, without padding: what a step of training reads.

A text of T tokens with a prompt of P has n = T - P - 1 tokens that a head may draft: those with the indices
[P + 1, T). (Token P comes from the prefill.) A head has a row for each, and before them rows that are only attended
to: an exit head's row i reads the states at position i and predicts token i + 1, EAGLE's row j reads the features
of position j and the token j + 1 and predicts token j + 2. So the rows of an exit head are [0, T - 1), the first
asked P; those of EAGLE [0, T - 2), the first asked P - 1. Medusa has the same rows as EAGLE.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

LEAST_ANSWER = 2  # tokens: one from the prefill, one that can be drafted


class Span(NamedTuple):
    """The rows of one text in a pack: ``[start, start + rows)``, of which those from ``first`` on are asked.

    A text that does not roll out (``rolls``) is asked in the first step only.
    """

    start: int
    rows: int
    first: int
    rolls: bool = True

    def asked(self, step: int = 0) -> int:
        """How many rows are asked in a step of a roll-out: each further step follows a row of the step before."""
        return max(0, self.rows - self.first - step) if self.rolls or not step else 0


@dataclass(frozen=True, eq=False)
class Pack:
    """N rows of texts behind each other, M of them asked; K taps, d hidden width.

    ``states`` [N, K, d] are the target's after the layers ``taps``; ``following`` [N, d] the embeddings of the
    token after each row (EAGLE). ``expected`` [M, d] is what the target expects of the head's rows
    (`losses.Teacher`), ``entropy`` [M] the entropy of its law.
    """

    spans: Sequence[Span]
    taps: tuple[int, ...]
    states: Tensor
    following: Tensor | None = None
    expected: Tensor | None = None
    entropy: Tensor | None = None

    def of(self, taps: tuple[int, ...]) -> Pack:
        """The same rows with the states after some of the layers only."""
        if taps == self.taps:
            return self
        return replace(self, taps=taps, states=self.states[:, [self.taps.index(tap) for tap in taps]])

    @cached_property
    def positions(self) -> Tensor:
        """Of each row in its text [N]."""
        return self._indices([(0, span.rows) for span in self.spans])

    def asked(self, step: int = 0) -> Tensor:
        """The rows that are asked in a step of a roll-out, as indices of the pack."""
        ends = [(span.start + span.rows, span.asked(step)) for span in self.spans]
        return self._indices([(end - count, end) for end, count in ends])

    def followed(self, step: int) -> Tensor:
        """Of the rows asked in ``step`` those that rows of the next step follow: of a text all but the last."""
        starts = accumulate((span.asked(step) for span in self.spans), initial=0)
        return self._indices(
            [(start, start + span.asked(step + 1)) for start, span in zip(starts, self.spans, strict=False)]
        )

    def predicted(self, step: int) -> Tensor:
        """Of the M tokens that could be drafted those that a step predicts: not a text's first ``step``."""
        ends = accumulate(span.asked() for span in self.spans)
        return self._indices([(end - span.asked(step), end) for end, span in zip(ends, self.spans, strict=True)])

    def _indices(self, ranges: Sequence[tuple[int, int]]) -> Tensor:
        device = self.states.device
        return torch.cat([torch.arange(start, stop, device=device) for start, stop in ranges])
