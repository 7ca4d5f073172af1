"""Plain decoding: the loop with γ = 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec.drafters.base import Drafter
from selfspec.types import Draft

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.context import Context, Text


class Plain(Drafter):
    """Drafts nothing: the baseline of every comparison."""

    name = "plain"
    summary = "no draft: plain decoding, the baseline"

    def propose(self, context: Context, texts: Sequence[Text], gammas: Sequence[int]) -> list[Draft]:  # noqa: ARG002
        """Empty drafts."""
        return [Draft() for _ in texts]
