"""Tools of a request: what they must be, what becomes of them in the prompt, and what the answer may be then."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from selfspec.errors import PromptError
from selfspec.grammar import literal_of, schema_options
from selfspec.model.reading import one_line
from selfspec.model.tool_format import GENERIC, ToolFormat, as_told, format_of, lark_of
from selfspec.request import Request
from selfspec.server.failures import FieldError, naming

if TYPE_CHECKING:
    from selfspec.engine import Engine

MOST_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_PARTS = {"name", "description", "parameters", "strict"}
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class ToolUse:
    """The tools that an answer may call, or must: ``names`` of those, ``tools`` are all as they were given."""

    tools: Sequence[Mapping[str, Any]]
    names: tuple[str, ...]
    must_call: bool
    is_parallel: bool


def tool_use(tools: list[Any] | None, choice: Any, is_parallel: bool | None) -> ToolUse | None:
    """What is asked of tools; None where nothing is called. Raises FieldError."""
    if not tools:
        if tools is not None:
            raise FieldError("tools is empty; give some, or leave it out", "tools")
        if choice not in (None, "none", "auto"):
            raise FieldError(f"tool_choice is {one_line(repr(choice), 60)}, but there are no tools", "tool_choice")
        if is_parallel is not None:
            raise FieldError("parallel_tool_calls is given, but there are no tools", "parallel_tool_calls")
        return None
    if len(tools) > MOST_TOOLS:
        raise FieldError(f"tools has {len(tools)} of them; it may have {MOST_TOOLS}", "tools")
    names = tuple(_checked(f"tools.{number}", tool) for number, tool in enumerate(tools))
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise FieldError(f"tools has {twice!r} twice; give it once", "tools")
    if choice == "none":
        return None
    chosen = names if choice in (None, "auto", "required") else (_named(choice, names),)
    return ToolUse(tools, chosen, choice not in (None, "auto"), is_parallel is not False)


def _named(choice: Any, names: Sequence[str]) -> str:
    for name in names:
        if choice == {"type": "function", "function": {"name": name}}:
            return name
    raise FieldError(
        f"tool_choice is {one_line(repr(choice), 80)}; it must be auto, none, required, or "
        f'{{"type": "function", "function": {{"name": NAME}}}} with one of {one_line(", ".join(names), 100)}',
        "tool_choice",
    )


def _checked(where: str, tool: Any) -> str:
    """The name of a tool that is what it must be."""
    is_tool = isinstance(tool, Mapping) and set(tool) == {"type", "function"} and tool["type"] == "function"
    function = tool["function"] if is_tool else None
    if not isinstance(function, Mapping):
        raise FieldError(
            f'{where} is {one_line(repr(tool), 60)}; it must be {{"type": "function", "function": {{...}}}}', where
        )
    if unknown := sorted(set(function) - _PARTS):
        raise FieldError(f"{where}.function has no {one_line(unknown[0], 40)}; leave it out", f"{where}.function")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise FieldError(
            f"{where}.function.name is {one_line(repr(name), 60)}; it must be 1 to 64 letters, digits, _ or -",
            f"{where}.function.name",
        )
    for part, kind in (("description", str), ("parameters", Mapping), ("strict", bool)):
        if not isinstance(function.get(part), kind | None):
            wanted = {"description": "a text", "parameters": "a JSON schema", "strict": "true or false"}[part]
            raise FieldError(
                f"{where}.function.{part} is {one_line(repr(function[part]), 60)}; it must be {wanted}",
                f"{where}.function.{part}",
            )
    return name


def check_calls(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise FieldError for calls of earlier answers that are none, and for results of calls that there are not."""
    known: set[str] = set()
    for number, message in enumerate(messages):
        where = f"messages.{number}"
        calls = message.get("tool_calls")
        if calls is not None:
            if not isinstance(calls, list) or not all(map(_is_call, calls)):
                raise FieldError(
                    f"{where}.tool_calls must be a list of "
                    '{"id": ..., "type": "function", "function": {"name": ..., "arguments": JSON}}',
                    f"{where}.tool_calls",
                )
            known |= {call["id"] for call in calls}
        if message.get("role") == "tool":
            _require_result(where, message, known)


