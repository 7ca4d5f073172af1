"""What a benchmark may be asked; flags and their defaults come from here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from selfspec.drafters.base import option
from selfspec.errors import OptionError
from selfspec.types import require_types


@dataclass(frozen=True)
class BenchOptions:
    """The flags of ``selfspec bench`` that say what is measured."""

    drafts: str = option(
        "plain,ngram", "Columns: drafters with commas, each with its options as early_exit:exit_layer=15:gamma=4."
    )
    rivals: str = option("", "Columns: other programs, in the same spelling, as transformers,llama.cpp.")
    data: str | None = option(None, "JSON Lines with `turns` or `prompt`, and `task`.  [default: a built-in set]")
    tasks: str = option("", "Rows: only these tasks, with commas.")
    limit: int | None = option(None, "Most prompts of each task.")
    max_new_tokens: int = option(64, "Most tokens of an answer.")
    temperature: str = option("0", "Temperatures, with commas; 0 is greedy.")
    ignore_eos: bool = option(False, "Go on past end-of-text tokens.")
    repeats: int = option(3, "How often every prompt is measured; each gives one pair per column.")
    seed: int = option(0, "Seed of sampled answers and of the bootstrap.")
    rival_python: Sequence[str] = option((), "NAME=PATH: the Python that has a rival; may be given several times.")
    rival_model: Sequence[str] = option((), "NAME=PATH: the model in a rival's own format; several times.")

    def __post_init__(self) -> None:
        require_types(self)
        for name, least in (("max_new_tokens", 1), ("repeats", 1), ("seed", 0), ("limit", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise OptionError(f"{name} is {value}; it must be at least {least}")
        assert self.temperatures is not None

    @property
    def temperatures(self) -> tuple[float, ...]:
        """As numbers. Raises OptionError for what is none, is negative, or is there twice."""
        try:
            values = tuple(float(text) for text in self.temperature.split(","))
        except ValueError:
            values = ()
        if not values or not all(0.0 <= value < float("inf") for value in values) or len({*values}) < len(values):
            raise OptionError(
                f"temperature is {self.temperature!r}; it must be numbers from 0, each once, with commas"
            )
        return values

    @property
    def task_names(self) -> tuple[str, ...]:
        """The tasks that were asked for; none are all."""
        return tuple(name.strip() for name in self.tasks.split(",") if name.strip())
