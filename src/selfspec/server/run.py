"""A server that listens: from the first connection to the last answer after the signal to stop."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from contextlib import contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING

import uvicorn

from selfspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from selfspec.server.app import Service

_LAST_WORDS = 5.0  # seconds in which errors of unfinished texts reach their readers


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound; port 0 takes a free one. Raises OptionError where that cannot be."""
    if isinstance(port, bool) or not 0 <= port <= 65535:
        raise OptionError(f"port is {port}; it must be 0 (any free one) to 65535")
    bound = None
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        if bound is not None:
            bound.close()
        raise OptionError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; give another --port"
        ) from error
    return bound


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Server(uvicorn.Server):
    """Uvicorn that finishes what it has accepted.

    At SIGTERM or Ctrl-C no request is taken any more; those that are there have ``grace`` seconds, then they are
    failed, each with an error that says so. A second Ctrl-C ends at once. `run` then returns.
    """

    def __init__(self, service: Service, grace: float, started: Callable[[], None] = lambda: None) -> None:
        config = uvicorn.Config(
            service.app,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=None,
        )
        super().__init__(config)
        self._service, self._grace, self._announce = service, grace, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and say so."""
        await super().startup(sockets=sockets)
        self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more, wait, fail the rest, and let the answers out."""
        scheduler = self._service.scheduler
        scheduler.drain()
        closing = asyncio.ensure_future(super().shutdown(sockets=sockets))
        await asyncio.wait([closing], timeout=self._grace)
        await asyncio.to_thread(self._service.close)
        if not closing.done():
            await asyncio.wait([closing], timeout=_LAST_WORDS)
            self.force_exit = True  # whoever has not read the error by now never will
        await closing

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle the signals while it runs; unlike uvicorn's, it does not raise them again when all is done."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
