"""One generation as a stream: chunks as tokens become final, blocking or for ``async for``."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from selfspec.context import Context
from selfspec.decode import decode
from selfspec.prefixes import shared_length

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Sequence
    from types import TracebackType

    from selfspec.generation import Generation
    from selfspec.request import Chunk, Completion
    from selfspec.runtime.base import Cache, Runtime


class Memory:
    """A cache kept between turns of a conversation, and the tokens whose keys and values it holds."""

    def __init__(self) -> None:
        self.cache: Cache | None = None
        self.tokens: list[int] = []

    def open(self, runtime: Runtime, prompt: Sequence[int], length: int) -> tuple[Cache, int]:
        """A cache of at least ``length`` cells, and how many tokens of ``prompt`` it holds already."""
        if self.cache is None:
            self.cache = runtime.new_cache(1, length)
        elif self.cache.length < length:  # doubling keeps the copies few
            self.cache = self.cache.longer(max(length, min(2 * length, runtime.config.context_length)))
        shared = shared_length(self.tokens, list(prompt[:-1]))
        return self.cache, shared if self.cache.rewinds(len(self.tokens), shared) else 0


class Stream:
    """A generation that runs as it is iterated; ``completion`` runs it to its end.

    ``close`` (or leaving a ``with`` block) ends it early.
    """

    def __init__(self, runtime: Runtime, generation: Generation) -> None:
        self._runtime = runtime
        self._generation = generation
        self.is_ended = False
        self._completion: Completion | None = None
        self._memory = Memory()
        self._answered: Callable[[str], None] = lambda _: None
        self._chunks = self._run()

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def attach(self, memory: Memory, answered: Callable[[str], None]) -> None:
        """Use a conversation's cache, and tell it the answer, however the stream ends. Before iterating."""
        self._memory, self._answered = memory, answered

    def close(self) -> None:
        """Stop generating and let go of the cache."""
        self._chunks.close()
        self.is_ended = True

    @property
    def completion(self) -> Completion:
        """The finished generation; runs what is left of it. Raises RuntimeError after an early `close`."""
        for _ in self._chunks:
            pass
        if self._completion is None:
            raise RuntimeError("the stream was closed before it ended")
        return self._completion

    def _run(self) -> Generator[Chunk, None, None]:
        generation, memory, started = self._generation, self._memory, time.perf_counter()
        cache, cached = memory.open(self._runtime, generation.prompt, generation.limit)
        cached = cached if generation.can_reuse else 0
        memory.tokens = memory.tokens[:cached]
        text = generation.open(0, 0, cached)
        try:
            for round_ in decode(Context(self._runtime, cache), [text], generation.drafter, origin=started):
                yield from generation.take(round_)
        except Exception:
            yield from generation.rest()
            raise
        finally:
            # a prefill that was cut short may have written any of the prompt
            written = max(text.cached, text.prompt_length)
            memory.tokens = text.tokens[: text.cached] if cache.rewinds(written, text.cached) else []
            self.is_ended, self._memory = True, Memory()  # a conversation keeps its own
            self._answered(generation.text)
        self._completion = generation.completion(text, cache)


class AsyncStream:
    """A `Stream` for ``async for``; cancelling waits for the round in flight, then closes it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        try:
            while (chunk := await self._next()) is not None:
                yield chunk
        finally:
            self._stream.close()

    async def _next(self) -> Chunk | None:
        task = asyncio.ensure_future(asyncio.to_thread(next, self._stream, None))
        cancelled: asyncio.CancelledError | None = None
        while not task.done():  # the worker cannot be stopped inside a round, however often we are cancelled
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled:
            raise cancelled
        return task.result()

    @property
    def completion(self) -> Completion:
        """The finished generation, once the stream has been iterated to its end."""
        return self._stream.completion
