"""From measured matches to one JSON-ready document."""

from __future__ import annotations

import platform
import statistics
from collections import Counter
from dataclasses import asdict, dataclass, fields
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.measure.machine import processor, version_of
from selfspec.measure.outputs import Comparison, compare
from selfspec.measure.pairs import paired_ratio
from selfspec.rounds import Stats
from selfspec.runtime.cores import available_processors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from selfspec.measure.bench import Match, Measurements
    from selfspec.measure.timing import Column, Run
    from selfspec.runtime.base import Runtime

LENGTHS: tuple[tuple[str, float], ...] = (("<=50", 50), ("<=200", 200), (">200", float("inf")))
_PACKAGES = ("numpy", "torch", "transformers")


def _whole(run: Run) -> float | None:
    """Tokens per second, prefill included."""
    return run.tokens_per_second


def _decoding(run: Run) -> float | None:
    """Tokens per second after the first one."""
    return 1.0 / run.tpot_seconds if run.tpot_seconds else None


def _prefill(run: Run) -> float | None:
    """First tokens per second."""
    return 1.0 / run.ttft_seconds if run.ttft_seconds else None


@dataclass(frozen=True)
class Difference:
    """A greedy answer that is not the baseline's."""

    task: str
    id: str
    turn: int
    column: str
    comparison: Comparison
    is_fault: bool  # the column runs the same weights in the same precision, and rounding does not explain it

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        own = {name: getattr(self, name) for name in ("task", "id", "turn", "column", "is_fault")}
        return own | asdict(self.comparison)


class Report:
    """Ratios, sums and comparisons of what was measured.

    Parameters
    ----------
    measured
        At least one match.
    columns
        All that were measured, the baseline first, those that failed later too.
    """

    def __init__(self, measured: Measurements, columns: Sequence[Column], runtime: Runtime, seed: int = 0) -> None:
        assert measured.matches
        self._measured, self._columns, self._seed = measured, columns, seed
        self._matches = measured.matches
        self._outputs: dict[str, Counter[str]] = {column.name: Counter() for column in columns}
        self.differences = list(self._compare(runtime))

    @property
    def faults(self) -> list[Difference]:
        """What must not happen: a draft of ours that changed a word."""
        ours = {column.name for column in self._columns if column.is_ours}
        return [found for found in self.differences if found.is_fault and found.column in ours]

    def document(self) -> dict[str, Any]:
        """Everything, by task, by length, by temperature, and by column.

        ``ratios`` and ``overall`` are of whole answers; ``decoding`` of what follows the first token, ``prefill``
        of the time to it, both for the columns that tell when that is there.
        """
        measured = self._measured
        return {
            "baseline": measured.baseline,
            "columns": {
                c.name: {"is_ours": c.is_ours, "is_comparable": c.is_comparable, **c.about} for c in self._columns
            },
            "failed": dict(measured.failed),
            "too_long": list(measured.too_long),
            "ratios": self._ratios_by(_task),
            "overall": self._ratios(self._matches),
            "decoding": self._ratios_by(_task, speed=_decoding) | {"all": self._ratios(self._matches, _decoding)},
            "prefill": self._ratios_by(_task, speed=_prefill) | {"all": self._ratios(self._matches, _prefill)},
            "by_length": self._ratios_by(self._length, [name for name, _ in LENGTHS]),
            "by_temperature": self._ratios_by(lambda match: f"{match.ask.temperature:g}"),
            "tasks": {task: self._summaries(found) for task, found in self._groups(_task).items()},
            "totals": self._summaries(self._matches),
            "outputs": {name: dict(counts) for name, counts in self._outputs.items()},
            "differences": [found.to_dict() for found in self.differences],
            "samples": list(self._samples()),
        }

    def _samples(self) -> Iterable[dict[str, Any]]:
        """The first question of every task and temperature, and who wrote each token of our own answers to it."""
        firsts: dict[tuple[str, float], Match] = {}
        for match in self._matches:
            firsts.setdefault((match.prompt.task, match.ask.temperature), match)
        for match in firsts.values():
            answers = {name: list(run.answer.pieces) for name, run in match.runs.items() if run.answer.pieces}
            yield {
                "task": match.prompt.task,
                "id": match.prompt.id,
                "temperature": match.ask.temperature,
                "prompt": match.prompt.turns[match.turn],
                "answers": answers,
            }

    def _groups(self, key: Callable[[Match], str], order: Iterable[str] = ()) -> dict[str, list[Match]]:
        groups: dict[str, list[Match]] = {name: [] for name in order}
        for match in self._matches:
            groups.setdefault(key(match), []).append(match)
        return {name: found for name, found in groups.items() if found}

    def _ratios_by(
        self, key: Callable[[Match], str], order: Iterable[str] = (), speed: Callable[[Run], float | None] = _whole
    ) -> dict[str, Any]:
        return {name: self._ratios(found, speed) for name, found in self._groups(key, order).items()}

    def _ratios(self, matches: Sequence[Match], speed: Callable[[Run], float | None] = _whole) -> dict[str, Any]:
        """Speedup of every column over the baseline, from the pairs that both finished and that have a speed."""
        base, out = self._measured.baseline, {}
        for name in (column.name for column in self._columns if column.name != base):
            both = [(match.runs[base], match.runs[name]) for match in matches if name in match.runs]
            speeds = [(speed(first), speed(second)) for first, second in both]
            pairs = [(first, second) for first, second in speeds if first and second]
            if pairs:
                ratio = paired_ratio(pairs, self._seed)
                out[name] = asdict(ratio) | {"verdict": ratio.verdict()}
        return out

    def _length(self, match: Match) -> str:
        tokens = match.runs[self._measured.baseline].tokens
        return next(name for name, most in LENGTHS if tokens <= most)

    def _summaries(self, matches: Sequence[Match]) -> dict[str, Any]:
        runs = {c.name: [match.runs[c.name] for match in matches if c.name in match.runs] for c in self._columns}
        return {name: summary(found) for name, found in runs.items() if found}

    def _compare(self, runtime: Runtime) -> Iterable[Difference]:
        known: dict[tuple[Any, ...], Comparison] = {}
        comparable = {column.name: column.is_comparable for column in self._columns}
        for match in self._matches:
            base = match.runs[self._measured.baseline].answer.tokens
            for name, run in match.runs.items():
                if name == self._measured.baseline:
                    continue
                if match.ask.temperature > 0.0:  # one law, other random numbers
                    self._outputs[name]["not compared"] += 1
                    continue
                key = (match.ask.prompt, base, run.answer.tokens)
                if key not in known:
                    known[key] = compare(runtime, *key)
                found = known[key]
                self._outputs[name][found.kind] += 1
                if found.kind != "equal":
                    is_fault = found.kind == "different" and comparable[name]
                    yield Difference(match.prompt.task, match.prompt.id, match.turn, name, found, is_fault)


