"""The timed loop: one clock, warm-up, and an order that turns round after every repetition.

Nothing here knows models or tasks: a column answers, this file says when and how long. Every time in a
benchmark is a difference of two readings of the one clock, taken here.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from selfspec.measure.memory import PeakMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from selfspec.rounds import Stats


@dataclass(frozen=True)
class Ask:
    """What every column is asked, in the same words: a prompt as token ids, and how to go on."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0
    ignore_eos: bool = False


@dataclass(frozen=True)
class Answer:
    """What a column made of it. ``stats`` are the counts of our own loop; its times are not used here.

    ``pieces`` are the text of each token and who wrote it (`selfspec.Chunk`), where that is known. ``memory`` are
    bytes by part beyond the weights; ``peak_bytes`` the peak of another process.
    """

    tokens: tuple[int, ...]
    text: str = ""
    stats: Stats | None = None
    pieces: Sequence[tuple[str, str]] = ()
    memory: Mapping[str, int] = field(default_factory=dict)
    peak_bytes: int | None = None


class ColumnError(Exception):
    """A column that cannot go on; the others do."""


class Column(ABC):
    """One column of the table: a drafter of ours, or another program.

    ``is_comparable``: it runs the weights of the baseline in the same precision, so it must say the same.
    """

    name: str
    is_ours = False
    is_comparable = True
    about: Mapping[str, str] = {}

    @abstractmethod
    def answer(self, ask: Ask, first: Callable[[], None]) -> Answer:
        """Answer, and call ``first`` when the first token is there. Raises ColumnError if that fails."""

    def close(self) -> None:  # noqa: B027 (most columns hold nothing)
        """Let go of what it holds."""


@dataclass(frozen=True)
class Run:
    """One timed answer. Seconds are from the question to the last token, and to the first if it told."""

    answer: Answer
    seconds: float
    ttft_seconds: float | None
    peak_bytes: int

    @property
    def tokens(self) -> int:
        """New tokens."""
        return len(self.answer.tokens)

    @property
    def tokens_per_second(self) -> float:
        """New tokens per second, prefill included."""
        return self.tokens / self.seconds

    @property
    def tpot_seconds(self) -> float | None:
        """Seconds per token after the first one."""
        if self.ttft_seconds is None or self.tokens < 2:
            return None
        return (self.seconds - self.ttft_seconds) / (self.tokens - 1)


class Stopwatch:
    """Runs columns under one clock and keeps their order fair.

    Every other repetition goes backwards, so that of any two columns each is first as often as the other, and
    a machine that grows slower or faster does not favour one. A column that fails leaves; `failed` says why.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        clock: Callable[[], float] = time.perf_counter,
        memory: PeakMemory | None = None,
    ) -> None:
        self.columns = list(columns)
        self.failed: dict[str, str] = {}
        self._clock = clock
        self._memory = memory or PeakMemory()
        self._turn = 0

    @property
    def has_peaks_per_run(self) -> bool:
        """Whether a run's peak memory is its own, not that of the process so far."""
        return self._memory.is_per_run

    def warm_up(self, ask: Ask) -> None:
        """Let every column answer once, unmeasured: first runs pay for lazy set-up and cold caches."""
        for column in list(self.columns):
            self._try(column, ask)

    def round(self, ask: Ask) -> Iterator[tuple[Column, Run]]:
        """Every column once, forwards and backwards in turn."""
        order = self.columns if self._turn % 2 == 0 else self.columns[::-1]
        self._turn += 1
        for column in list(order):
            if (run := self._try(column, ask)) is not None:
                yield column, run

    def _try(self, column: Column, ask: Ask) -> Run | None:
        try:
            return self._time(column, ask)
        except ColumnError as error:
            self.failed[column.name] = str(error)
            self.columns.remove(column)
            column.close()
            return None

    def _time(self, column: Column, ask: Ask) -> Run:
        firsts: list[float] = []
        self._memory.reset()
        started = self._clock()
        answer = column.answer(ask, lambda: firsts.append(self._clock()))
        seconds = self._clock() - started
        if not answer.tokens:
            raise ColumnError("it answered with no token")
        peak = self._memory.peak_bytes() if answer.peak_bytes is None else answer.peak_bytes
        return Run(answer, seconds, firsts[0] - started if firsts else None, peak)
