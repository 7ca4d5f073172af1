"""What every request passes first: id, API key, size of the body, a line in the log; and the type of bodies."""

from __future__ import annotations

import hmac
import json
import logging
import re
import secrets
import time
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

from selfspec.server.failures import (
    KeyRefusedError,
    TooLargeError,
    UnsupportedBodyError,
    body_of,
    headers_of,
    status_of,
)
from selfspec.server.page import is_of_the_page

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from selfspec.server.settings import ServerOptions

_LOG = logging.getLogger("selfspec.server")
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def failed(error: Exception) -> JSONResponse:
    """The response to a request that failed before anything was sent; what is our own bug is logged."""
    if status_of(error) == 500:
        _LOG.error("a request failed", exc_info=error)
    return JSONResponse(body_of(error), status_of(error), headers_of(error))


def _is_open(path: str) -> bool:
    """Whether no key is asked for."""
    return path == "/health" or is_of_the_page(path)


def require_json(headers: Headers) -> None:
    """Raise UnsupportedBodyError where a body is none by its type: other web pages may post text/plain unasked."""
    if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise UnsupportedBodyError("the content type must be application/json")


class Guard:
    """ASGI middleware; what the endpoints want in the log they add to ``scope["state"]["log"]``."""

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self._app, self._options = app, options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _ID.fullmatch(given) else secrets.token_hex(8)
        log: dict[str, Any] = {"id": request_id, "method": scope["method"], "path": scope["path"], "status": None}
        scope.setdefault("state", {})["log"] = log
        started = time.monotonic()

        async def labelled(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
                log["status"] = message["status"]
            await send(message)

        try:
            try:
                self._check(scope, headers)
                await self._app(scope, self._limited(receive), labelled)
            except (KeyRefusedError, TooLargeError) as error:
                if log["status"] is not None:
                    raise
                await failed(error)(scope, receive, labelled)
        finally:
            _LOG.info(json.dumps({**log, "seconds": round(time.monotonic() - started, 4)}))

    def _check(self, scope: Scope, headers: Headers) -> None:
        if self._options.api_key and not _is_open(scope["path"]):
            scheme, _, key = headers.get("authorization", "").partition(" ")
            is_right = hmac.compare_digest(key.strip().encode("latin-1"), self._options.api_key.encode())
            if scheme.lower() != "bearer" or not is_right:
                what = "the API key is wrong" if key else "there is no API key"
                raise KeyRefusedError(f"{what}; send the header Authorization: Bearer KEY")
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._options.max_body:
            raise self._too_large()

    def _limited(self, receive: Receive) -> Receive:
        """``receive`` that counts the bytes of a body whose length was not told."""
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._options.max_body:
                raise self._too_large()
            return message

        return counted

    def _too_large(self) -> TooLargeError:
        return TooLargeError(f"the body is larger than {self._options.max_body} bytes, which is the limit here")
