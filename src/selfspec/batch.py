"""Many requests in one loop: texts join as slots become free, and leave one by one."""

from __future__ import annotations

from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from selfspec.context import Context
from selfspec.decode import Loop
from selfspec.request import Completion

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selfspec.context import Text
    from selfspec.generation import Generation
    from selfspec.rounds import Round
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
    context = Context(runtime, runtime.new_cache(len(limits), max(limits)))
    with closing(Loop(context)) as loop:
        yield from _Flight(context, loop).run(chain(first, prepared))


def _failures(found: list[Prepared]) -> Iterator[Outcome]:
    for index, error in found:
        assert isinstance(error, Exception)
        yield index, error


class _Flight:
    """The generations that are under way in one loop."""

    def __init__(self, context: Context, loop: Loop) -> None:
        self._context = context
        self._loop = loop
        self._running: dict[Text, tuple[Generation, float]] = {}  # with the second in which it joined

    def run(self, waiting: Iterator[Prepared]) -> Iterator[Outcome]:
        """Fill the slots, run a round, hand out what has ended; until nothing is left."""
        while True:
            for index, found in self._joining(waiting):
                if isinstance(found, Exception):
                    yield index, found
                    continue
                yield from self._join(index, found)
            if not self._running:
                return
            yield from self._after(self._loop.turn())

    def _joining(self, waiting: Iterator[Prepared]) -> Iterator[Prepared]:
        """What is next, while there is a free slot."""
        while self._loop.free_slots:
            if (found := next(waiting, None)) is None:
                return
            yield found

    def _join(self, index: int, generation: Generation) -> Iterator[Outcome]:
        context = self._context
        if context.cache.length < generation.limit:
            context.cache = context.cache.longer(generation.limit)
        text = generation.open(index, self._loop.free_slots[0])
        round_ = self._loop.add([text], generation.drafter)
        self._running[text] = (generation, round_.started)
        yield from self._after(round_)

    def _after(self, round_: Round) -> Iterator[Outcome]:
        """Count a round for each of its texts, and give the results of those that ended."""
        for text, (generation, joined) in list(self._running.items()):
            if own := round_.only(text.index, joined):
                generation.take(own)
            if text.is_ended:
                del self._running[text]
                yield text.index, text.error or generation.completion(text, self._context.cache)
