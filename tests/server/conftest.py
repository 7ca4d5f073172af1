"""A server in this process on a tiny model, and the client of OpenAI's own package."""

from __future__ import annotations

import time

import pytest
from served import Running

import selfspec
from selfspec.flight import Flight
from selfspec.loading import has_native

# rows are independent to the last bit, or as good as that
EXACT = {"threads": 1} if has_native() else {"dtype": "float64"}


@pytest.fixture(scope="session")
def engine(tiny):
    # drafts as long as they are expected to pay depend on the clock, and so do the counts
    return selfspec.load(tiny, draft="ngram", adaptive=False, max_new_tokens=24, **EXACT)


@pytest.fixture
def slow(monkeypatch):
    """Rounds of 5 ms, so that a text of hundreds of tokens is still being written when something happens to it."""
    turn = Flight.turn

    def slowly(flight):
        time.sleep(0.005)
        return turn(flight)

    monkeypatch.setattr(Flight, "turn", slowly)


@pytest.fixture
def start(engine):
    """Start servers with options of their own; they stop after the test."""
    started = []

    def run(**options):
        started.append(Running(engine, **options))
        return started[-1]

    yield run
    for server in started:
        server.stop()


@pytest.fixture(scope="package")
def server(engine):
    running = Running(engine, slots=4, queue=100)
    yield running
    running.stop()


@pytest.fixture(scope="package")
def client(server):
    with server.client() as client:
        yield client
