"""How long a pass over T rows takes, and what the machine would allow."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.context import Context
from selfspec.runtime.cores import available_processors
from selfspec.types import LayerPlan, Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from selfspec.runtime.base import Cache, Runtime

_VECTOR_BYTES = 1 << 28  # far beyond any cache
_MATRIX = 1024


def fill(runtime: Runtime, cache: Cache, tokens: Sequence[int]) -> None:
    """Write the keys and values of ``tokens`` to the first cells of slot 0, in every layer."""
    Context(runtime, cache).write(0, tokens)


def pass_seconds(
    runtime: Runtime,
    rows: int,
    context: int = 0,
    repeats: int = 5,
    clock: Callable[[], float] = time.perf_counter,
    cache: Cache | None = None,
) -> float:
    """Seconds of a full pass over ``rows`` rows with their logits, after ``context`` tokens.

    The median of ``repeats``, after one that is not counted. v(T) is this for T rows ÷ this for one. Without a
    ``cache`` that was filled, the cells of the context may be memory that nobody wrote, which is read faster.
    """
    plan, tokens = LayerPlan.full(runtime.config.num_layers), [0] * rows
    cache = runtime.new_cache(1, context + rows) if cache is None else cache
    placed = Rows.of([0] * rows, range(context, context + rows))
    times = []
    for _ in range(repeats + 1):
        started = clock()
        hidden = runtime.embed(tokens, placed.positions)
        logits = runtime.logits(runtime.run(hidden, plan, placed, cache)[0])
        float(logits[-1][0])  # a GPU has not finished before its result is read
        times.append(clock() - started)
    return statistics.median(times[1:])


@dataclass(frozen=True)
class Ceiling:
    """What plain decoding cannot exceed here: every token reads all weights once, and multiplies them.

    Bytes and operations are those of one row; bandwidth and speed were measured with NumPy on all cores.
    """

    weight_bytes: int
    operations: int
    bytes_per_second: float
    operations_per_second: float
    pass_seconds: float

    @property
    def memory_tokens_per_second(self) -> float:
        """Bandwidth ÷ bytes per pass."""
        return self.bytes_per_second / self.weight_bytes

    @property
    def arithmetic_tokens_per_second(self) -> float:
        """Operations per second ÷ operations per row."""
        return self.operations_per_second / self.operations

    @property
    def break_even_rows(self) -> float:
        """Rows of one pass at which arithmetic costs as much as reading the weights: more rows are not free."""
        return self.arithmetic_tokens_per_second / self.memory_tokens_per_second

    def to_dict(self) -> dict[str, float]:
        """JSON-ready."""
        names = ("weight_bytes", "operations", "bytes_per_second", "operations_per_second", "pass_seconds")
        derived = ("memory_tokens_per_second", "arithmetic_tokens_per_second", "break_even_rows")
        return {name: getattr(self, name) for name in (*names, *derived)}


def measure_ceiling(runtime: Runtime) -> Ceiling | None:
    """Measure the machine and one pass, in about two seconds; None where the weights are on no CPU."""
    probe = runtime.embed([0], np.zeros(1, dtype=np.int64))
    if getattr(getattr(probe, "device", None), "type", "cpu") != "cpu":  # NumPy's device is a text
        return None
    threads = available_processors()
    return Ceiling(
        weight_bytes=runtime.pass_bytes,
        operations=2 * runtime.config.pass_parameters,
        bytes_per_second=bandwidth(threads),
        operations_per_second=arithmetic(),
        pass_seconds=pass_seconds(runtime, 1),
    )


class Vector:
    """A vector far beyond any cache, with a part for each thread: what a plain stream of memory reaches."""

    def __init__(self, threads: int) -> None:
        self._parts = np.array_split(np.ones(_VECTOR_BYTES // 4, dtype=np.float32), threads)
        self._pool = ThreadPoolExecutor(threads)

    def sum(self) -> int:
        """Read it all; gives the bytes."""
        list(self._pool.map(np.sum, self._parts))
        return _VECTOR_BYTES

    def copy(self) -> int:
        """Read it all and write it elsewhere; gives the bytes of both."""
        list(self._pool.map(np.copyto, self._copies, self._parts))
        return 2 * _VECTOR_BYTES

    @cached_property
    def _copies(self) -> list[np.ndarray[Any, Any]]:
        return [np.empty_like(part) for part in self._parts]

    def close(self) -> None:
        """Let go of the threads."""
        self._pool.shutdown()


def bandwidth(threads: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Bytes per second of summing a vector, a part per thread: the best of five."""
    with closing(Vector(threads)) as vector:
        return _VECTOR_BYTES / _best(vector.sum, clock)


def arithmetic(clock: Callable[[], float] = time.perf_counter) -> float:
    """Float32 operations per second of a matrix product, as NumPy's library runs it: the best of five."""
    matrix = np.ones((_MATRIX, _MATRIX), dtype=np.float32)
    return 2 * _MATRIX**3 / _best(lambda: matrix @ matrix, clock)


def _best(work: Callable[[], Any], clock: Callable[[], float]) -> float:
    times = []
    for _ in range(6):
        started = clock()
        work()
        times.append(clock() - started)
    return min(times[1:])
