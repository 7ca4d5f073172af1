"""Messages of a conversation: what they must be, and as templates read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, TypeAlias

from selfspec.errors import PromptError
from selfspec.model.reading import one_line

Message: TypeAlias = Mapping[str, Any]

_REASONING = ("reasoning_content", "thinking", "reasoning")
_RESULTS = ("tool", "ipython", "function")  # roles whose content may be the result itself


def check_messages(messages: Sequence[Message]) -> None:
    """Refuse what is not a non-empty list of messages: mappings with a ``role`` and a ``content``.

    The content is a text, or a list of parts ``{"type": "text", "text": ...}``. A message with ``tool_calls`` or
    with reasoning may go without, and that of a tool may be any JSON value.

    Raises
    ------
    PromptError
        Says which message is wrong. Which roles exist depends on the template (`selfspec.model.chat`).
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise PromptError(
            f"messages are {one_line(repr(messages), 60)}; they must be a non-empty list of "
            '{"role": ..., "content": ...}'
        )
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise PromptError(
                f"message {number} is {one_line(repr(message), 60)}; it must have a role and a content"
            )
        if not isinstance(message.get("role"), str):
            raise PromptError(
                f"message {number} has role {one_line(repr(message.get('role')), 60)}; it must be a string"
            )
        _check_content(f"message {number}", message)


def _check_content(where: str, message: Message) -> None:
    content = message.get("content")
    if isinstance(content, str):
        return
    says_more = any(message.get(key) for key in ("tool_calls", *_REASONING))
    if content is None and says_more:
        return
    if message["role"] in _RESULTS and isinstance(content, Mapping | list | int | float):
        return
    if not isinstance(content, list | tuple):
        raise PromptError(
            f"{where} has content {one_line(repr(content), 60)}; it must be a string or a list of text parts"
        )
    for part in content:
        kind = part.get("type", "text") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise PromptError(
                f"{where} has the content part {one_line(repr(part), 60)}; this model reads texts only: "
                '{"type": "text", "text": ...}'
            )


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """A copy in plain dicts and lists, as transformers hands it to a template.

    Keys without a value are left out, and reasoning has the names that templates look for.
    """
    found = []
    for number, message in enumerate(messages):
        plain = {
            str(key): _plain(value, f"message {number}, {key}")
            for key, value in message.items()
            if value is not None
        }
        reasoning = next((plain[key] for key in _REASONING if key in plain), None)
        if reasoning is not None:
            plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
        found.append(plain)
    return found


def _plain(value: Any, where: str) -> Any:
    """Dicts, lists and scalars; a template must not get hold of an object with methods."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item, where) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, where) for item in value]
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):  # an enumeration, say
        return str.__str__(value)
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value), where)
    if callable(dump := getattr(value, "model_dump", None)):  # pydantic, so the objects of OpenAI's client
        return _plain(dump(), where)
    raise PromptError(
        f"{where} holds a {type(value).__name__}; messages are made of texts, numbers, lists and dicts"
    )
