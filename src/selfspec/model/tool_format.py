"""How a model writes tool calls: read off its chat template, and what must be written so."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from selfspec.errors import SelfspecError
from selfspec.model.chat import TemplateInputs
from selfspec.prefixes import shared_length

if TYPE_CHECKING:
    from selfspec.model.tokenizer import Tokenizer

_NAMES = ("firstcalledtool", "secondcalledtool")
_IDS = ("abcdefgh1", "abcdefgh2")  # some templates take nine characters only
_VALUES = ("firstgivenvalue", "secondgivenvalue")
_KEY = "givenkey"
_ARGUMENTS = re.compile(r"\{\s*\"" + _KEY + r"\"\s*:\s*\"(?:" + "|".join(_VALUES) + r")\"\s*\}")
_ID = re.compile(r",?\s*\"id\"\s*:\s*\"(?:" + "|".join(_IDS) + r")\"")
_REASONING_ENDS = "</think>"
_MARKS = ("<", "[", "{")  # a call that begins with a word would be seen in texts that have the word


@dataclass(frozen=True)
class ToolFormat:
    """The texts around the names and arguments of calls; arguments are JSON.

    An answer is ``begin CALL (between CALL)* end``, and a CALL ``head NAME middle ARGUMENTS tail``; ``between`` is
    None where an answer has one call.
    """

    begin: str
    head: str
    middle: str
    tail: str
    between: str | None
    end: str

    @property
    def trigger(self) -> str:
        """What stands before the first name."""
        return self.begin + self.head

    @property
    def is_bare(self) -> bool:
        """Whether a call begins as any JSON does, so that only the beginning of an answer can tell."""
        return self.trigger.lstrip()[:1] in {"{", "["}


GENERIC = ToolFormat("", '<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", "\n", "")
"""For models whose templates take no tools: `told` says so in a system message."""


def format_of(tokenizer: Tokenizer) -> ToolFormat | None:
    """The format in which a chat template that takes tools writes the calls of earlier answers.

    It renders an answer with one call, and one with two, and looks at what stands around their names and arguments.
    None where that is not JSON after a name, has no mark at its beginning, or is not to be seen.
    """
    try:
        one = _rendered(tokenizer, 1)
    except SelfspecError:
        return None
    try:
        two = _rendered(tokenizer, 2)
    except SelfspecError:  # some templates take one call only
        two = None
    parts = None if one is None else _split(one, 1)
    if parts is None:
        return None
    first, middle, last = parts
    pair = None if two is None else _split(two, 2)
    if pair is None:
        return ToolFormat("", first, middle, last, None, "")
    inner = pair[1]
    begins = len(first) - shared_length(first[::-1], inner[::-1])
    head = first[begins:]
    rest = inner.removesuffix(head)
    ends = shared_length(last, rest)
    return ToolFormat(first[:begins], head, middle, last[:ends], rest[ends:], last[ends:])


def _rendered(tokenizer: Tokenizer, calls: int) -> str | None:
    """What the template makes of an answer with so many calls; None where nothing of them is there."""
    tools = [_tool(name) for name in _NAMES]
    asked: dict[str, Any] = {"role": "user", "content": "question"}
    named = zip(_NAMES[:calls], _IDS, _VALUES, strict=False)
    made = [
        {"id": i, "type": "function", "function": {"name": name, "arguments": {_KEY: value}}}
        for name, i, value in named
    ]
    answer = {"role": "assistant", "content": "", "tool_calls": made}
    inputs = TemplateInputs(tools=tools)
    prompt = tokenizer.render([asked], True, inputs)
    whole = tokenizer.render([asked, answer], False, inputs)
    text = whole[shared_length(prompt, whole) :]
    cuts = [at for token in tokenizer.eos_token_ids if (at := text.find(tokenizer.piece(token) or "\0")) >= 0]
    text = text[: min(cuts, default=len(text))]
    return _ID.sub("", text) if all(name in text for name in _NAMES[:calls]) else None


def _tool(name: str) -> dict[str, Any]:
    properties = {_KEY: {"type": "string", "description": "a text"}}
    parameters = {"type": "object", "properties": properties, "required": [_KEY]}
    return {"type": "function", "function": {"name": name, "description": "a tool", "parameters": parameters}}


def _split(text: str, calls: int) -> tuple[str, str, str] | None:
    """What stands before, within and after a single call; of two, between them in place of within."""
    found = list(_ARGUMENTS.finditer(text))
    places = [text.find(name) for name in _NAMES[:calls]]
    if len(found) != calls or any(at >= match.start() for at, match in zip(places, found, strict=True)):
        return None
    if any(hidden in text for hidden in _IDS):
        return None
    first = text[: places[0]].rpartition(_REASONING_ENDS)[2].lstrip()
    middle = text[places[0] + len(_NAMES[0]) : found[0].start()]
    if not first.startswith(_MARKS) or not middle:
        return None
    if calls == 2:
        middle = text[found[0].end() : places[1]]
    return first, middle, text[found[-1].end() :].rstrip()


def told(tools: Sequence[Mapping[str, Any]]) -> str:
    """What a system message says of tools in the format `GENERIC`."""
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return (
        f"You may call these functions to help with the question:\n<tools>\n{listed}\n</tools>\n"
        "To call one, write its name and its arguments as JSON between tags:\n"
        f"{GENERIC.head}NAME{GENERIC.middle}{{...}}{GENERIC.tail}\n"
        "What it returned comes back between <tool_response> tags."
    )


def as_told(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages for a template that knows no tools: calls and results as texts, the tools in the system message."""
    found = [_plain(message) for message in messages]
    if not tools:
        return found
    if found and found[0].get("role") == "system" and isinstance(found[0].get("content"), str):
        return [{**found[0], "content": f"{found[0]['content']}\n\n{told(tools)}"}, *found[1:]]
    return [{"role": "system", "content": told(tools)}, *found]


