"""A server in a thread of this process, asked by OpenAI's own client or by hand."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time

import openai

from selfspec.server.app import Service
from selfspec.server.run import Server, listen
from selfspec.server.settings import ServerOptions

COLOURS = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "sure": {"type": "boolean"}},
    "required": ["colour", "sure"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "paint", "description": "Paints.", "parameters": COLOURS}},
    {
        "type": "function",
        "function": {
            "name": "wait",
            "description": "Waits.",
            "parameters": {
                "type": "object",
                "properties": {"hours": {"type": "integer", "minimum": 0, "maximum": 99}},
                "required": ["hours"],
                "additionalProperties": False,
            },
        },
    },
]


def until(condition, seconds=10):
    """Wait for something that must come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.002)


class Running:
    """A server that listens, in a thread of its own."""

    def __init__(self, engine, **options):
        grace = options.pop("grace", 5.0)
        self.service = Service(engine, ServerOptions("tiny", **options))
        self.socket = listen("127.0.0.1", 0)
        self.port = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        started = threading.Event()
        self.server = Server(self.service, grace, started.set)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]})
        self.thread.start()
        assert started.wait(10)

    @property
    def scheduler(self):
        return self.service.scheduler

    def stop(self):
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive()

    def client(self, key="none", **options):
        return openai.OpenAI(base_url=self.url, api_key=key, max_retries=0, **{"timeout": 30} | options)

    def async_client(self):
        return openai.AsyncOpenAI(base_url=self.url, api_key="none", max_retries=0, timeout=30)

    def send(self, path, body, method="POST", **headers):
        """Status, headers and JSON of a request that no client would send."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json"} | headers
        status, found, answer = self.fetch(path, method, raw, headers)
        return status, found, json.loads(answer or b"null")

    def fetch(self, path, method="GET", raw=None, headers=None):
        """Status, headers and bytes."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request(method, path, raw, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def has(self, running=0, waiting=0):
        """Wait until as many texts hold a slot, and as many wait for one."""
        until(lambda: (self.scheduler.num_running, self.scheduler.num_waiting) == (running, waiting))

    def metric(self, name):
        """The sum of a metric's samples."""
        lines = self.service.metrics.text().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))
