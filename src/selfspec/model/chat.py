"""Chat templates, rendered the way ``transformers`` renders them: in a sandbox, with the same helpers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from selfspec.errors import PromptError
from selfspec.model.reading import one_line

if TYPE_CHECKING:
    from jinja2.parser import Parser

Message: TypeAlias = Mapping[str, Any]


class ChatTemplate:
    """One chat template.

    ``source`` is in Jinja, ``variables`` are the strings of the special tokens (``bos_token`` and so on).

    It is compiled on first use, so that a model with a broken template still completes plain prompts.
    """

    def __init__(self, source: str, variables: Mapping[str, object]) -> None:
        self.source = source
        self._variables = dict(variables)

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The conversation as the model saw it in training.

        Raises
        ------
        PromptError
            The messages are not a list of roles and contents, or the template refuses or fails on them.
        """
        check_messages(messages)
        variables = {"tools": None, "documents": None, **self._variables}
        try:
            text = (
                _environment()
                .from_string(self.source)
                .render(
                    messages=[dict(message) for message in messages],
                    add_generation_prompt=add_generation_prompt,
                    **variables,
                )
            )
        except Exception as error:  # a template is a program of the checkpoint: anything can come out of it
            raise PromptError(
                f"the chat template of this model fails on these messages: {one_line(error)}; change the "
                "messages, or pass a plain prompt"
            ) from error
        if not text.strip():
            raise PromptError("the chat template of this model makes an empty prompt of these messages")
        return text


def check_messages(messages: Sequence[Message]) -> None:
    """Refuse what is not a non-empty list of mappings with the strings ``role`` and ``content``.

    Raises
    ------
    PromptError
        Says which message is wrong. Which roles exist is left to the template.
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
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise PromptError(
                    f"message {number} has {key} {one_line(repr(message.get(key)), 60)}; it must be a string"
                )


class _Generation(Extension):
    """``{% generation %}``: marks what the assistant said, for training; here it is only a scope."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 defines it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes HTML, which models have not seen
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
