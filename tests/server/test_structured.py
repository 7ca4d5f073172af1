"""Structured output and tools, asked for by the real `openai` client, whole and streamed."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from enum import Enum
from pathlib import Path

import openai
import pydantic
import pytest
from served import COLOURS, TOOLS, Running

import selfspec

TEMPLATES = Path(__file__).parent.parent / "model" / "templates"
HI = [{"role": "user", "content": "hello there"}]
FUNCTION = {"name": "wait", "arguments": "{}"}
CALLED = {"role": "assistant", "tool_calls": [{"id": "i", "type": "function", "function": FUNCTION}]}


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Answer(pydantic.BaseModel):
    colour: Colour
    sure: bool


@pytest.fixture(scope="module")
def calling(tiny, tmp_path_factory):
    """A server of a model whose chat template knows tools."""
    folder = tmp_path_factory.mktemp("calling") / "model"
    shutil.copytree(tiny, folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = (TEMPLATES / "qwen_2.5.jinja").read_text()
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    running = Running(selfspec.load(folder, draft="suffix", max_new_tokens=400, threads=1))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def caller(calling):
    with calling.client() as client:
        yield client


def ask(client, extra=None, **options):
    return client.chat.completions.create(
        **({"model": "tiny", "messages": HI, "max_tokens": 400} | options), extra_body=extra
    )


def collected(chunks):
    """The message that a client gathers from a stream, its finish reasons, and how many pieces of calls it had."""
    content, calls, reasons, pieces = "", {}, [], 0
    for chunk in chunks:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasons.append(choice.finish_reason)
            for piece in choice.delta.tool_calls or ():
                pieces += 1
                call = calls.setdefault(piece.index, {"arguments": ""})
                call |= {"id": piece.id, "name": piece.function.name} if piece.id else {}
                call["arguments"] += piece.function.arguments or ""
    return content, calls, [reason for reason in reasons if reason], pieces


def response_format(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


@pytest.mark.parametrize(
    "drafts", [{"enabled": False}, {"draft": "suffix"}, {"draft": "early_exit", "siblings": 1}], ids=str
)
def test_json_is_what_the_schema_says_and_greedy_the_same_with_every_draft(client, engine, drafts):
    """Guards response_format on its way to the engine, drafts on and off, and what is streamed."""
    want = engine.generate(messages=HI, json_schema=COLOURS, draft="plain", temperature=0, max_new_tokens=400)
    asked = {"response_format": response_format(COLOURS, strict=True), "temperature": 0}
    done = ask(client, {"speculative": drafts}, **asked)
    assert done.choices[0].message.content == want.text
    assert (done.choices[0].finish_reason, set(json.loads(want.text))) == ("stop", {"colour", "sure"})
    content, _, reasons, _ = collected(ask(client, {"speculative": drafts}, stream=True, **asked))
    assert (content, reasons) == (want.text, ["stop"])


def test_parse_helpers_and_async_streams_of_the_client(server):
    """Guards what `client.chat.completions.parse` and `.stream` make of pydantic models, concurrently."""

    async def both():
        async with server.async_client() as client:
            parsed = await asyncio.gather(
                *(
                    client.chat.completions.parse(
                        model="tiny", messages=HI, response_format=Answer, seed=seed, max_tokens=400
                    )
                    for seed in range(4)
                )
            )
            async with client.chat.completions.stream(
                model="tiny", messages=HI, response_format=Answer, seed=3, max_tokens=400
            ) as stream:
                async for _ in stream:
                    pass
                return parsed, await stream.get_final_completion()

    parsed, streamed = asyncio.run(both())
    for done in parsed:
        assert isinstance(done.choices[0].message.parsed, Answer)
    assert streamed.choices[0].message.parsed == parsed[3].choices[0].message.parsed


@pytest.mark.parametrize(
    ("asked", "matches"),
    [
        ({"structured_outputs": {"regex": "[0-9]{3}-[0-9]{3}"}}, "[0-9]{3}-[0-9]{3}"),
        ({"structured_outputs": {"choice": ["a+b", "c (d)"]}}, re.escape("a+b") + "|" + re.escape("c (d)")),
        ({"structured_outputs": {"grammar": 'start: "x" "y"*\n'}}, "xy*"),
        ({"structured_outputs": {"json": COLOURS}}, "(?s)\\{.*\\}"),
        ({"response_format": {"type": "text"}}, "(?s).*"),
    ],
    ids=str,
)
def test_other_structures_in_both_endpoints(client, asked, matches):
    """Guards vLLM's field, and that it is the whole answer that matches."""
    made = ask(client, asked, seed=5, n=2, max_tokens=60)
    text = client.completions.create(model="tiny", prompt="ab", seed=5, max_tokens=60, extra_body=asked)
    for answer in (*(choice.message.content for choice in made.choices), text.choices[0].text):
        assert re.fullmatch(matches, answer), answer


