"""One generation as a stream: chunks as tokens become final, blocking or for ``async for``."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING

from selfspec.context import Context, Text
from selfspec.decode import decode
from selfspec.model import TextStream
from selfspec.request import Chunk, Completion, Request, draft_buffers
from selfspec.rounds import Stats
from selfspec.sampling import Chance

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
    from types import TracebackType

    from selfspec.drafters.base import Drafter
    from selfspec.engine import Engine
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
        shared = 0
        for ours, theirs in zip(self.tokens, prompt[:-1], strict=False):
            if ours != theirs:
                break
            shared += 1
        return self.cache, shared


class Stream:
    """A generation that runs as it is iterated; ``completion`` runs it to its end.

    ``close`` (or leaving a ``with`` block) ends it early.
    """

    def __init__(self, engine: Engine, prompt: list[int], request: Request, drafter: Drafter) -> None:
        self._engine = engine
        self._prompt = prompt
        self._request = request
        self._drafter = drafter
        self._sampling = request.sampling(engine.config, engine.tokenizer, len(prompt))
        self._seed = secrets.randbits(32) if request.seed is None else request.seed
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
        engine, request, prompt, memory = self._engine, self._request, self._prompt, self._memory
        config, started = engine.config, time.perf_counter()
        writer = TextStream(engine.tokenizer, request.stops) if engine.tokenizer else None
        final = Ending(writer, () if request.ignore_eos else config.eos_token_ids)
        limit = request.limit(config, len(prompt))
        cache, cached = memory.open(engine.runtime, prompt, limit)
        memory.tokens = memory.tokens[:cached]
        chance = Chance(self._seed)
        text = Text(0, 0, list(prompt), limit, self._sampling, chance, final, cached)
        stats = Stats()
        try:
            for round_ in decode(Context(engine.runtime, cache), [text], self._drafter, origin=started):
                stats.add(round_)
                yield from final.chunks(round_.commits[0].accepted, text.finish_reason is not None)
        except Exception:
            # plain decoding would have shown what was accepted before the error: all of it drafts
            yield from final.chunks(limit, False)
            raise
        finally:
            memory.tokens = text.tokens[: text.cached]
            self.is_ended, self._memory = True, Memory()  # a conversation keeps its own
            self._answered(final.text)
        assert text.finish_reason is not None
        self._completion = Completion(
            text=final.text,
            token_ids=tuple(text.tokens[len(prompt) :]),
            prompt_tokens=len(prompt),
            finish_reason=text.finish_reason,
            stats=stats,
            seed=self._seed,
            model=engine.name,
            runtime=engine.runtime.name,
            precision=engine.runtime.precision,
            draft=self._drafter.name,
            plan=str(self._drafter.plan or "none"),
            gamma=self._drafter.options.gamma,
            kv_bytes=cache.nbytes,
            buffers=draft_buffers(config, self._drafter, self._sampling, engine.runtime.value_bytes),
        )


class Ending:
    """Decides after every token whether the text is complete, and keeps the text that each one released."""

    def __init__(self, writer: TextStream | None, eos: tuple[int, ...]) -> None:
        self._writer = writer
        self._eos = eos
        self._new: list[tuple[int, str]] = []

    def __call__(self, token: int) -> bool:
        """Take a new token; True if the text is complete with it."""
        ended = token in self._eos
        piece = "" if ended or self._writer is None else self._writer.push(token)
        self._new.append((token, piece))
        return ended or (self._writer is not None and self._writer.is_stopped)

    @property
    def text(self) -> str:
        """All final text."""
        return "" if self._writer is None else self._writer.text

    def chunks(self, accepted: int, is_last: bool) -> Iterator[Chunk]:
        """The tokens since the last call; the first ``accepted`` were drafted."""
        new, self._new = self._new, []
        for i, (token, piece) in enumerate(new):
            rest = self._writer.finish() if is_last and self._writer and i == len(new) - 1 else ""
            yield Chunk(piece + rest, token, "draft" if i < accepted else "bonus")


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
