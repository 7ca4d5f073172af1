"""The application: routes, and what happens between a body and an answer."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from selfspec.errors import OptionError
from selfspec.model.reading import one_line
from selfspec.server.answering import Answer, EventStream, disconnected, events, whole
from selfspec.server.asks import Desk
from selfspec.server.failures import (
    GoneError,
    MethodError,
    RouteError,
    UnknownModelError,
    UnsupportedBodyError,
    body_of,
)
from selfspec.server.fields import ChatFields, CompletionFields, read
from selfspec.server.guard import Guard, failed, require_json
from selfspec.server.logprobs import Echo
from selfspec.server.metrics import Metrics
from selfspec.server.offers import offers
from selfspec.server.openapi import document
from selfspec.server.page import page_routes
from selfspec.server.replies import Reply
from selfspec.server.room import CacheLimits
from selfspec.server.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from selfspec.engine import Engine
    from selfspec.generation import Generation
    from selfspec.server.fields import TextFields
    from selfspec.server.settings import ServerOptions


class Service:
    """An engine with its scheduler, and the endpoints that use it. ``close`` ends its thread."""

    def __init__(self, engine: Engine, options: ServerOptions) -> None:
        if engine.tokenizer is None:
            raise OptionError("a server needs a tokenizer, and this engine has none")
        self._engine, self._options = engine, options
        self._tokenizer = engine.tokenizer
        self._desk = Desk(engine, options)
        self.metrics = Metrics(options.name)
        cache = CacheLimits(options.kv_budget, options.prefix_cache)
        self.scheduler = Scheduler(engine.runtime, options.slots, options.queue, self.metrics, cache=cache)
        self.metrics.watch(self.scheduler)
        self.metrics.learns(lambda: engine.learners)
        self._created = int(time.time())

    @property
    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/completions", self._completions, methods=["POST"]),
            Route("/v1/models", self._models),
            Route("/v1/models/{model:path}", self._model),
            Route("/v1/drafters", self._drafters),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
            Route("/openapi.json", self._openapi),
            *page_routes(),
        ]
        return Starlette(
            routes=routes,
            middleware=[Middleware(Guard, options=self._options)],
            exception_handlers={HTTPException: _no_route, Exception: _bug},
        )

    def close(self) -> None:
        """Fail what is not finished, and end the thread."""
        self.scheduler.close()

    # -- texts --------------------------------------------------------------------------------------------

    async def _chat(self, request: Request) -> Response:
        return await self._answered(request, ChatFields)

    async def _completions(self, request: Request) -> Response:
        return await self._answered(request, CompletionFields)

    async def _answered(self, request: Request, kind: type[TextFields]) -> Response:
        try:
            require_json(request.headers)
            raw = await request.body()
        except ClientDisconnect:
            return Response(status_code=GoneError.status)
        except UnsupportedBodyError as error:
            return failed(error)
        try:
            asked = read(kind, raw)
            generations = await asyncio.to_thread(self._desk.generations, asked)  # reading a prompt takes time
            echoed = self._echoed(asked, generations)
            seconds = min(filter(None, (asked.deadline, self._options.deadline)), default=0.0)
            answer = Answer(self.scheduler, generations, seconds)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is this request's)
            request.state.log["error"] = one_line(error)
            return failed(error)
        log = request.state.log
        log |= {"stream": asked.stream, "texts": len(generations), **({"user": asked.user} if asked.user else {})}
        return await self._run(request, asked, answer, echoed)

    def _echoed(self, asked: TextFields, generations: Sequence[Generation]) -> list[Echo]:
        if not (isinstance(asked, CompletionFields) and asked.echo):
            return [Echo()] * len(generations)
        prompts = [p if isinstance(p, str) else self._tokenizer.decode(p) for p in asked.prompts()]
        texts = [prompt for prompt in prompts for _ in range(asked.n)]
        pairs = zip(texts, generations, strict=True)
        return [Echo(text, made.prompt, made.prompt_scores) for text, made in pairs]

    async def _run(self, request: Request, asked: TextFields, answer: Answer, echoed: list[Echo]) -> Response:
        engine, options = self._engine, self._options
        fingerprint = f"selfspec-{engine.fingerprint[:12] or engine.name}"
        reply = Reply(asked, options.name, self._tokenizer, fingerprint, self._desk.calls_of(asked))
        gone = asyncio.ensure_future(disconnected(request.receive))
        log, is_streaming = request.state.log, False
        try:
            if asked.stream:
                rest = events(answer, gone, reply, echoed)
                first = await anext(rest)  # until then what fails has a status of its own
                is_streaming = True
                return EventStream(answer, gone, first, rest, log)
            document = await whole(answer, gone, reply, echoed)
            log |= answer.counted
            return JSONResponse(document)
        except GoneError:
            return Response(status_code=GoneError.status)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is this request's)
            log["error"] = one_line(error)
            return failed(error)
        finally:
            if not is_streaming:
                gone.cancel()
                answer.__exit__()

    # -- everything else ----------------------------------------------------------------------------------

    def _about(self) -> dict[str, Any]:
        return {
            "id": self._options.name,
            "object": "model",
            "created": self._created,
            "owned_by": "selfspec",
            "max_model_len": self._engine.config.context_length,
        }

    async def _models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._about()]})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["model"]
        if name != self._options.name:
            return failed(UnknownModelError(f"model is {name[:80]!r}; this server has {self._options.name!r}"))
        return JSONResponse(self._about())

    async def _drafters(self, _: Request) -> Response:
        return JSONResponse(offers(self._engine, self._options))

    async def _health(self, _: Request) -> Response:
        is_open = self.scheduler.is_open
        return JSONResponse({"status": "ok" if is_open else "shutting down"}, 200 if is_open else 503)

    async def _openapi(self, _: Request) -> Response:
        return JSONResponse(document(self._options))

    async def _metrics(self, _: Request) -> Response:
        return Response(self.metrics.text(), media_type=self.metrics.media_type)


async def _no_route(request: Request, error: Exception) -> Response:
    """What Starlette refuses: a path or a method that there is not."""
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path[:80]}"
    if error.status_code == 405:
        allowed = dict(error.headers or {}).get("Allow", "another method")
        refused = failed(MethodError(f"{where} is not offered; there is {allowed}"))
        refused.headers["allow"] = allowed
        return refused
    return failed(
        RouteError(f"{where} is not there; texts come from POST /v1/chat/completions and /v1/completions")
    )


async def _bug(_: Request, error: Exception) -> Response:
    """A mistake of ours; Starlette raises it again, for the log."""
    return JSONResponse(body_of(error), 500)