def _plain(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if message.get("role") == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message.get('content')}\n</tool_response>"}
    if not message.get("tool_calls"):
        return message
    functions = (call["function"] for call in message["tool_calls"])
    calls = [
        GENERIC.head + made["name"] + GENERIC.middle + json.dumps(made["arguments"]) + GENERIC.tail
        for made in functions
    ]
    return {"role": message.get("role"), "content": "\n".join(filter(None, (message.get("content"), *calls)))}


# -- as a grammar -----------------------------------------------------------------------------------------


def lark_of(
    form: ToolFormat,
    tools: Sequence[tuple[str, Mapping[str, Any]]],
    literal: Callable[[str], str],
    answer: str | None,
    is_parallel: bool,
) -> str:
    """The grammar, in Lark's notation, of answers that call ``tools``, (name, schema of the arguments).

    ``answer`` is what an answer without calls may be: None that there is none such, "" any text, else a rule of
    Lark's. ``literal`` spells a text, special tokens included.
    """
    rules = ["%llguidance {}", r"TEXT: /(.|\n)*/", r"BARE: /([^{\[](.|\n)*)?/"]
    more = ""
    if is_parallel and form.between is not None:
        more = f"({literal(form.between + form.head)} call)*"
    rules += [f"rest: call {more} {literal(form.end)}", f"calls: {literal(form.trigger)} rest"]
    rules += [f"call: {' | '.join(f'call_{i}' for i in range(len(tools)))}"]
    for i, (name, schema) in enumerate(tools):
        spelled = json.dumps(schema)
        rules.append(f"call_{i}: {literal(name + form.middle)} %json {spelled} {literal(form.tail)}")
    if answer is None:
        rules.append("start: calls")
    elif answer:
        rules += [f"answer: {answer}", "start: answer | calls"]
    elif form.is_bare:
        rules.append("start: BARE | calls")
    elif (quoted := literal(form.trigger)).startswith('"'):
        text, _, after = quoted.partition(" <[")
        rules += [f"led[lazy]: TEXT {text}", f"start: TEXT | led {after and '<[' + after} rest"]
    else:
        rules.append(f"start: TEXT | TEXT {quoted} rest")
    return "\n".join(rules) + "\n"