def test_200_seeded_requests_are_valid_with_drafts_on(server):
    """Guards the claim: every answer obeys its schema, whoever drafts, at 24 requests at once."""

    async def one(client, seed, gate):
        drafts = [{"draft": "early_exit", "siblings": seed % 2}, {"draft": "ngram"}, {"draft": "suffix"}][seed % 3]
        async with gate:
            done = await client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": f"number {seed}"}],
                seed=seed,
                max_tokens=400,
                response_format=response_format(COLOURS),
                extra_body={"speculative": drafts},
            )
        made = json.loads(done.choices[0].message.content)
        assert set(made) == {"colour", "sure"}
        assert (made["colour"] in {"red", "green"}, isinstance(made["sure"], bool)) == (True, True)
        return done.metrics["speculative_decoding"]["num_draft_tokens"]

    async def all_of_them():
        async with server.async_client() as client:
            gate = asyncio.Semaphore(24)
            return await asyncio.gather(*(one(client, seed, gate) for seed in range(200)))

    drafted = asyncio.run(all_of_them())
    assert len(drafted) == 200
    assert sum(map(bool, drafted)) > 150


@pytest.mark.parametrize("who", ["caller", "client"])
@pytest.mark.parametrize(
    ("choice", "may"),
    [("required", {"paint", "wait"}), ({"type": "function", "function": {"name": "wait"}}, {"wait"})],
    ids=["required", "named"],
)
def test_calls_that_must_come_whole_and_streamed(request, who, choice, may):
    """Guards both formats: a template that knows tools, and one that is told of them in a system message."""
    client = request.getfixturevalue(who)
    for seed in range(4):
        asked = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, "seed": seed}
        done = ask(client, **asked)
        (made,) = done.choices[0].message.tool_calls
        assert (done.choices[0].finish_reason, done.choices[0].message.content) == ("tool_calls", None)
        assert made.function.name in may
        arguments = json.loads(made.function.arguments)
        assert set(arguments) == ({"hours"} if made.function.name == "wait" else {"colour", "sure"})
        content, calls, reasons, pieces = collected(ask(client, stream=True, **asked))
        assert (content, reasons, list(calls)) == ("", ["tool_calls"], [0])
        assert (calls[0]["name"], json.loads(calls[0]["arguments"])) == (made.function.name, arguments)
        assert re.fullmatch("[a-zA-Z0-9]{9}", calls[0]["id"])
        assert pieces > 2


def test_several_calls_and_the_way_back(caller):
    """Guards parallel calls, tool messages back in the conversation, and the client's own accumulation."""
    biased = {"logit_bias": {"257": -100}}  # the end of text: another call is likelier then
    done = ask(caller, biased, tools=TOOLS, tool_choice="required", seed=3, max_tokens=300)
    message = done.choices[0].message
    assert len(message.tool_calls) > 1
    assert len({call.id for call in message.tool_calls}) == len(message.tool_calls)
    turns = [
        *HI,
        message.to_dict(),
        *({"role": "tool", "tool_call_id": c.id, "content": "done"} for c in message.tool_calls),
    ]
    with caller.chat.completions.stream(
        model="tiny",
        messages=turns,
        tools=TOOLS,
        tool_choice="required",
        seed=1,
        max_tokens=300,
        parallel_tool_calls=False,
    ) as stream:
        final = stream.get_final_completion()
    assert json.loads(final.choices[0].message.tool_calls[0].function.arguments)
    assert final.usage is None or final.usage.prompt_tokens > done.usage.prompt_tokens


