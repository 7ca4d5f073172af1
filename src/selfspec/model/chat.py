"""Chat templates, rendered the way ``transformers`` renders them: in a sandbox, with the same helpers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from selfspec.errors import OptionError, PromptError
from selfspec.model.messages import Message, check_messages, plain_messages
from selfspec.model.reading import listed, one_line
from selfspec.model.tools import schemas_of

if TYPE_CHECKING:
    from jinja2.parser import Parser
    from jinja2.runtime import Context

Tool: TypeAlias = "Mapping[str, Any] | Callable[..., Any]"

_OURS = ("messages", "tools", "documents", "add_generation_prompt")
_ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
_MOST = 10**6  # characters or entries that a template may make by a product
_END = "HERE_THE_MESSAGE_GOES_ON "  # the space shows whether the template strips what it is given


@dataclass(frozen=True)
class TemplateInputs:
    """What a chat template may be given beside the messages, in the words of transformers' ``apply_chat_template``.

    ``tools`` are JSON schemas, or functions with type hints and a docstring; ``documents`` mappings;
    ``chat_template`` names one of the model's templates, or is one; ``chat_options`` are variables
    that the template reads (``enable_thinking``). With ``continue_final_message`` the prompt ends in the last
    message, which the answer goes on with.
    """

    tools: Sequence[Tool] | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    chat_template: str | None = None
    chat_options: Mapping[str, Any] = field(default_factory=dict)
    continue_final_message: bool = False


@dataclass(frozen=True)
class _Compiled:
    template: Template
    reads: frozenset[str]  # the variables


class ChatTemplate:
    """The chat templates of a model by name; ``variables`` are the strings of its special tokens.

    They are compiled on first use, so that a model with a broken template still completes plain prompts.
    """

    def __init__(self, sources: Mapping[str, str], variables: Mapping[str, object]) -> None:
        self.sources = dict(sources)
        self._variables = dict(variables)
        self._compiled: dict[str, _Compiled] = {}

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        inputs: TemplateInputs = TemplateInputs(),
    ) -> str:
        """The conversation as the model saw it in training.

        Raises
        ------
        PromptError
            The messages are not what messages must be, or the template refuses, fails on, or does not take them.
        OptionError
            A tool is no schema, or the template does not read an option.
        """
        check_messages(messages)
        if add_generation_prompt and inputs.continue_final_message:
            raise OptionError("continue_final_message goes on with the last message: add no generation prompt")
        source = self._source(inputs)
        _check_roles(source, messages)
        chat = plain_messages(messages)
        if inputs.continue_final_message:
            _mark_end(chat[-1])
        text = self._filled(source, chat, add_generation_prompt, inputs)
        if inputs.continue_final_message:
            text = _cut(text)
        if not text.strip():
            raise PromptError("the chat template of this model makes an empty prompt of these messages")
        return text

    @property
    def takes_tools(self) -> bool:
        """Whether the template that counts reads tools. Raises PromptError where it is broken."""
        if "tool_use" in self.sources:
            return True
        try:
            return "tools" in self._compile(self._source(TemplateInputs())).reads
        except TemplateError as error:
            raise PromptError(f"the chat template of this model is broken: {one_line(error)}") from error

    def _source(self, inputs: TemplateInputs) -> str:
        """The template that counts."""
        sources, asked = self.sources, inputs.chat_template
        if asked is not None:
            if asked not in sources and "{%" not in asked and "{{" not in asked:
                raise OptionError(
                    f"chat_template is {one_line(repr(asked), 60)}; this model has {listed(sources)}: give one of "
                    "these names, or a template"
                )
            return sources.get(asked, asked)
        if inputs.tools is not None and "tool_use" in sources:
            return sources["tool_use"]
        if "default" not in sources and len(sources) > 1:
            raise OptionError(
                f"this model has the chat templates {listed(sources)} and none is the default; name one as "
                "chat_template"
            )
        return sources.get("default") or next(iter(sources.values()))

    def _filled(self, source: str, chat: list[Any], prompt: bool, inputs: TemplateInputs) -> str:
        try:
            compiled = self._compile(source)
            extra = _checked(inputs, compiled.reads)
            values = {**self._variables, **extra, "messages": chat, "add_generation_prompt": prompt}
            text = compiled.template.render(values)
        except (OptionError, PromptError):
            raise
        except Exception as error:  # a template is a program of the checkpoint: anything can come out of it
            raise PromptError(
                f"the chat template of this model fails on these messages: {one_line(error)}; change the "
                "messages, or pass a plain prompt"
            ) from error
        for number, message in enumerate(chat):
            content = message.get("content")
            if isinstance(content, list | dict) and content and str(content) in text:
                raise PromptError(
                    f"message {number} has its content in parts, and the chat template of this model takes texts "
                    "only; give the content as one text"
                )
        return text

    def _compile(self, source: str) -> _Compiled:
        if source not in self._compiled:
            environment = _environment()
            # not those that it sets itself, such as the variable of a loop
            reads = frozenset(find_undeclared_variables(environment.parse(source))) - set(environment.globals)
            self._compiled[source] = _Compiled(environment.from_string(source), reads)
        return self._compiled[source]


def _check_roles(source: str, messages: Sequence[Message]) -> None:
    """Many templates write any role as it is: one that nobody knows is a slip, and no such turn was in training."""
    for number, message in enumerate(messages):
        role = message["role"]
        if role not in _ROLES and (role.split() or [""])[0] not in re.findall(r"\w+", source):
            raise PromptError(
                f"message {number} has role {one_line(repr(role), 60)}, which the chat template of this model does "
                f"not name; the usual ones are {', '.join(_ROLES)}"
            )


def _checked(inputs: TemplateInputs, reads: frozenset[str]) -> dict[str, Any]:
    """What the template is given beside messages; what it would leave out is an error, not silence."""
    given: dict[str, Any] = {"tools": None, "documents": None}
    if inputs.tools is not None:
        given["tools"] = schemas_of(inputs.tools)
    if inputs.documents is not None:
        given["documents"] = _documents(inputs.documents)
    for name, value in given.items():
        if value is not None and name not in reads:
            raise PromptError(f"the chat template of this model takes no {name}; leave {name} out")
    for name, value in inputs.chat_options.items():
        if name in _OURS or name not in reads:
            free = sorted(reads - {*_OURS})
            raise OptionError(
                f"chat_options has {name!r}, which the chat template of this model does not read; it reads "
                f"{listed(free, 12) or 'none'}"
            )
        given[name] = value
    return given


def _documents(documents: Any) -> list[dict[str, Any]]:
    is_list = isinstance(documents, Sequence) and not isinstance(documents, str | bytes)
    if not is_list or not all(isinstance(document, Mapping) for document in documents):
        raise OptionError(
            f"documents are {one_line(repr(documents), 60)}; they must be a list of objects, such as "
            '{"title": ..., "text": ...}'
        )
    return [dict(document) for document in documents]


def _mark_end(message: dict[str, Any]) -> None:
    """Put the mark behind the text that the answer goes on with."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + _END
        return
    parts = [part for part in content or () if isinstance(part, dict) and "text" in part]
    if not parts:
        raise PromptError("the last message has no text, so continue_final_message has nothing to go on with")
    parts[-1]["text"] += _END


def _cut(text: str) -> str:
    end = text.rfind(_END.strip())
    if end < 0:
        raise PromptError(
            "the chat template of this model leaves out the last message, so continue_final_message cannot go on "
            "with it"
        )
    return text[:end] if text.startswith(_END, end) else text[:end].rstrip()


class _Generation(Extension):
    """``{% generation %}``: marks what the assistant said, for training; here it is only a scope."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 defines it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's, which gives a template no way out of it; and products that fill no memory."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """A product or power of any size that a prompt could need."""
        sized = [value for value in (left, right) if hasattr(value, "__len__")]
        times = [value for value in (left, right) if isinstance(value, int)]
        if sized and times and len(sized[0]) * times[0] > _MOST:
            raise SecurityError(f"a product of {len(sized[0])} and {times[0]} is too long")
        if operator == "**" and any(abs(value) > 64 for value in times):
            raise SecurityError("a power is too large")
        return super().call_binop(context, operator, left, right)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
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