def _task(match: Match) -> str:
    return match.prompt.task


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """What one column did over at least one run; None where it does not tell.

    ``tokens_per_second`` p95 is the speed that 95 of 100 answers reach. The mean accepted length counts the
    bonus token; ``accepted_per_round`` does not.
    """
    speeds = [run.tokens_per_second for run in runs]
    p50, p95 = np.quantile(speeds, [0.5, 0.05])
    memory: dict[str, int] = {}
    for run in runs:
        for part, size in run.answer.memory.items():
            memory[part] = max(size, memory.get(part, 0))
    return {
        "runs": len(runs),
        "tokens": sum(run.tokens for run in runs),
        "seconds": sum(run.seconds for run in runs),
        "tokens_per_second": {"p50": float(p50), "p95": float(p95)},
        "ttft_seconds": _median(run.ttft_seconds for run in runs),
        "tpot_seconds": _median(run.tpot_seconds for run in runs),
        "peak_bytes": max(run.peak_bytes for run in runs),
        "memory": memory,
        **_counts([run.answer.stats for run in runs if run.answer.stats is not None]),
    }


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _counts(parts: Sequence[Stats]) -> dict[str, Any]:
    if not parts:
        return {}
    total = _sum(parts)
    row_layers = total.draft_row_layers + total.verify_row_layers
    per_position = zip(total.accepted_per_position, total.drafted_per_position, strict=False)
    return {
        "rounds": total.rounds,
        "drafted": total.drafted,
        "accepted": total.accepted,
        "wasted": total.drafted - total.accepted,
        "acceptance_rate": total.acceptance_rate,
        "acceptance_per_position": [accepted / drafted for accepted, drafted in per_position if drafted],
        "mean_accepted_length": total.mean_accepted_length,
        "accepted_per_round": total.accepted / total.rounds if total.rounds else None,
        "row_layers_per_token": row_layers / (total.tokens - total.texts) if total.rounds else None,
    }


def _sum(parts: Sequence[Stats]) -> Stats:
    total = Stats()
    for field in fields(Stats):
        values = [getattr(part, field.name) for part in parts]
        is_list = isinstance(values[0], list)
        summed = [sum(column) for column in zip_longest(*values, fillvalue=0)] if is_list else sum(values)
        setattr(total, field.name, summed)
    return total


def machine() -> Mapping[str, Any]:
    """Where this was measured: what another reader needs to judge the numbers."""
    return {
        "platform": platform.platform(terse=True),
        "processor": processor(),
        "cores": available_processors(),
        "python": platform.python_version(),
        **{name: found for name in _PACKAGES if (found := version_of(name))},
    }
