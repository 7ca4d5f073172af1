"""Requests in OpenAI's words: their fields in ours, for lines of a batch and for the server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from selfspec.errors import OptionError, PromptError
from selfspec.model.reading import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

LENGTHS = ("max_tokens", "max_completion_tokens")


def json_object(raw: bytes, what: str, needs: str) -> dict[str, Any]:
    """The object that ``raw`` spells; a name twice in one object is a mistake.

    Raises PromptError with ``what`` was read and what it ``needs``.
    """
    try:
        found = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise PromptError(f"{what} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise PromptError(f"{what} is {kind_of(found)}; it must be an object with {needs}")
    return found


def kind_of(value: Any) -> str:
    """What a JSON value is, in JSON's words."""
    kinds = {str: "a text", bool: "true or false", list: "a list", dict: "an object", type(None): "null"}
    return kinds.get(type(value), "a number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a name twice")
    return found


def by_token(value: Any) -> Any:
    """A mapping from token ids, which JSON spells as texts, as pairs; anything else as it is."""
    if not isinstance(value, Mapping) or not all(key.isascii() and key.isdigit() for key in value):
        return value
    return [(int(key), entry) for key, entry in value.items()]


def predicted(prediction: Any) -> Any:
    """The text of OpenAI's predicted output; what is no object, as it is. Raises OptionError."""
    if not isinstance(prediction, Mapping):
        return prediction
    content = prediction.get("content")
    if isinstance(content, list) and all(
        isinstance(part, Mapping) and part.get("type") == "text" for part in content
    ):
        content = "".join(str(part.get("text", "")) for part in content)
    if set(prediction) != {"type", "content"} or prediction["type"] != "content" or not isinstance(content, str):
        raise OptionError('prediction must be a text, or {"type": "content", "content": TEXT}')
    return content


def without_only(fields: Mapping[str, Any], possible: Mapping[str, Any]) -> dict[str, Any]:
    """The fields without those that have one ``possible`` value. Raises OptionError for another value."""
    for name, only in possible.items():
        if fields.get(name, only) not in (only, None):
            raise OptionError(f"{name} is {one_line(repr(fields[name]), 60)}; it must be {json.dumps(only)}")
    return {name: value for name, value in fields.items() if name not in possible}


def with_joined_texts(messages: Sequence[Any]) -> list[Any]:
    """Messages with one text in place of a list of text parts, a part a line: many templates take no lists."""
    return [_with_joined_text(message) for message in messages]


def _with_joined_text(message: Any) -> Any:
    parts = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(parts, list) or not parts:
        return message
    named = (part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") == "text")
    texts = [text for text in named if isinstance(text, str)]
    if len(texts) < len(parts):
        return message  # what is wrong with it is said where messages are checked
    return {**message, "content": "\n".join(texts)}


def with_arguments(messages: Sequence[Any]) -> list[Any]:
    """Messages with the arguments of tool calls as objects, as templates take them. Raises PromptError."""
    return [_with_arguments(message) for message in messages]


def _with_arguments(message: Any) -> Any:
    if not isinstance(message, Mapping) or not isinstance(message.get("tool_calls"), list):
        return message
    return {**message, "tool_calls": [_call(call) for call in message["tool_calls"]]}


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(text := function.get("arguments"), str):
        return call
    try:
        return {**call, "function": {**function, "arguments": json.loads(text)}}
    except ValueError as error:
        raise PromptError(f"the arguments of a tool call are no JSON: {error}") from error


def with_structure(fields: Mapping[str, Any]) -> dict[str, Any]:
    """OpenAI's ``response_format`` as the schema that the answer obeys. Raises OptionError."""
    rest = {name: value for name, value in fields.items() if name != "response_format"}
    schema = _schema(fields.get("response_format"))
    return rest if schema is None else {**rest, "json_schema": schema}


def _schema(wanted: Any) -> Any:
    kind = wanted.get("type") if isinstance(wanted, Mapping) else None
    if wanted is None or (kind == "text" and len(wanted) == 1):
        return None
    if kind == "json_object" and len(wanted) == 1:
        return {"type": "object"}
    if kind != "json_schema" or set(wanted) != {"type", "json_schema"}:
        raise OptionError(
            f"response_format is {one_line(repr(wanted), 60)}; it must be "
            '{"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": {...}}'
        )
    named = wanted["json_schema"]
    if not isinstance(named, Mapping) or not isinstance(named.get("name"), str) or "schema" not in named:
        raise OptionError("response_format.json_schema must be an object with a name and a schema")
    if unknown := set(named) - {"name", "description", "schema", "strict"}:
        raise OptionError(f"response_format.json_schema has no {min(unknown)}; leave it out")
    if not isinstance(named.get("strict"), bool | None):
        raise OptionError(
            f"response_format.json_schema.strict is {kind_of(named['strict'])}; it must be true or false"
        )
    if not isinstance(named["schema"], Mapping):
        raise OptionError(
            f"response_format.json_schema.schema is {kind_of(named['schema'])}; it must be an object ({{}} is any)"
        )
    return named["schema"]


def with_length(fields: Mapping[str, Any]) -> dict[str, Any]:
    """OpenAI's two names of the most new tokens, as ours. Raises OptionError where more than one is given."""
    lengths = [fields[name] for name in (*LENGTHS, "max_new_tokens") if fields.get(name) is not None]
    if len(lengths) > 1:
        raise OptionError(f"{', '.join(LENGTHS)} and max_new_tokens are the same; give one")
    rest = {name: value for name, value in fields.items() if name not in (*LENGTHS, "max_new_tokens")}
    return {**rest, "max_new_tokens": lengths[0]} if lengths else rest


def with_logprobs(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What is asked of log probabilities, as ours: ``logprobs`` true with ``top_logprobs``, or a number as it is.

    Raises OptionError for ``top_logprobs`` without ``logprobs``.
    """
    rest = {name: value for name, value in fields.items() if name != "top_logprobs"}
    wanted, top = fields.get("logprobs"), fields.get("top_logprobs")
    if top is not None and wanted is not True:
        raise OptionError(f"top_logprobs is {top!r}, but logprobs is not true; set it, or leave top_logprobs out")
    if isinstance(wanted, bool):
        rest["logprobs"] = (0 if top is None else top) if wanted else None
    return rest
