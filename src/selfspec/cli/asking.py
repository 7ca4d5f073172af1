"""The lines of a batch: what each one asks for, in our form or in that of OpenAI's batch files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from selfspec.errors import OptionError, PromptError, SelfspecError
from selfspec.wire import (
    by_token,
    json_object,
    predicted,
    with_arguments,
    with_length,
    with_logprobs,
    with_structure,
    without_only,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_IDS = ("id", "custom_id")
_ENVELOPE = {"custom_id", "method", "url", "body"}
_URLS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}
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
            fields = json_object(line, f"line {number}", "a prompt")
            name = _id(fields, number)
            yield Asked(number, name, _request(fields, models))
        except SelfspecError as error:
            yield Asked(number, name, error)


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
        name: by_token(value) if name in _BY_TOKEN else value for name, value in found.items() if value is not None
    }


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
    body = without_only(body, _ONLY)
    if "prediction" in body:
        body["prediction"] = predicted(body["prediction"])
    if isinstance(body.get("messages"), list):
        body["messages"] = with_arguments(body["messages"])
    return with_logprobs(with_length(with_structure(body)))
