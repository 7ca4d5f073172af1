"""One request in the event loop: its texts, what the worker says of them, and a client that may leave."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from selfspec.request import Completion
from selfspec.server.failures import GoneError, body_of, status_of
from selfspec.server.replies import DONE, event
from selfspec.server.scheduler import Job

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from starlette.types import Receive, Scope, Send

    from selfspec.flight import Progress
    from selfspec.generation import Generation
    from selfspec.request import Chunk
    from selfspec.server.logprobs import Echo
    from selfspec.server.replies import Reply
    from selfspec.server.scheduler import Scheduler


class Answer:
    """The texts of one request. Leaving the block lets go of those that have not ended."""

    def __init__(self, scheduler: Scheduler, generations: Sequence[Generation], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Progress] = asyncio.Queue()

        def tell(progress: Progress) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, progress)

        deadline = scheduler.now() + seconds if seconds else None
        self._scheduler, self._queue = scheduler, queue
        self.jobs = [Job(generation, tell, deadline) for generation in generations]
        self.chunks: list[list[Chunk]] = [[] for _ in self.jobs]
        self.ends: list[Completion | None] = [None] * len(self.jobs)
        scheduler.submit(self.jobs)
        self._places = {job.index: place for place, job in enumerate(self.jobs)}

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self._scheduler.cancel(job for job, end in zip(self.jobs, self.ends, strict=True) if end is None)

    @property
    def is_unfinished(self) -> bool:
        """Whether a text has not ended well."""
        return None in self.ends

    @property
    def counted(self) -> dict[str, int]:
        """Tokens so far, for the log."""
        return {
            "prompt_tokens": sum(len(job.generation.prompt) for job in self.jobs),
            "completion_tokens": sum(map(len, self.chunks)),
        }

    @property
    def completions(self) -> list[Completion]:
        """All ends."""
        return [end for end in self.ends if end is not None]

    async def progress(self, gone: asyncio.Task[None]) -> AsyncGenerator[tuple[int, Progress]]:
        """What becomes of the texts, by place, until all have ended.

        Raises the error of the first text that fails, and GoneError when ``gone`` is done: then the others are not
        wanted either.
        """
        while len(self.completions) < len(self.jobs):
            place, progress = await self._next(gone)
            self.chunks[place] += progress.chunks
            if isinstance(progress.end, Exception):
                raise progress.end
            self.ends[place] = progress.end
            yield place, progress

    async def _next(self, gone: asyncio.Task[None]) -> tuple[int, Progress]:
        getting = asyncio.ensure_future(self._queue.get())
        try:
            await asyncio.wait([getting, gone], return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise GoneError("the client has left")
            found = getting.result()
        finally:
            getting.cancel()
        return self._places[found.index], found


async def disconnected(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def whole(answer: Answer, gone: asyncio.Task[None], reply: Reply, echoed: Sequence[Echo]) -> dict[str, Any]:
    """The complete answer. Raises as `Answer.progress`."""
    async with aclosing(answer.progress(gone)) as steps:
        async for _ in steps:
            pass
    return reply.whole(list(zip(echoed, answer.chunks, answer.completions, strict=True)))


async def events(
    answer: Answer, gone: asyncio.Task[None], reply: Reply, echoed: Sequence[Echo]
) -> AsyncGenerator[bytes]:
    """The answer as server-sent events. What fails before the first one is raised; later it becomes an event."""
    is_open = False
    prompts = sum(len(job.generation.prompt) for job in answer.jobs[:: reply.asked.n])
    try:
        async with aclosing(answer.progress(gone)) as steps:
            async for place, progress in steps:
                if not is_open:
                    is_open = True
                    for index, echo in enumerate(echoed):
                        if opening := reply.opening(index, echo):
                            yield event(opening | reply.so_far(prompts, 0))
                if piece := reply.piece(place, progress):
                    yield event(piece | reply.so_far(prompts, sum(map(len, answer.chunks))))
        if reply.has_usage:
            yield event(reply.usage_chunk(answer.completions))
    except GoneError:
        raise
    except Exception as error:  # the headers are sent: what went wrong can only be said here
        if not is_open:
            raise
        yield event(body_of(error) | {"status": status_of(error)})
    yield DONE


class EventStream(Response):
    """Server-sent events; ``first`` has been awaited already, ``rest`` is closed whatever happens."""

    media_type = "text/event-stream"

    def __init__(
        self,
        answer: Answer,
        gone: asyncio.Task[None],
        first: bytes,
        rest: AsyncGenerator[bytes],
        log: dict[str, Any],
    ) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._answer, self._gone, self._first, self._rest = answer, gone, first, rest
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 (`gone` receives)
        """Send them until they end or the client leaves."""
        with self._answer:
            try:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await send({"type": "http.response.body", "body": self._first, "more_body": True})
                with suppress(GoneError):
                    async with aclosing(self._rest) as rest:
                        async for found in rest:
                            await send({"type": "http.response.body", "body": found, "more_body": True})
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
            finally:
                self._gone.cancel()
                self._log |= self._answer.counted | ({"left": True} if self._answer.is_unfinished else {})
