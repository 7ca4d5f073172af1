"""The lines of a batch: what each one asks for, in our form or in that of OpenAI's batch files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from selfspec.errors import OptionError, PromptError, SelfspecError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_IDS = ("id", "custom_id")
_ENVELOPE = {"custom_id", "method", "url", "body"}
_URLS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}
_LENGTHS = ("max_tokens", "max_completion_tokens")
_ONLY = {
    "n": 1,
    "stream": False,
    "tool_choice": "auto",
}  # fields of OpenAI's with the one value that is possible here
_BY_TOKEN = ("logit_bias", "forced_tokens")


@dataclass(frozen=True)
class Asked:
    """One line: its number from 1, its id (by default that number), and its request or what is wrong with it."""

    number: int
    id: Any
    request: dict[str, Any] | SelfspecError


def asked(raw: bytes, models: Collection[str]) -> Iterator[Asked]:
    """The lines of a JSON Lines file, blank ones left out; ``models`` are the names of the model that runs."""
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        name: Any = number
        try:
            fields = _object(line, number)
            name = _id(fields, number)
            yield Asked(number, name, _request(fields, models))
        except SelfspecError as error:
            yield Asked(number, name, error)


def _object(line: bytes, number: int) -> dict[str, Any]:
    try:
        found = json.loads(line.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise PromptError(f"line {number} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise PromptError(f"line {number} is a JSON {type(found).__name__}; it must be an object with a prompt")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a name twice")
    return found


def _id(fields: Mapping[str, Any], number: int) -> Any:
    """The name of a line; given twice, or not a text or an integer, it is a mistake."""
    found = [fields[name] for name in _IDS if fields.get(name) is not None]
    if len(found) > 1:
        raise OptionError("id and custom_id are the same; give one")
    if found and (isinstance(found[0], bool) or not isinstance(found[0], str | int)):
        raise OptionError(f"id is {found[0]!r}; it must be a text or an integer")
    return found[0] if found else number


def _request(fields: Mapping[str, Any], models: Collection[str]) -> dict[str, Any]:
    """The prompt or messages of a line and its options, for `Engine.batch`; null is the same as nothing."""
    if "body" in fields:
        found = _from_openai(fields, models)
    else:
        found = {name: value for name, value in fields.items() if name not in _IDS}
    return {
        name: _by_token(value) if name in _BY_TOKEN else value for name, value in found.items() if value is not None
    }


def _by_token(value: Any) -> Any:
    """A mapping from token ids, which JSON spells as texts, as pairs."""
    if not isinstance(value, Mapping) or not all(key.isascii() and key.isdigit() for key in value):
        return value
    return [(int(key), entry) for key, entry in value.items()]


def _from_openai(fields: Mapping[str, Any], models: Collection[str]) -> dict[str, Any]:
    """A line of an OpenAI batch file: what is in its body, in our names."""
    if unknown := sorted(set(fields) - _ENVELOPE):
        raise OptionError(f"a line with a body has no {', '.join(unknown)}; it has {', '.join(sorted(_ENVELOPE))}")
    if not isinstance(fields["body"], Mapping):
        raise OptionError(f"body is {fields['body']!r}; it must be an object")
    body = dict(fields["body"])
    if fields.get("method", "POST") != "POST":
        raise OptionError(f"method is {fields['method']!r}; it must be POST")
    if (url := fields.get("url")) is not None:
        if not isinstance(url, str) or url not in _URLS:
            raise OptionError(f"url is {url!r}; it must be one of {', '.join(_URLS)}")
        if _URLS[url] not in body:
            raise PromptError(f"the body of a line for {url} must have {_URLS[url]}")
    if "prompt" in body:
        body.setdefault("chat", False)  # a completion continues the text itself
    if (model := body.pop("model", None)) is not None and model not in models:
        raise OptionError(f"model is {model!r}, but this run has {min(models)}; leave it out, or run that one")
    if isinstance(body.get("prediction"), Mapping):
        body["prediction"] = _predicted(body["prediction"])
    for name, only in _ONLY.items():
        if body.pop(name, only) not in (only, None):
            raise OptionError(f"{name} is {fields['body'][name]!r}; it must be {json.dumps(only)}")
    if isinstance(body.get("messages"), list):
        body["messages"] = [_with_arguments(message) for message in body["messages"]]
    return _with_length(body)


def _predicted(prediction: Mapping[str, Any]) -> str:
    """The text of OpenAI's predicted output."""
    content = prediction.get("content")
    if isinstance(content, list) and all(
        isinstance(part, Mapping) and part.get("type") == "text" for part in content
    ):
        content = "".join(str(part.get("text", "")) for part in content)
    if set(prediction) != {"type", "content"} or prediction["type"] != "content" or not isinstance(content, str):
        raise OptionError('prediction must be a text, or {"type": "content", "content": TEXT}')
    return content


def _with_arguments(message: Any) -> Any:
    """A message with the arguments of its tool calls as objects, as templates take them, not as JSON texts."""
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


def _with_length(body: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's two names of the most new tokens, as ours."""
    given = {name: body.pop(name) for name in _LENGTHS if name in body}
    lengths = [value for value in (*given.values(), body.get("max_new_tokens")) if value is not None]
    if len(lengths) > 1:
        raise OptionError(f"{', '.join(_LENGTHS)} and max_new_tokens are the same; give one")
    return {**body, "max_new_tokens": lengths[0]} if lengths else body