def test_tools_that_may_be_called(caller, client):
    """Guards `auto`: free text stays text, with both kinds of templates."""
    for who in (caller, client):
        free = ask(who, tools=TOOLS, seed=2, max_tokens=30)
        assert free.choices[0].message.tool_calls is None
        assert free.choices[0].message.content
        assert free.choices[0].finish_reason in {"stop", "length"}
        none = ask(who, tools=TOOLS, tool_choice="none", seed=2, max_tokens=30)
        assert none.usage.prompt_tokens < free.usage.prompt_tokens


def wrong(tool=None, **function):
    return {"tools": [tool or {"type": "function", "function": {"name": "f", **function}}]}


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": response_format({"type": "nope"})}, "response_format"),
        ({"response_format": response_format({"not": {}})}, "response_format"),
        ({"response_format": response_format(COLOURS, strict="yes")}, "response_format"),
        ({"response_format": response_format(True)}, "response_format"),
        ({"response_format": response_format({"$ref": "#"})}, "response_format"),
        ({"structured_outputs": {"regex": "(a{1000}){1000}"}}, "structured_outputs"),
        ({"response_format": response_format(COLOURS, extra=1)}, "response_format"),
        ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "response_format"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs"),
        ({"structured_outputs": {"grammar": "start: x"}}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"lark": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos"),
        ({"tools": []}, "tools"),
        ({"tools": {}}, "tools"),
        (wrong({"type": "function"}), "tools.0"),
        (wrong({"type": "web_search", "function": {"name": "f"}}), "tools.0"),
        (wrong(name="no spaces please"), "tools.0.function.name"),
        (wrong(parameters=[]), "tools.0.function.parameters"),
        (wrong(parameters={"type": "array"}), "tools.0.function.parameters"),
        (wrong(parameters={"type": "object", "properties": {"x": {"type": "no"}}}), "tools.0.function.parameters"),
        (wrong(strict=1), "tools.0.function.strict"),
        (wrong(more=1), "tools.0.function"),
        ({"tools": TOOLS * 2}, "tools"),
        ({"tools": TOOLS, "tool_choice": "paint"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tools": TOOLS, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"parallel_tool_calls": True}, "parallel_tool_calls"),
        ({"messages": [*HI, {"role": "tool", "tool_call_id": "x", "content": "y"}]}, "messages.1.tool_call_id"),
        ({"messages": [*HI, {"role": "tool", "tool_call_id": [], "content": "y"}]}, "messages.1.tool_call_id"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]}, "messages.0.tool_calls"),
        ({"messages": [CALLED, {"role": "tool", "tool_call_id": "i", "content": None}]}, "messages.1.content"),
    ],
    ids=lambda v: str(v)[:60],
)
def test_what_is_wrong_is_a_400_that_names_the_field(server, asked, param):
    """Guards that no schema, grammar or tool is ignored."""
    status, _, body = server.send("/v1/chat/completions", {"messages": HI} | asked)
    assert (status, body["error"]["param"]) == (400, param), body
    assert "\n" not in body["error"]["message"]


def test_a_template_that_hides_how_it_calls_is_a_400(calling, monkeypatch):
    """Guards against tools that a model would be shown and whose calls nobody would find."""
    monkeypatch.setattr(calling.service._desk._tools, "_format", None)
    with pytest.raises(openai.BadRequestError, match="does not show how"), calling.client() as client:
        ask(client, tools=TOOLS)
