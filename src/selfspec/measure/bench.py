"""``selfspec bench``: every column answers every prompt, in turn; what came of it is kept for the report."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from selfspec.errors import OptionError
from selfspec.measure.tasks import encode_turns
from selfspec.measure.timing import Ask, Run, Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from selfspec.engine import Engine
    from selfspec.measure.settings import BenchOptions, Workload
    from selfspec.measure.tasks import Prompt
    from selfspec.measure.timing import Column
    from selfspec.model import Tokenizer

_TEMPLATE_TOKENS = 64  # more than a chat template adds to a turn


@dataclass(frozen=True)
class Match:
    """All columns on one question, once; by the name of the column."""

    prompt: Prompt
    turn: int
    ask: Ask
    runs: dict[str, Run]


@dataclass
class Measurements:
    """What a benchmark has measured so far."""

    baseline: str
    matches: list[Match] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    too_long: list[str] = field(default_factory=list)


class Benchmark:
    """Columns, the first of which is the baseline, and the prompts that they answer.

    Later turns of a prompt follow the baseline's answers, so every column gets the same question. No cache is
    kept from one turn to the next: a turn is prefilled whole.
    """

    def __init__(
        self,
        engine: Engine,
        columns: Sequence[Column],
        options: BenchOptions,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine, self._options = engine, options
        self._tokenizer = require_tokenizer(engine)
        self._watch = Stopwatch(columns, clock)
        self.has_peaks_per_run = self._watch.has_peaks_per_run
        self.measured = Measurements(columns[0].name, failed=self._watch.failed)

    def run(self, prompts: Sequence[Prompt]) -> Iterator[Match]:
        """Measure; a match is given out when all its columns have answered."""
        for temperature in self._options.temperatures:
            is_warm = False
            for prompt in prompts:
                for turn, ask in self._questions(prompt, temperature):
                    if not is_warm:
                        self._watch.warm_up(ask)
                        is_warm = True
                    for _ in range(self._options.repeats):
                        runs = {column.name: run for column, run in self._watch.round(ask)}
                        match = Match(prompt, turn, ask, runs)
                        self.measured.matches.append(match)
                        yield match

    def _questions(self, prompt: Prompt, temperature: float) -> Iterator[tuple[int, Ask]]:
        """The turns of a prompt that fit into the context; ends with the first that does not."""
        options, messages = self._options, []
        for turn, text in enumerate(prompt.turns):
            messages.append({"role": "user", "content": text})
            tokens = encode_turns(self._tokenizer, messages)
            if len(tokens) + options.max_new_tokens > self._engine.config.context_length:
                self.measured.too_long.append(f"{prompt.task} {prompt.id}, turn {turn + 1}: {len(tokens)} tokens")
                return
            yield turn, Ask(tokens, options.max_new_tokens, temperature, options.seed, options.ignore_eos)
            answer = self.measured.matches[-1].runs[self.measured.baseline].answer
            messages.append({"role": "assistant", "content": answer.text})


def num_matches(prompts: Sequence[Prompt], options: BenchOptions) -> int:
    """How many matches `Benchmark.run` gives out if every turn fits into the context."""
    return sum(len(prompt.turns) for prompt in prompts) * len(options.temperatures) * options.repeats


def require_fit(engine: Engine, prompts: Sequence[Prompt], options: Workload) -> None:
    """Raise OptionError if not even the first turn of any prompt fits into the model's context."""
    tokenizer, most = require_tokenizer(engine), engine.config.context_length
    first = ([{"role": "user", "content": prompt.turns[0]}] for prompt in prompts)
    if not any(len(encode_turns(tokenizer, turn)) + options.max_new_tokens <= most for turn in first):
        raise OptionError(
            f"no prompt fits into the model's context of {most} tokens with {options.max_new_tokens} new ones; "
            "give shorter prompts, or a smaller max_new_tokens"
        )


def context_needed(engine: Engine, prompts: Sequence[Prompt], options: BenchOptions) -> int:
    """Tokens of the longest conversation, answers included: the context that rivals are opened with."""
    tokenizer = require_tokenizer(engine)
    longest = max(
        sum(len(tokenizer.encode(turn)) + _TEMPLATE_TOKENS + options.max_new_tokens for turn in prompt.turns)
        for prompt in prompts
    )
    return min(longest, engine.config.context_length)


def require_tokenizer(engine: Engine) -> Tokenizer:
    """The engine's tokenizer. Raises OptionError if it has none."""
    if engine.tokenizer is None:
        raise OptionError(f"{engine.name} has no tokenizer, and prompts are texts; use a model that has one")
    return engine.tokenizer
