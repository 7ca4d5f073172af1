"""A public test double: drafts whatever a callable says. It runs no layers and costs next to nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from selfspec.drafters.base import Drafter, DraftOptions
from selfspec.errors import OptionError
from selfspec.types import Draft, OneHot

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
    pays = "never: it is a test double"
    is_free = True

    def __init__(self, options: ScriptedOptions, config: ModelConfig) -> None:
        super().__init__(options, config)
        if not callable(options.script):
            raise OptionError("the scripted drafter needs script=, a callable (tokens, gamma) -> tokens")
        self._script = options.script

    def propose(self, context: Context, texts: Sequence[Text], gammas: Sequence[int]) -> list[Draft]:  # noqa: ARG002
        """What the script says; raises OptionError for a token outside the vocabulary."""
        return [self._draft(text.tokens, gamma) for text, gamma in zip(texts, gammas, strict=True)]

    def refine(
        self,
        context: Context,  # noqa: ARG002
        texts: Sequence[Text],
        gammas: Sequence[int],
        drafts: Sequence[Draft],
    ) -> list[Draft]:
        """What the script says after ``drafts``."""
        return [
            self._after(text, before, min(gamma, self.options.gamma))
            for text, gamma, before in zip(texts, gammas, drafts, strict=True)
        ]

    def _after(self, text: Text, before: Draft, gamma: int) -> Draft:
        if len(before) >= gamma:
            return before
        more = self._draft([*text.tokens, *before.tokens], gamma - len(before)).tokens
        laws = None if before.laws is None else (*before.laws, *map(OneHot, more))
        return replace(before, tokens=(*before.tokens, *more), laws=laws, chances=())

    def _draft(self, tokens: Sequence[int], gamma: int) -> Draft:
        draft = tuple(self._script(tokens, gamma))[:gamma]
        if wrong := [token for token in draft if token not in range(self.config.vocab_size)]:
            raise OptionError(f"the script drafted {wrong[0]!r}; tokens are 0 to {self.config.vocab_size - 1}")
        return Draft(draft)
