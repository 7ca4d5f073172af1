"""The real `openai` client against a running server: every endpoint and parameter, whole and streamed."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import openai
import pytest

from selfspec.context import Context, Text
from selfspec.sampling import Chance
from selfspec.types import Sampling

HI = [{"role": "user", "content": "hello there"}]
LONG = {"ignore_eos": True}


def chat(client, extra=LONG, **options):
    return client.chat.completions.create(**({"model": "tiny", "messages": HI} | options), extra_body=extra)


def text(client, extra=LONG, **options):
    return client.completions.create(**({"model": "tiny"} | options), extra_body=extra)


def drafting(**options):
    return LONG | {"speculative": options}


SAMPLED = {"temperature": 0.9, "seed": 7, "top_p": 0.95}
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": -0.5, "logit_bias": {"104": 3.5, "105": -100}}


@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": 0},
        SAMPLED,
        {"temperature": 0, "max_completion_tokens": 7, **PENALTIES},
        {"temperature": 1, "seed": 3, "extra": LONG | {"min_p": 0.05, "top_k": 40, "repetition_penalty": 1.2}},
        {"temperature": 0.8, "seed": 3, "stop": ["e", "("], "max_tokens": 60},
        {"temperature": 0.7, "seed": 9, "extra": {"min_tokens": 9, "coupled": True}},
        {**SAMPLED, "extra": drafting(draft="early_exit", exit_layer=2, gamma=3)},
        {**SAMPLED, "extra": drafting(enabled=False)},
    ],
    ids="-".join,
)
def test_an_answer_is_that_of_generate_whole_and_streamed(client, engine, asked):
    """Guards every field on its way to the engine, the stream's form (pains F 1-4), and usage."""
    mine = {name: value for name, value in asked.items() if name != "extra"} | dict(asked.get("extra", LONG))
    drafts = mine.pop("speculative", {})
    mine |= {"draft": "plain"} if drafts.get("enabled") is False else drafts
    if "max_tokens" in mine or "max_completion_tokens" in mine:
        mine["max_new_tokens"] = mine.pop("max_tokens", None) or mine.pop("max_completion_tokens")
    mine["logit_bias"] = {int(token): bias for token, bias in mine.get("logit_bias", {}).items()}
    want = engine.generate(messages=HI, **mine)
    done = chat(client, **asked)
    (choice,) = done.choices
    assert (choice.message.content, choice.finish_reason) == (want.text, want.finish_reason)
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (want.prompt_tokens, len(want.token_ids))
    assert done.metrics["speculative_decoding"]["num_accepted_draft_tokens"] == want.stats.accepted
    assert done.metrics["speculative_decoding"]["draft"] == want.draft
    assert done._request_id

    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}, **asked))
    *spoken, last, usage = chunks
    assert chunks[0].choices[0].delta.role == "assistant"
    assert not any(chunk.choices[0].delta.role for chunk in chunks[1:-1])
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == want.text
    assert [chunk.choices[0].finish_reason for chunk in (*spoken, last)] == [None] * len(spoken) + [
        want.finish_reason
    ]
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert usage.choices == []
    assert usage.usage.completion_tokens_details == done.usage.completion_tokens_details
    assert usage.usage.total_tokens == done.usage.total_tokens
    assert not any(chunk.usage for chunk in chunks[:-1])
    counting = {"include_usage": True, "continuous_usage_stats": True}  # vLLM's, which guidellm asks for
    counts = [chunk.usage for chunk in chat(client, stream=True, stream_options=counting, **asked)]
    assert [count.completion_tokens for count in counts] == sorted(count.completion_tokens for count in counts)
    assert counts[0].completion_tokens == 0
    assert counts[-2].total_tokens == counts[-1].total_tokens == done.usage.total_tokens
    assert len(list(chat(client, stream=True, **asked))) == len(chunks) - 1


