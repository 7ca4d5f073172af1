"""The cache of a server: prompts that share their beginnings, and a budget that nobody breaks."""

from __future__ import annotations

import asyncio

import openai
import pytest

from selfspec.errors import OptionError
from selfspec.server.failures import FieldError
from selfspec.server.room import CacheLimits, Room
from selfspec.server.settings import ServerOptions

SYSTEM = {"role": "system", "content": "Be brief, and be kind to whoever asks. " * 4}
LONG = {"ignore_eos": True}


def ask(client, turns, **options):
    return client.chat.completions.create(
        **({"model": "tiny", "messages": turns, "seed": 1, "max_tokens": 12} | options), extra_body=LONG
    )


@pytest.mark.parametrize("draft", ["ngram", "early_exit"])
def test_a_shared_prompt_is_not_read_twice(start, engine, draft):
    """Guards the numbers that clients and Prometheus see, and the texts: those that they are alone."""
    server = start(slots=2)
    turns = [SYSTEM, {"role": "user", "content": "first"}]
    with server.client() as client:
        first = ask(client, turns, logprobs=True)
        assert first.usage.prompt_tokens_details.cached_tokens == 0
        turns += [first.choices[0].message.to_dict(), {"role": "user", "content": "and now?"}]
        turns[2]["content"] = "ok"  # bytes that are no characters do not come back as they were
        second = ask(client, turns, logprobs=True)
        cached = second.usage.prompt_tokens_details.cached_tokens
        alone = engine.generate(
            messages=turns, seed=1, temperature=1, max_new_tokens=12, ignore_eos=True, logprobs=0
        )
        assert second.choices[0].message.content == alone.text
        assert [t.logprob for t in second.choices[0].logprobs.content] == [s.logprob for s in alone.scores]
        assert first.usage.prompt_tokens - 4 < cached < second.usage.prompt_tokens
        scored = client.completions.create(model="tiny", prompt="x" * 99, echo=True, logprobs=0, max_tokens=0)
        scored = client.completions.create(model="tiny", prompt="x" * 99, echo=True, logprobs=0, max_tokens=0)
        assert scored.usage.prompt_tokens_details.cached_tokens == 0
    asked = first.usage.prompt_tokens + second.usage.prompt_tokens + 2 * 99
    assert server.metric("vllm:prefix_cache_queries_total") == asked
    assert server.metric("vllm:prefix_cache_hits_total") == cached
    off = start(slots=1, prefix_cache=False)
    with off.client() as client:
        assert [ask(client, turns).usage.prompt_tokens_details.cached_tokens for _ in range(2)] == [0, 0]


def test_nobody_breaks_the_budget(start, engine, monkeypatch):
    """Guards admission: what never fits is a 400, what does not fit now waits, and the cache stays below."""
    cells = engine.runtime.cache_bytes(1, 256)
    server = start(slots=4, queue=100, kv_budget=2 * cells)
    board, held = Room.board, []

    def watched(room, flight, *rest):
        board(room, flight, *rest)
        held.append((flight.kv_bytes, flight.slots))

    monkeypatch.setattr(Room, "board", watched)

    async def one(client, number):
        tokens = (9, 220, 30, 100)[number % 4]
        done = await client.completions.create(
            model="tiny", prompt=f"text {number}", max_tokens=tokens, seed=number, extra_body=LONG
        )
        return number, tokens, done

    async def all_of(numbers):
        async with server.async_client() as client:
            return await asyncio.gather(*(one(client, number) for number in numbers))

    short = asyncio.run(all_of((0, 4, 8)))  # alone: beside others a long one may always be there
    for number, tokens, done in short + asyncio.run(all_of(range(12))):
        want = engine.generate(
            f"text {number}", chat=False, seed=number, temperature=1, max_new_tokens=tokens, ignore_eos=True
        )
        assert done.choices[0].text == want.text
    assert max(size for size, _ in held) <= 2 * cells
    assert {2, 4} <= {slots for _, slots in held}  # fewer where a long one is there
    with server.client() as client, pytest.raises(openai.BadRequestError, match="ask for fewer") as raised:
        ask(client, [{"role": "user", "content": "hi"}], max_tokens=3000)
    assert raised.value.param == "max_tokens"
    with server.client() as client:
        assert ask(client, [{"role": "user", "content": "hi"}], n=4).usage.completion_tokens == 48
    assert server.scheduler._flight.slots == 4  # all of them are there again


def test_slots_are_as_many_as_fit(engine):
    """Guards the arithmetic, at its edges."""
    one = engine.runtime.cache_bytes(1, 512)
    room = Room(engine.runtime, 8, CacheLimits(3 * one, False))
    room.require(512)
    with pytest.raises(FieldError, match="ask for fewer"):
        room.require(3000)
    flight = room.flight(512)
    assert (flight.slots, flight.kv_bytes) == (3, 3 * one)
    assert room.suits(flight, 512)
    assert not room.suits(flight, 600)  # two slots
    assert not room.suits(flight, 64)  # eight would do
    wide = Room(engine.runtime, 8, CacheLimits(0, False))
    assert wide.flight(4096).slots == 8
    with pytest.raises(OptionError, match="kv_budget"):
        ServerOptions("tiny", kv_budget=-1)