def _require_result(where: str, message: Mapping[str, Any], known: set[str]) -> None:
    """Raise FieldError for the result of a call that there is not, or a result that is none."""
    given = {name: one_line(repr(message.get(name)), 40) for name in ("tool_call_id", "content")}
    if not isinstance(name := message.get("tool_call_id"), str) or name not in known:
        wrong, wanted = "tool_call_id", "the id of a call in an earlier message"
    elif not isinstance(message.get("content"), str | list):
        wrong, wanted = "content", "a text, or a list of text parts"
    else:
        return
    raise FieldError(f"{where}.{wrong} is {given[wrong]}; it must be {wanted}", f"{where}.{wrong}")


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, Mapping) else None
    return (
        isinstance(function, Mapping)
        and call.get("type") == "function"
        and isinstance(call.get("id"), str)
        and isinstance(function.get("name"), str)
        and isinstance(function.get("arguments"), str)
    )


class ToolDesk:
    """How the model of an engine is told of tools, and calls them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._format: ToolFormat | Literal["unknown"] | None = "unknown"

    @property
    def is_native(self) -> bool:
        """Whether the chat template knows tools; else a system message tells of them."""
        assert self._engine.tokenizer is not None
        return self._engine.tokenizer.takes_tools

    @property
    def format(self) -> ToolFormat | None:
        """How calls are written; None where a template that knows tools does not show it."""
        if self._format == "unknown":
            assert self._engine.tokenizer is not None
            self._format = format_of(self._engine.tokenizer) if self.is_native else GENERIC
        return self._format

    def options(self, use: ToolUse | None, messages: list[Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """What `Engine.prepare` takes of messages and ``options``, so that the answer may call.

        Raises FieldError for schemas that cannot be followed, and where this model cannot call.
        """
        if use is None:
            return {**options, "messages": _with_names(messages) if self.is_native else as_told(messages, [])}
        form, engine = self.format, self._engine
        if form is None:
            raise FieldError(
                "tools are given, but the chat template of this model does not show how it writes a call; leave "
                "tools out, or ask for JSON with response_format",
                "tools",
            )
        if other := {"regex", "grammar"} & set(options):
            raise FieldError(f"structured_outputs.{min(other)} cannot stand beside tools", "structured_outputs")
        tokenizer = engine.tokenizer
        assert tokenizer is not None
        kept = dict(options)
        answer = self._answer(use, kept.pop("json_schema", None))
        schemas = {
            tool["function"]["name"]: self._schema(number, tool["function"])
            for number, tool in enumerate(use.tools)
        }
        called = [(name, schemas[name]) for name in use.names]
        kept["grammar"] = lark_of(form, called, partial(literal_of, tokenizer), answer, use.is_parallel)
        with naming("tools"):
            engine.grammar(Request(grammar=kept["grammar"]))
        if self.is_native:
            return {**kept, "messages": _with_names(messages), "tools": use.tools}
        return {**kept, "messages": as_told(messages, use.tools)}

    def _answer(self, use: ToolUse, schema: Any) -> str | None:
        """What an answer without calls may be, as `lark_of` takes it."""
        if use.must_call:
            return None
        if schema is None:
            return ""
        self._engine.grammar(Request(json_schema=schema))  # names what is wrong with it
        made = json.loads(schema) if isinstance(schema, str) else schema
        return (
            f"%json {json.dumps({**made, 'x-guidance': schema_options()} if isinstance(made, Mapping) else made)}"
        )

    def _schema(self, number: int, function: Mapping[str, Any]) -> dict[str, Any]:
        schema = {**(function.get("parameters") or _NO_ARGUMENTS)}
        where = f"tools.{number}.function.parameters"
        with naming(where):
            if schema.get("type", "object") != "object":
                raise PromptError(f"{where}.type is {one_line(repr(schema['type']), 40)}; it must be object")
            schema = {**schema, "type": "object", "x-guidance": schema_options()}
            self._engine.grammar(Request(json_schema=schema))
        return schema


def _with_names(messages: Sequence[Any]) -> list[Any]:
    """Results of calls with the names of what was called, which some templates ask for."""
    names = {
        call["id"]: call["function"]["name"] for message in messages for call in message.get("tool_calls") or ()
    }
    return [
        {"name": names[message["tool_call_id"]], **message} if message.get("role") == "tool" else message
        for message in messages
    ]
