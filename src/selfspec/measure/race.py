"""Contenders and plain decoding answer the same prompts in turn; the worse half leaves after every heat.

Successive halving (Jamieson and Talwalkar 2016) with pairs for a score: a heat is some laps, a lap is one answer
(or one batch of N) of everybody who is left, plain decoding among them, forwards and backwards in turn. So every
contender is compared on the same prompts and in the same minutes, and a bad one costs a few answers.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from selfspec.measure.contenders import made
from selfspec.measure.ours import BASELINE, DrafterColumn
from selfspec.measure.pairs import MIN_PAIRS, Ratio, paired_ratio
from selfspec.measure.report import sum_of
from selfspec.measure.timing import Answer, Ask, Column, Stopwatch
from selfspec.request import Completion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from selfspec.engine import Engine
    from selfspec.measure.profile import Question
    from selfspec.measure.settings import TuneOptions
    from selfspec.measure.timing import Run

LEAST_LAPS = 3  # of a heat
_MOST_ROUNDS = 3  # of all prompts in one heat

Lap = dict[str, dict[str, Any]]
"""What everybody did on one lap: by the name of a draft, JSON-ready."""


@dataclass(frozen=True)
class Crowd(Ask):
    """Several prompts that are asked at once; ``prompt`` is the first of them."""

    beside: tuple[tuple[int, ...], ...] = ()


class CrowdColumn(Column):
    """Answers several prompts together with one drafter."""

    is_ours = True

    def __init__(self, engine: Engine, draft: str) -> None:
        made(draft, engine)
        self.name, self._engine, self._draft = draft, engine, draft

    def answer(self, ask: Ask, first: Callable[[], None]) -> Answer:  # noqa: ARG002 (there is no one first token)
        """All answers one after the other, and the sums of their rounds."""
        assert isinstance(ask, Crowd)
        prompts = [ask.prompt, *ask.beside]
        how = {"max_new_tokens": ask.max_new_tokens, "temperature": ask.temperature, "seed": ask.seed}
        done: dict[int, Completion] = {}
        running = self._engine.batch(
            prompts, slots=len(prompts), draft=self._draft, ignore_eos=ask.ignore_eos, **how
        )
        for index, found in running:
            if isinstance(found, Exception):
                raise found
            done[index] = found
        tokens = tuple(token for index in sorted(done) for token in done[index].token_ids)
        return Answer(tokens, stats=sum_of([found.stats for found in done.values()]))


def column_of(engine: Engine, draft: str, texts: int) -> Column:
    """A contender. Raises SelfspecError for what this model or machine cannot have."""
    return DrafterColumn(engine, draft, draft, {}) if texts == 1 else CrowdColumn(engine, draft)


class Track:
    """Runs laps: plain decoding and contenders on prompts in turn.

    ``laps`` are those that were run already, by their names; it grows.
    """

    def __init__(
        self,
        engine: Engine,
        questions: Sequence[Question],
        options: TuneOptions,
        laps: dict[str, Lap],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine, self._questions, self._options = engine, questions, options
        self.laps, self.clock = laps, clock

    def run(self, name: str, drafts: Sequence[str], ends: float, least: int) -> Iterator[str]:
        """Laps of a heat while there is time; gives the name of each, once it is there.

        A heat that was begun goes on. ``least`` laps may take half as long again, and one is run in any case.
        """
        watch: Stopwatch | None = None
        longest, most = 0.0, max(least, _MOST_ROUNDS * len(self._questions))
        late = ends + 0.5 * max(ends - self.clock(), 0.0)
        for number in range(most):
            lap = f"{name} {number}"
            if lap in self.laps:
                continue
            started = self.clock()
            if number and started + longest > (ends if number >= least else late):
                return
            watch = watch or self._ready([BASELINE, *drafts])
            self.laps[lap] = {
                column.name: _kept(run)
                for column, run in watch.round(self._ask(number, self._options.max_new_tokens))
            }
            longest = max(longest, self.clock() - started)
            yield lap

    def was_begun(self, name: str) -> bool:
        """Whether there is a lap of a heat."""
        return any(lap.rpartition(" ")[0] == name for lap in self.laps)

    def _ready(self, drafts: Sequence[str]) -> Stopwatch:
        columns = [column_of(self._engine, draft, self._options.texts) for draft in drafts]
        watch = Stopwatch(columns, self.clock)
        watch.warm_up(self._ask(0, min(8, self._options.max_new_tokens)))
        return watch

    def _ask(self, number: int, tokens: int) -> Ask:
        options, questions = self._options, self._questions
        how = (tokens, options.temperatures[0], options.seed, options.ignore_eos)
        texts = options.texts
        prompts = [questions[(number * texts + i) % len(questions)].prompt for i in range(texts)]
        return Ask(prompts[0], *how) if texts == 1 else Crowd(prompts[0], *how, tuple(prompts[1:]))


def heats(track: Track, drafts: Sequence[str], ends: float) -> Iterator[str]:
    """Halve until one or two are left, who run to the end; gives the name of each lap.

    Who stays is decided by all laps so far, which all who are left have run.
    """
    left, heat = list(drafts), 0
    while True:
        is_last = len(left) <= 2
        if not track.was_begun(f"heat {heat + 1}"):
            now = track.clock()
            share = (ends - now) / _num_heats(len(left))
            yield from track.run(f"heat {heat}", left, now + share, MIN_PAIRS if is_last else LEAST_LAPS)
        if is_last:
            return
        left = ranked([*track.laps.values()], left)[: (len(left) + 1) // 2]
        heat += 1


def _num_heats(count: int) -> int:
    """How many heats there are for so many."""
    return 1 if count <= 2 else 1 + _num_heats((count + 1) // 2)


def least_runs(count: int) -> int:
    """How many times somebody answers, plain decoding among them, until one of so many has won."""
    if count <= 2:
        return MIN_PAIRS * (count + 1)
    return LEAST_LAPS * (count + 1) + least_runs((count + 1) // 2)


def ranked(laps: Sequence[Lap], drafts: Sequence[str]) -> list[str]:
    """By the median of speed ÷ plain decoding's, the fastest first; who was never measured comes last."""
    return sorted(drafts, key=lambda draft: -(_median(speeds(laps, draft)) or 0.0))