@pytest.mark.parametrize("prompt", ["a bc", ["a bc", "d"], [104, 105, 106], [[104, 105], [106]]], ids=str)
def test_completions_take_every_kind_of_prompt(client, engine, prompt):
    """Guards lists, n with its seeds, echo, the order of choices, and how prompts are counted."""
    prompts = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    done = text(client, prompt=prompt, n=2, seed=5, temperature=1, max_tokens=9, echo=True)
    streamed = dict.fromkeys(range(len(done.choices)), "")
    for chunk in text(client, prompt=prompt, n=2, seed=5, temperature=1, max_tokens=9, echo=True, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    wants = []
    for p in prompts:
        for seed in (5, 6):
            made = engine.generate(p, chat=False, seed=seed, temperature=1, max_new_tokens=9, ignore_eos=True)
            echoed = p if isinstance(p, str) else engine.tokenizer.decode(p)
            wants.append(echoed + made.text)
    assert [choice.text for choice in done.choices] == wants == list(streamed.values())
    assert [choice.index for choice in done.choices] == list(range(len(wants)))
    assert done.usage.prompt_tokens == sum(map(len, prompts))
    assert done.usage.completion_tokens == 9 * len(wants)


def law(engine, tokens):
    """log p of every next token after each prefix, from one pass over all of them, drafts and loop aside."""
    runtime = engine.runtime
    context = Context(runtime, runtime.new_cache(1, len(tokens) + 1))
    rows = []
    for end in range(1, len(tokens) + 1):
        one = Text(0, 0, list(tokens[:end]), end + 1, Sampling(), Chance(0), lambda _: True, cached=end - 1)
        x = np.asarray(context.prefill(one), dtype=np.float64)
        rows.append(x - x.max() - np.log(np.exp(x - x.max()).sum()))
    return np.asarray(rows)


@pytest.mark.parametrize(
    "drafts",
    [
        {"draft": "plain"},
        {"gamma": 5},
        {"draft": "early_exit", "exit_layer": 3, "siblings": 4, "gamma": 4},
        {"draft": "early_exit", "gamma": 3},
    ],
)
def test_log_probabilities_are_the_targets_for_every_token(client, engine, drafts):
    """Guards accepted tokens and branches of trees: each has the log probability of its own row (vLLM #34497)."""
    asked = {"temperature": 1.3, "seed": 2, "max_tokens": 40, "extra": drafting(**drafts)}
    done = text(client, prompt="abcabcabcabc", logprobs=3, **asked)
    found = done.choices[0].logprobs
    made = list(
        engine.stream(
            "abcabcabcabc", chat=False, temperature=1.3, seed=2, max_new_tokens=40, ignore_eos=True, **drafts
        )
    )
    ids = [chunk.token for chunk in made]
    prompt = engine.encode("abcabcabcabc", chat=False)
    rows = law(engine, [*prompt, *ids])[len(prompt) - 1 : -1]
    np.testing.assert_allclose(found.token_logprobs, rows[np.arange(40), ids], atol=1e-9)
    for row, top in zip(rows, found.top_logprobs, strict=True):
        np.testing.assert_allclose(list(top.values()), np.sort(row)[-3:][::-1], atol=1e-9)
    assert len(found.tokens) == done.usage.completion_tokens == 40
    assert found.text_offset == [sum(len(chunk.text) for chunk in made[:i]) for i in range(40)]
    streamed = list(text(client, prompt="abcabcabcabc", logprobs=3, stream=True, **asked))
    parts = [chunk.choices[0].logprobs for chunk in streamed if chunk.choices[0].logprobs]
    for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [entry for part in parts for entry in getattr(part, field)] == getattr(found, field)


def test_text_parts_are_joined(client):
    """Guards clients that send lists of parts to a template that takes strings; what is no text is refused."""

    def said(content):
        return chat(client, messages=[{"role": "user", "content": content}], temperature=0, max_tokens=6).choices[0]

    parts = [{"type": "text", "text": "hello"}, {"type": "text", "text": "there"}]
    assert said(parts).message.content == said("hello\nthere").message.content
    with pytest.raises(openai.BadRequestError, match="this model reads texts only"):
        said([*parts, {"type": "image_url", "image_url": {"url": "x"}}])


def test_log_probabilities_of_a_chat_bring_bytes(client):
    """Guards tokens that are parts of characters: their bytes together are the text."""
    done = chat(client, logprobs=True, top_logprobs=2, temperature=0)
    content = done.choices[0].logprobs.content
    special = {"<|im_start|>", "<|im_end|>", "<|endoftext|>"}
    raw = b"".join(bytes(entry.bytes) for entry in content if entry.token not in special)
    assert raw.decode(errors="replace") == done.choices[0].message.content
    assert all(len(entry.top_logprobs) == 2 and entry.top_logprobs[0].token == entry.token for entry in content)
    assert len(content) == done.usage.completion_tokens
    assert chat(client, logprobs=True, temperature=0).choices[0].logprobs.content[0].top_logprobs == []
    assert chat(client, logprobs=False).choices[0].logprobs is None


def test_a_prediction_is_drafted_from_and_counted(client):
    """Guards OpenAI's predicted outputs: the two counts, and the same words."""
    plain = chat(client, temperature=0, max_tokens=40)
    words = plain.choices[0].message.content
    right = chat(client, temperature=0, max_tokens=40, prediction={"type": "content", "content": words})
    wrong = chat(client, temperature=0, max_tokens=40, prediction={"type": "content", "content": "zz".join(words)})
    assert [done.choices[0].message.content for done in (right, wrong)] == [words, words]
    details = [done.usage.completion_tokens_details for done in (plain, right, wrong)]
    assert details[0].accepted_prediction_tokens == details[0].rejected_prediction_tokens == 0
    assert details[1].accepted_prediction_tokens > details[2].accepted_prediction_tokens
    assert details[2].rejected_prediction_tokens > 0


def test_models_health_metrics_and_the_id_of_a_request(server, client):
    """Guards what is around the texts, and vLLM's names, which its benchmark reads."""
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "selfspec"
    with pytest.raises(openai.NotFoundError, match="model is 'gpt-9'; this server has 'tiny'"):
        client.models.retrieve("gpt-9")
    assert server.send("/health", b"", "GET")[0] == 200
    status, headers, _ = server.send("/v1/models", b"", "GET", **{"x-request-id": "mine-1"})
    assert (status, headers["x-request-id"]) == (200, "mine-1")
    before = {name: server.metric(f"vllm:spec_decode_num_{name}_total") for name in NAMES}
    done = text(client, prompt="abcabcabcabcabcabc", temperature=0, max_tokens=60)
    after = {name: server.metric(f"vllm:spec_decode_num_{name}_total") for name in NAMES}
    drafted = done.metrics["speculative_decoding"]
    moved = {name: after[name] - before[name] for name in NAMES}
    assert moved["draft_tokens"] == drafted["num_draft_tokens"] > 0
    assert moved["accepted_tokens"] == moved["accepted_tokens_per_pos"] == drafted["num_accepted_draft_tokens"]
    assert 0 < moved["drafts"] <= drafted["num_spec_steps"]


NAMES = ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")

MIXED = [
    {"temperature": 0},
    {"temperature": 1.2, "seed": 1},
    {"temperature": 0.8, "seed": 2, "extra": drafting(draft="early_exit", exit_layer=2, gamma=3)},
    {
        "temperature": 1,
        "seed": 3,
        "extra": drafting(gamma=5, siblings=2),
        "messages": [HI[0] | {"content": "abcabc" * 30}],
    },
    {"temperature": 0, "extra": drafting(enabled=False), "max_tokens": 50},
    {"temperature": 0, "messages": [HI[0] | {"content": "long " * 260}], "max_tokens": 9},
]


def test_texts_together_are_what_they_are_alone(server, client, caplog):
    """Guards everything at once: 32 mixed requests, drafts on, streams, a fifth leaves, a tenth is garbage."""
    alone = [chat(client, **asked).choices[0].message.content for asked in MIXED]
    rng = random.Random(1)

    async def one(client, i):
        await asyncio.sleep(rng.random() * 0.05)
        asked = dict(MIXED[i % len(MIXED)])
        options = {"model": "tiny", "messages": HI, "extra_body": asked.pop("extra", LONG)} | asked
        if i % 20 == 3:
            assert (await asyncio.to_thread(server.send, "/v1/chat/completions", b"{garbage"))[0] == 400
            return
        if i % 10 == 3:
            with pytest.raises(openai.BadRequestError, match="top_p is"):
                await client.chat.completions.create(**options, top_p=7)
            return
        if i % 5 == 1:
            async with await client.chat.completions.create(
                **options | {"max_tokens": 2000}, stream=True
            ) as stream:
                await anext(stream)
            return
        if i % 2:
            found = (await client.chat.completions.create(**options)).choices[0].message.content
        else:
            stream = await client.chat.completions.create(**options, stream=True)
            found = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert found == alone[i % len(MIXED)], i

    async def all_of_them():
        async with server.async_client() as client:
            await asyncio.gather(*(one(client, i) for i in range(32)))

    asyncio.run(all_of_them())
    server.has(running=0, waiting=0)
    assert [record.message for record in caplog.records if record.levelname != "INFO"] == []


def whole_prompt(made):
    """Tokens, log probabilities and the likeliest token's, as lm-eval reads them."""
    found = made.logprobs
    tops = [top and max(top.values()) for top in found.top_logprobs]
    return found.tokens, found.token_logprobs, tops, found.text_offset


@pytest.mark.parametrize("drafts", [{"enabled": False}, {"draft": "early_exit"}], ids=str)
def test_an_echo_has_the_log_probabilities_of_the_prompt(client, engine, drafts):
    """Guards what lm-eval's `local-completions` reads: lists of token ids, no new token or one, long prompts too.

    1100 tokens run in three passes; every entry is compared with a pass of its own prefix.
    """
    random = np.random.default_rng(5)
    letters = engine.tokenizer.encode("abcdefghijklmnopqrstuvwxyz ,.", add_special_tokens=False)
    prompts = [random.choice(letters, size).tolist() for size in (3, 1, 1100)]
    asked = {"prompt": prompts, "echo": True, "logprobs": 1, "temperature": 0}
    done = text(client, {"speculative": drafts}, max_tokens=0, **asked)
    one = text(client, {"speculative": drafts}, max_tokens=1, **asked)
    assert (done.usage.completion_tokens, one.usage.completion_tokens) == (0, 3)
    for prompt, choice, longer in zip(prompts, done.choices, one.choices, strict=True):
        tokens, logprobs, tops, offsets = whole_prompt(choice)
        assert choice.text == engine.tokenizer.decode(prompt) == longer.text[: len(choice.text)]
        assert "".join(tokens) == choice.text
        assert offsets == list(range(len(prompt)))
        assert [found[: len(prompt)] for found in whole_prompt(longer)] == [tokens, logprobs, tops, offsets]
        assert len(whole_prompt(longer)[0]) == len(prompt) + 1
        assert (logprobs[0], tops[0]) == (None, None)
        want = law(engine, prompt[:40])
        for place, (logprob, top) in enumerate(zip(logprobs[1:40], tops[1:40], strict=True)):
            assert logprob == pytest.approx(want[place][prompt[place + 1]], abs=1e-6)
            assert top == pytest.approx(want[place].max(), abs=1e-6)
    last = law(engine, prompts[2])[-2]
    assert done.choices[2].logprobs.token_logprobs[-1] == pytest.approx(last[prompts[2][-1]], abs=1e-6)

    streamed = {0: [], 1: [], 2: []}
    for chunk in text(client, max_tokens=1, stream=True, **asked):
        for choice in chunk.choices:
            streamed[choice.index] += choice.logprobs.token_logprobs if choice.logprobs else []
    assert list(streamed.values()) == [choice.logprobs.token_logprobs for choice in one.choices]
