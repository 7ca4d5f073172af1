"""What may be asked of the making of data; flags and their defaults come from here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from selfspec.drafters.base import option
from selfspec.engine import DEFAULT_SLOTS
from selfspec.errors import OptionError
from selfspec.settings import temperatures_of
from selfspec.types import require_least, require_types


@dataclass(frozen=True)
class DataOptions:
    """The flags of ``selfspec train data`` that say which texts are made, and how."""

    prompts: str | None = option(
        None, "Prompts: a file with one a line, or JSON Lines with `prompt` or `messages`."
    )
    self_prompts: int = option(0, "How many prompts a chat model writes itself, beside those of --prompts.")
    beginnings: str | None = option(
        None, "With --self-prompts: a file with a prompt's beginning a line.  [default: English ones of many tasks]"
    )
    text: Sequence[str] = option(
        (), "Text, or JSON Lines with `text`, `messages` or `prompt` and `answer`, taken as it is; several times."
    )
    temperatures: str = option(
        "0,0.7,1", "Temperatures with commas, 0 is greedy: every prompt is answered at each."
    )
    tokens: int | None = option(
        None, "Stop when the answers have so many tokens; prompts are answered again if need be.  [default: no]"
    )
    max_new_tokens: int = option(320, "Most tokens of an answer.")
    max_prompt_tokens: int | None = option(None, "Leave out longer prompts.  [default: what the model can read]")
    seed: int = option(0, "The random numbers of all texts follow from it.")
    slots: int = option(DEFAULT_SLOTS, "Most texts at once.")
    draft: str = option("plain", "Who drafts meanwhile; it changes the speed, not the texts.")

    def __post_init__(self) -> None:
        require_types(self)
        require_least(self, tokens=1, max_new_tokens=1, max_prompt_tokens=1, seed=0, slots=1, self_prompts=0)
        assert self.temperature_values
        asks = self.prompts is not None or self.self_prompts > 0
        if asks == bool(self.text):
            found = "text, and prompts to answer" if self.text else "no prompts"
            raise OptionError(f"{found}; give --prompts FILE, --self-prompts N or both, or else --text FILE")
        if self.beginnings is not None and not self.self_prompts:
            raise OptionError("beginnings are for prompts that the model writes; add --self-prompts N")

    @property
    def temperature_values(self) -> tuple[float, ...]:
        """As numbers. Raises OptionError for what is none, is negative, or is there twice."""
        return temperatures_of(self.temperatures, "temperatures")
