"""Many requests: an end in the middle of them, and nothing left over after 2,000 (`pytest -m slow`)."""

from __future__ import annotations

import asyncio
import gc
import random
import resource
import threading

import openai
import pytest
from served import Running

import selfspec

ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "abc abc"}], "temperature": 0}
ENDLESS = {"ignore_eos": True}
DRAFTS = [
    {},
    {"draft": "auto"},
    {"draft": "suffix"},
    {"draft": "early_exit", "exit_layer": 2},
    {"gamma": 5, "siblings": 2},
    {"enabled": False},
]


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("grace", [20.0, 0.0])
def test_an_end_in_the_middle_of_a_load_loses_nobody_silently(start, grace):
    """Guards SIGTERM: of 20 requests, most of them waiting, each has a whole answer, or an error that says why."""
    server = start(slots=4, queue=100, grace=grace)

    async def one(client, i):
        try:
            options = {**ASKED, "max_tokens": 60, "extra_body": ENDLESS | {"speculative": DRAFTS[i % len(DRAFTS)]}}
            if i % 2:
                return (await client.chat.completions.create(**options)).choices[0].finish_reason
            stream = await client.chat.completions.create(**options, stream=True)
            return [chunk.choices[0].finish_reason async for chunk in stream][-1]
        except openai.APIError as error:
            return str(error)

    async def all_of_them():
        async with server.async_client() as client:
            tasks = [asyncio.create_task(one(client, i)) for i in range(20)]
            while server.scheduler.num_running + server.scheduler.num_waiting < 20:
                await asyncio.sleep(0.002)
            server.server.should_exit = True  # what the signal does
            return await asyncio.gather(*tasks)

    found = asyncio.run(all_of_them())
    server.stop()
    if grace:
        assert found == ["length"] * 20
    else:
        assert all(end == "length" or "the server shut down" in end for end in found), found
        assert sum("the server shut down" in end for end in found) > 10


@pytest.mark.slow
def test_nothing_is_left_over_after_two_thousand_requests(tiny):
    """Guards slots, threads and memory: a fifth leave at once, a tenth is garbage, six ways to draft."""
    running = Running(selfspec.load(tiny, draft="ngram", threads=1), slots=8, queue=3000)
    kept = []

    async def one(client, i):
        rng = random.Random(i)
        options = {**ASKED, "max_tokens": rng.randrange(1, 24), "extra_body": {"speculative": DRAFTS[i % 6]}}
        if i % 10 == 3:
            garbage, headers = rng.randbytes(rng.randrange(200)), {"content-type": "application/json"}
            asked = ("/v1/chat/completions", "POST", garbage, headers)
            assert (await asyncio.to_thread(running.fetch, *asked))[0] == 400
        elif i % 5 == 1:
            more = {"max_tokens": 2000, "extra_body": options["extra_body"] | ENDLESS}
            async with await client.chat.completions.create(**options | more, stream=True) as stream:
                await anext(stream)
        else:
            assert (await client.chat.completions.create(**options)).choices

    async def some(numbers):
        async with running.async_client() as client:
            for at in range(numbers.start, numbers.stop, 32):
                await asyncio.gather(*(one(client, i) for i in range(at, min(at + 32, numbers.stop))))

    try:
        for numbers in (range(400), range(400, 1200), range(1200, 2000)):
            asyncio.run(some(numbers))
            running.has(running=0, waiting=0)
            gc.collect()
            kept.append((threading.active_count(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
    finally:
        running.stop()
    assert kept[2][0] <= kept[0][0] + 1, kept
    assert kept[2][1] - kept[1][1] < 8192, kept  # kilobytes: what grows with every request would grow for ever
