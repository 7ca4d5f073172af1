"""What docs/hardening.md says of threads and forks: one engine may be used from many threads, and in children."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

import selfspec
from selfspec.loading import has_native

EXACT = {"threads": 2} if has_native() else {"dtype": "float64"}
WAYS = [
    {"draft": "plain"},
    {"draft": "ngram"},
    {"draft": "suffix"},
    {"draft": "early_exit", "exit_layer": 2},
    {"draft": "auto"},
    {"draft": "ngram", "temperature": 1.0, "seed": 7, "coupled": True},
    {"draft": "suffix>early_exit:exit_layer=2", "temperature": 0.8, "seed": 3, "coupled": True},
    {"draft": "plain", "regex": "[a-e]{1,9}"},
]
PROMPT = "abc abd abc"


@pytest.fixture(scope="module")
def engine(tiny):
    return selfspec.load(tiny, max_new_tokens=16, ignore_eos=False, **EXACT)


@pytest.fixture(scope="module")
def alone(engine):
    """Each way by itself."""
    return [engine.generate(PROMPT, **way).token_ids for way in WAYS]


def test_threads_share_an_engine(engine, alone):
    """Guards what engines and drafters share: every text is what it is alone, whoever runs beside it."""
    together = threading.Barrier(4)

    def worker(number):
        together.wait(20)
        order = [(number + i) % len(WAYS) for i in range(len(WAYS))]
        return [(i, engine.generate(PROMPT, **WAYS[i]).token_ids) for i in order]

    with ThreadPoolExecutor(4) as pool:
        found = [pair for made in pool.map(worker, range(4)) for pair in made]
    assert len(found) == 4 * len(WAYS)
    assert [(i, tokens) for i, tokens in found if tokens != alone[i]] == []


def test_streams_and_batches_of_several_threads(engine, alone):
    """Guards caches: a stream that is read slowly, batches, and a conversation beside each other."""

    def streamed(way):
        return [chunk.token for chunk in engine.stream(PROMPT, **WAYS[way])]

    def batched(way):
        return [found.token_ids for _, found in sorted(engine.batch([PROMPT] * 3, slots=2, **WAYS[way]))]

    with ThreadPoolExecutor(4) as pool:
        jobs = [(way, pool.submit(function, way)) for way in (0, 1, 3, 5) for function in (streamed, batched)]
        for way, job in jobs:
            made = job.result(60)
            assert all(tuple(each) == alone[way] for each in (made if isinstance(made[0], tuple) else [made]))


def child_says(function):
    """What ``function`` returned in a forked child within 30 s; None where it hung or failed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        with suppress(BaseException):
            os.write(writing, repr(function()).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    return said.decode() or None if os.waitpid(child, 0)[1] == 0 else None


@pytest.mark.skipif(not hasattr(os, "fork") or not has_native(), reason="forks, in the native core")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns of forks beside threads
def test_a_forked_child_answers_and_so_does_its_parent(engine, alone):
    """Guards servers that load and then fork: threads of the core are not there in a child, weights are shared."""
    for _ in range(2):
        assert child_says(lambda: [engine.generate(PROMPT, **way).token_ids for way in WAYS]) == repr(alone)
        assert [engine.generate(PROMPT, **way).token_ids for way in WAYS] == alone


@pytest.mark.skipif(not hasattr(os, "fork") or not has_native(), reason="forks, in the native core")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_in_the_middle_of_a_generation(engine, alone):
    """Guards locks: a child that is born while another thread runs the model loads and runs its own generations."""
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            engine.generate(PROMPT, draft="early_exit", exit_layer=2)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        for _ in range(3):
            assert child_says(lambda: engine.generate(PROMPT, **WAYS[3]).token_ids) == repr(alone[3])
    finally:
        stop.set()
        thread.join()