def _median(pairs: Sequence[tuple[float, float]]) -> float | None:
    return statistics.median(second / first for first, second in pairs) if pairs else None


def speeds(laps: Sequence[Lap], draft: str, what: str | None = None) -> list[tuple[float, float]]:
    """Pairs (plain decoding, draft) of tokens per second, of all laps that have both.

    ``what``: "decoding", after the first token, or "whole"; None takes the first where it is known.
    """
    found = []
    for lap in laps:
        both = [lap.get(name) for name in (BASELINE, draft)]
        speed = [_speed(one, what) for one in both if one is not None]
        if len(speed) == 2 and speed[0] and speed[1]:
            found.append((speed[0], speed[1]))
    return found


def _speed(run: Mapping[str, Any], what: str | None) -> float | None:
    decoding: float | None = run["decoding"]
    whole: float | None = run["whole"]
    if what is None:
        return decoding or whole
    return decoding if what == "decoding" else whole


def ratio_of(laps: Sequence[Lap], draft: str, seed: int, what: str | None = None) -> Ratio | None:
    """S with its interval; None where nothing was measured."""
    pairs = speeds(laps, draft, what)
    return paired_ratio(pairs, seed) if pairs else None


def _kept(run: Run) -> dict[str, Any]:
    """Tokens per second, after the first token (None where there is none, or no one first one) and of all."""
    stats = run.answer.stats
    assert stats is not None
    tpot = run.tpot_seconds
    return {
        "decoding": 1.0 / tpot if tpot else None,
        "whole": run.tokens_per_second,
        "tokens": list(run.answer.tokens),
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "rounds": stats.rounds,
        "row_layers": stats.draft_row_layers + stats.verify_row_layers,
        "after_first": stats.tokens - stats.texts,
    }


def sums_of(laps: Sequence[Lap], draft: str) -> dict[str, Any]:
    """Counts of all laps: α, τ, row-layers per token, and how many answers were those of plain decoding."""
    both = [(lap[BASELINE], lap[draft]) for lap in laps if draft in lap and BASELINE in lap]
    total = {
        name: sum(own[name] for _, own in both)
        for name in ("drafted", "accepted", "rounds", "row_layers", "after_first")
    }
    return {
        "acceptance_rate": total["accepted"] / total["drafted"] if total["drafted"] else None,
        "mean_accepted_length": total["after_first"] / total["rounds"] if total["rounds"] else None,
        "row_layers_per_token": total["row_layers"] / total["after_first"] if total["after_first"] else None,
        "equal_answers": sum(plain["tokens"] == own["tokens"] for plain, own in both),
        "answers": len(both),
    }
