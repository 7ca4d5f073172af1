"""A public test double: drafts whatever a callable says. It runs no layers and costs next to nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec.drafters.base import Drafter, DraftOptions
from selfspec.errors import OptionError
from selfspec.types import Draft

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from selfspec.context import Context, Text
    from selfspec.model.config import ModelConfig


@dataclass(frozen=True)
class ScriptedOptions(DraftOptions):
    """``script(tokens so far, γ)`` returns the draft tokens; more than γ are cut."""

    script: Callable[[Sequence[int], int], Sequence[int]] | None = None


class Scripted(Drafter):
    """Drafts what ``script`` returns: an always-right, always-wrong or free drafter for tests and timing."""

    Options = ScriptedOptions
    name = "scripted"
    summary = "test double: drafts what a Python callable returns (Python only)"

    def __init__(self, options: ScriptedOptions, config: ModelConfig) -> None:
        super().__init__(options, config)
        if options.script is None:
            raise OptionError("the scripted drafter needs script=, a callable (tokens, gamma) -> tokens")
        self._script = options.script

    def propose(self, context: Context, texts: Sequence[Text], gammas: Sequence[int]) -> list[Draft]:  # noqa: ARG002
        """What the script says."""
        return [
            Draft(tuple(self._script(text.tokens, gamma))[:gamma])
            for text, gamma in zip(texts, gammas, strict=True)
        ]
