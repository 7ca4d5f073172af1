"""How models write tool calls: read off templates, held to by grammars, found in what is written."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from served import TOOLS

import selfspec
from selfspec.grammar import literal_of
from selfspec.model.chat import ChatTemplate
from selfspec.model.tool_format import GENERIC, ToolFormat, format_of, lark_of
from selfspec.server.calls import Calls, delta_of
from selfspec.types import Prefix

TEMPLATES = Path(__file__).parent.parent / "model" / "templates"


def format_in(name):
    """The format of one of the templates."""

    class Rendering:
        eos_token_ids = (0, 1, 2)

        def __init__(self, source):
            names = {"bos_token": "<s>", "eos_token": "</s>"}
            self.render = ChatTemplate({"default": source}, names).render

        def piece(self, token):
            return ("<|end|>", "<|im_end|>", "</s>")[token]

    return format_of(Rendering((TEMPLATES / f"{name}.jinja").read_text()))


def test_formats_are_read_off_templates():
    """Guards each style of the field: marked objects, bare ones, lists with ids; and those that cannot be read."""
    assert format_in("qwen_2.5") == ToolFormat("", '<call>\n{"name": "', '", "arguments": ', "}\n</call>", "\n", "")
    assert format_in("llama_3.1") == ToolFormat("", '{"name": "', '", "parameters": ', "}", None, "")
    assert format_in("mistral") == ToolFormat("[CALLS] [", '{"name": "', '", "arguments": ', "}", ", ", "]")
    assert format_in("gpt_oss") is None
    assert format_in("smollm2") is None


MARKED = ToolFormat("", '<|im_start|>call {"name": "', '", "arguments": ', "}<|endoftext|>", None, "")
CALL = '{"hours": 5}'


@pytest.mark.parametrize(
    ("form", "answer", "legal", "not_legal"),
    [
        (GENERIC, None, [GENERIC.trigger + "wait", GENERIC.trigger + "paint"], ["It", GENERIC.trigger + "x"]),
        (
            GENERIC,
            "",
            ["It is <tool", "<tool_call> no", "Well. " + GENERIC.trigger + "wait"],
            [GENERIC.trigger + "x"],
        ),
        (GENERIC, '%json {"type": "boolean"}', ["true", GENERIC.trigger + "wait"], ["It", " " + GENERIC.trigger]),
        (format_in("llama_3.1"), "", ["It is {", '{"name": "wait", "parameters": {"hours": 5}}'], ['{"x', "[1"]),
        (
            MARKED,
            "",
            ["It is call", 'So <|im_start|>call {"name": "wait'],
            ['<|im_start|>call {"name": "x', "<|endoftext|>"],
        ),
    ],
    ids=lambda v: str(v)[:20],
)
def test_what_an_answer_with_tools_may_be(engine, form, answer, legal, not_legal):
    """Guards `auto` and what must come: a call that has begun is held to its name and schema, free text is free."""
    called = [(tool["function"]["name"], tool["function"]["parameters"]) for tool in TOOLS]
    lark = lark_of(form, called, partial(literal_of, engine.tokenizer), answer, True)
    ahead = engine.grammar(selfspec.request.Request(grammar=lark)).for_drafts
    for text in (*legal, *not_legal):
        ids = engine.tokenizer.encode(text, add_special_tokens=False)
        assert (ahead.legal(Prefix([1], 1), ids) == len(ids)) == (text in legal), text


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        (GENERIC, "so < it is <tool_call> yes", "so < it is <tool_call> yes", []),
        (
            GENERIC,
            'Well.\n<tool_call>\n{"name": "a", "arguments": {"x": "}\\"{"}}\n</tool_call>',
            "Well.\n",
            [("a", '{"x": "}\\"{"}')],
        ),
        (
            GENERIC,
            '\n<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>\n<tool_call>\n{"name": "b", "arguments": '
            '{"l": [{}]}}\n</tool_call>\n',
            "",
            [("a", "{}"), ("b", '{"l": [{}]}')],
        ),
        (GENERIC, '<tool_call>\n{"name": "a", "arguments": {"x": 1', "", [("a", '{"x": 1')]),
        (GENERIC, '<tool_call>\n{"name": "a", "arguments": {}}\n</tool', "", [("a", "{}")]),
        (
            GENERIC,
            '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>\n<tool_call>\n{"na',
            "",
            [("a", "{}")],
        ),
        (GENERIC, '<tool_call>\n{"name": "a", "arguments": {}} so', "} so", [("a", "{}")]),
        (format_in("llama_3.1"), '{"name": "a", "parameters": {"x": 1}}', "", [("a", '{"x": 1}')]),
        (format_in("llama_3.1"), 'It is {"name": "a"}', 'It is {"name": "a"}', []),
        (format_in("llama_3.1"), ' {"name": "a", "parameters": {}}', ' {"name": "a", "parameters": {}}', []),
        (format_in("llama_3.1"), '{"name": "Ada", "x": 1}', '{"name": "Ada", "x": 1}', []),
        (format_in("llama_3.1"), '{"name": "', '{"name": "', []),
        (format_in("llama_3.1"), '{"nam', '{"nam', []),
        (
            format_in("mistral"),
            '[CALLS] [{"name": "a", "arguments": {}}, {"name": "b", "arguments": {}}]',
            "",
            [("a", "{}"), ("b", "{}")],
        ),
    ],
    ids=lambda v: str(v)[:20],
)
def test_calls_are_found_however_the_text_is_cut(form, text, content, calls, size):
    """Guards what is held back: nothing is lost, nothing is said twice, no half mark becomes text."""
    reader, said = Calls(form, ("a", "b")), []
    for at in range(0, len(text), size):
        said += reader.feed(text[at : at + size])
    said += reader.finish()
    assert "".join(piece.text for piece in said) == content
    made = delta_of(said).get("tool_calls", [])
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in made] == calls
