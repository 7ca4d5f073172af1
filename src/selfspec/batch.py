"""Many requests in one loop: texts join as slots become free, and leave one by one."""

from __future__ import annotations

from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from selfspec.flight import Flight
from selfspec.request import Completion

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selfspec.flight import Progress
    from selfspec.generation import Generation
    from selfspec.runtime.base import Runtime

Prepared: TypeAlias = "tuple[int, Generation | Exception]"
Outcome: TypeAlias = "tuple[int, Completion | Exception]"


def run_batch(runtime: Runtime, prepared: Iterator[Prepared], slots: int) -> Iterator[Outcome]:
    """Run what is ``prepared``, ``slots`` at a time; each result as soon as it is there.

    The cache is as long as the longest text that has joined (prompt and most new tokens). It is sized for the
    first ``slots`` texts, and copied into a longer one when a longer text joins.
    """
    first: list[Prepared] = []
    limits: list[int] = []
    for index, found in prepared:
        first.append((index, found))
        if not isinstance(found, Exception):
            limits.append(found.limit)
        if len(limits) == slots:
            break
    if not limits:
        yield from _failures(first)
        return
    with closing(Flight(runtime, len(limits), max(limits))) as flight:
        waiting = chain(first, prepared)
        while True:
            while flight.free_slots and (following := next(waiting, None)) is not None:
                index, generation = following
                if isinstance(generation, Exception):
                    yield index, generation
                    continue
                flight.board(index, generation)
                yield from _ended(flight.fill())
            if not flight.aboard:
                return
            yield from _ended(flight.turn())


def _failures(found: list[Prepared]) -> Iterator[Outcome]:
    for index, error in found:
        assert isinstance(error, Exception)
        yield index, error


def _ended(progress: list[Progress]) -> Iterator[Outcome]:
    yield from ((found.index, found.end) for found in progress if found.end is not None)
