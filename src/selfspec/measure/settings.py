"""What a benchmark and a profile may be asked; flags and their defaults come from here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from selfspec.drafters.base import option
from selfspec.errors import OptionError
from selfspec.settings import temperatures_of
from selfspec.types import MAX_GAMMA, require_least, require_types

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Workload:
    """Which prompts are answered, and how."""

    data: str | None = option(None, "JSON Lines with `turns` or `prompt`, and `task`.  [default: a built-in set]")
    tasks: str = option("", "Only these tasks, with commas.")
    limit: int | None = option(None, "Most prompts of each task.")
    max_new_tokens: int = option(64, "Most tokens of an answer.")
    temperature: str = option("0", "Temperatures, with commas; 0 is greedy.")
    ignore_eos: bool = option(False, "Go on past end-of-text tokens.")
    seed: int = option(0, "Seed of sampled answers and of the bootstrap.")

    def __post_init__(self) -> None:
        require_types(self)
        require_least(self, max_new_tokens=1, seed=0, limit=1)
        assert self.temperatures is not None

    @property
    def temperatures(self) -> tuple[float, ...]:
        """As numbers. Raises OptionError for what is none, is negative, or is there twice."""
        return temperatures_of(self.temperature)

    @property
    def task_names(self) -> tuple[str, ...]:
        """The tasks that were asked for; none are all."""
        return tuple(name.strip() for name in self.tasks.split(",") if name.strip())


@dataclass(frozen=True)
class BenchOptions(Workload):
    """The flags of ``selfspec bench`` that say what is measured."""

    drafts: str = option(
        "plain,auto", "Columns: drafters with commas, each with its options as early_exit:exit_layer=15:gamma=4."
    )
    rivals: str = option("", "Columns: other programs, in the same spelling, as transformers,llama.cpp.")
    repeats: int = option(3, "How often every prompt is measured; each gives one pair per column.")
    rival_python: Sequence[str] = option((), "NAME=PATH: the Python that has a rival; may be given several times.")
    rival_model: Sequence[str] = option((), "NAME=PATH: the model in a rival's own format; several times.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_least(self, repeats=1)


@dataclass(frozen=True)
class ProfileOptions(Workload):
    """The flags of ``selfspec profile`` that say what is measured."""

    temperature: str = option("0,0.8", "Temperatures, with commas; 0 is greedy. The first is the one of --check.")
    gamma: int = option(8, "Longest draft γ to predict for.")
    contexts: str = option("64,1024", "Tokens before a pass, with commas: v(T) is measured after each.")
    check: int = option(3, "How many of the best (k, γ) are measured too.")
    points: str = option("", "Points to measure too, as K:γ with commas: 26:2,15:4.")
    pairs: int = option(7, "Pairs of answers per measured point.")
    budget: str = option("2m", "About how long a run may take: 90s, 2m, 1h. What is left out is said.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_least(self, check=0, pairs=1)
        if self.max_new_tokens < 2:  # the first token comes from the prefill: a second one needs a round
            raise OptionError(f"max_new_tokens is {self.max_new_tokens}; a profile needs at least 2")
        if not 1 <= self.gamma <= MAX_GAMMA:
            raise OptionError(f"gamma is {self.gamma}; it must be 1 to {MAX_GAMMA}")
        assert self.budget_seconds
        assert self.context_lengths
        assert self.points_asked is not None

    @property
    def budget_seconds(self) -> float:
        """Seconds. Raises OptionError for what is no time."""
        found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([smh])", self.budget.strip())
        if found is None or not (seconds := float(found[1]) * _SECONDS[found[2]]):
            raise OptionError(f"budget is {self.budget!r}; it must be a time such as 90s, 2m or 1h")
        return seconds

    @property
    def context_lengths(self) -> tuple[int, ...]:
        """In tokens, in ascending order. Raises OptionError for what is no number."""
        texts = [text.strip() for text in self.contexts.split(",")]
        if not all(re.fullmatch(r"[0-9]{1,9}", text) for text in texts):
            raise OptionError(f"contexts is {self.contexts!r}; it must be numbers of tokens with commas: 64,1024")
        return tuple(sorted({int(text) for text in texts}))

    @property
    def points_asked(self) -> tuple[tuple[int, int], ...]:
        """(exit layer, γ) of each point. Raises OptionError for what is none, or a γ beyond ``gamma``."""
        found = []
        for text in filter(None, (part.strip() for part in self.points.split(","))):
            pair = re.fullmatch(r"([0-9]{1,5}):([0-9]{1,3})", text)
            if pair is None:
                raise OptionError(f"points has {text!r}; it must be K:γ, exit layer and draft length, such as 26:2")
            if not 1 <= int(pair[2]) <= self.gamma:
                raise OptionError(f"points has {text!r}; its γ must be 1 to {self.gamma}, the value of gamma")
            found.append((int(pair[1]), int(pair[2])))
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class SearchOptions(Workload):
    """The flags of ``selfspec search-plan`` that say what is tried."""

    gamma: int = option(8, "Longest draft γ to reckon with.")
    trials: int = option(200, "Plans to try, a quarter from each source.")
    finalists: int = option(3, "How many of the best plans are measured against plain decoding.")
    pairs: int = option(7, "Pairs of answers per measured plan.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_least(self, trials=4, finalists=0, pairs=1)
        if not 1 <= self.gamma <= MAX_GAMMA:
            raise OptionError(f"gamma is {self.gamma}; it must be 1 to {MAX_GAMMA}")
