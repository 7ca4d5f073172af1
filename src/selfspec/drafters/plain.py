"""Plain decoding: the loop with γ = 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec.drafters.base import Drafter, DraftOptions, option
from selfspec.errors import OptionError
from selfspec.types import Draft

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.context import Context, Text


@dataclass(frozen=True)
class PlainOptions(DraftOptions):
    """γ is 0."""

    gamma: int = option(0, "Always 0.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("gamma", "confidence", "adaptive"):
            if value := getattr(self, name):
                raise OptionError(f"{name} is {value}, but plain decoding drafts nothing; leave it out")


class Plain(Drafter):
    """Drafts nothing: the baseline of every comparison."""

    Options = PlainOptions
    name = "plain"
    summary = "no draft: plain decoding, the baseline"
    pays = "where nothing else does; it is the baseline of every figure"

    def propose(self, context: Context, texts: Sequence[Text], gammas: Sequence[int]) -> list[Draft]:  # noqa: ARG002
        """Empty drafts."""
        return [Draft() for _ in texts]
