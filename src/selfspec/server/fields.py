"""The fields of a request: those there are, what they must be, and what becomes of them in our words."""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from selfspec.errors import OptionError
from selfspec.model.reading import one_line
from selfspec.modes import refuse_unverifiable
from selfspec.server.failures import FieldError, naming
from selfspec.server.tools import ToolUse, check_calls, tool_use
from selfspec.wire import (
    by_token,
    json_object,
    predicted,
    with_arguments,
    with_joined_texts,
    with_length,
    with_logprobs,
    with_structure,
    without_only,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_STRUCTURES = {"json": "json_schema", "regex": "regex", "choice": "regex", "grammar": "grammar"}  # in our words
_WORDS = {  # pydantic's -> JSON's
    "dictionary": "an object", "list": "a list", "string": "a text", "integer": "an integer", "number": "a number",
    "boolean": "true or false",
}  # fmt: skip
MOST_LOGPROBS = 20  # OpenAI's limit, and vLLM's
MOST_STOPS = 16  # each is looked for after every token
Asked = TypeVar("Asked", bound="TextFields")


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


class StreamOptions(_Fields):
    """OpenAI's ``stream_options``, vLLM's usage in every chunk, and who wrote the tokens (``selfspec``)."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_drafts: bool = False


class TextFields(_Fields):
    """What both endpoints take. Values are checked where the engine checks them; here are their types."""

    ONLY: ClassVar[dict[str, Any]] = {"store": False}  # fields with the one value that is possible here
    # ours by other names, or for the server itself
    OWN: ClassVar[frozenset[str]] = frozenset(
        {
            *("model", "stream", "stream_options", "n", "user", "deadline", "speculative", "messages", "prompt"),
            *("echo", "tools", "tool_choice", "parallel_tool_calls"),
        }
    )

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(default=1, ge=1)
    user: str | None = None
    deadline: float | None = Field(default=None, gt=0)
    seed: int | None = None
    stop: Any = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool | None = None
    coupled: bool | None = None
    prediction: Any = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    speculative: dict[str, Any] | None = None

    def check(self) -> None:
        """Raise FieldError for fields that contradict each other."""
        if self.stream_options is not None and not self.stream:
            raise FieldError("stream_options needs stream: true; leave it out, or stream", "stream_options")
        options = self.stream_options
        if options is not None and options.continuous_usage_stats and not options.include_usage:
            raise FieldError(
                "stream_options.continuous_usage_stats needs include_usage: true; leave it out, or add that",
                "stream_options",
            )
        if isinstance(self.stop, list) and len(self.stop) > MOST_STOPS:
            raise FieldError(f"stop has {len(self.stop)} texts; it may have {MOST_STOPS}", "stop")

    @property
    def writes_nothing(self) -> bool:
        """Whether no new tokens are wanted."""
        return False

    def options(self) -> dict[str, Any]:
        """What the engine is asked for, prompt and drafting aside, in its words; what is not given is left out."""
        given = {name: getattr(self, name) for name in self.model_fields_set - self.OWN}
        with naming("response_format"):
            given = with_structure(given)
        named = with_logprobs(with_length(given))
        if (structure := named.pop("structured_outputs", None)) is not None:
            if "json_schema" in named:
                raise FieldError(
                    "response_format and structured_outputs are both given; give one", "response_format"
                )
            named |= _structured(structure)
        if "logit_bias" in named:
            named["logit_bias"] = by_token(named["logit_bias"])
        if "prediction" in named:
            named["prediction"] = predicted(named["prediction"])
        return named


class ChatFields(TextFields):
    """``POST /v1/chat/completions``."""

    ONLY: ClassVar[dict[str, Any]] = {
        **TextFields.ONLY,
        "modalities": ["text"],
    }

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MOST_LOGPROBS)
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    chat_options: dict[str, Any] | None = Field(default=None, alias="chat_template_kwargs")

    @cached_property
    def tool_use(self) -> ToolUse | None:
        """What the answer may call. Raises FieldError."""
        return tool_use(self.tools, self.tool_choice, self.parallel_tool_calls)

    def check(self) -> None:
        """Tools, and calls in messages, too."""
        super().check()
        check_calls(self.messages)
        self.tool_use  # noqa: B018 - checks them

    def turns(self) -> list[Any]:
        """The messages, as templates take them."""
        return with_arguments(with_joined_texts(self.messages))


class CompletionFields(TextFields):
    """``POST /v1/completions``."""

    prompt: Any
    echo: bool = False
    logprobs: int | None = Field(default=None, ge=0, le=MOST_LOGPROBS)

    @property
    def writes_nothing(self) -> bool:
        """Whether no new tokens are wanted: the prompt alone is echoed, or scored."""
        return self.max_tokens == 0

    def options(self) -> dict[str, Any]:
        """With what an echo asks for; where nothing is wanted, a token is written that nobody sees."""
        found = super().options()
        if self.echo and self.logprobs is not None:
            found["prompt_logprobs"] = self.logprobs
        return found | ({"max_new_tokens": 1} if self.writes_nothing else {})

    def prompts(self) -> list[str | list[int]]:
        """The prompts: a text, texts, token ids or lists of them. Raises FieldError for anything else."""
        given = self.prompt
        if isinstance(given, str):
            return [given]
        if isinstance(given, list) and given:
            if all(isinstance(entry, int) for entry in given):
                return [given]
            if all(isinstance(entry, str) for entry in given) or all(isinstance(entry, list) for entry in given):
                return given
        raise FieldError(
            f"prompt is {one_line(repr(given), 60)}; it must be a text, a list of texts, a list of token ids, or a "
            "list of such lists",
            "prompt",
        )


def _structured(asked: dict[str, Any]) -> dict[str, Any]:
    """VLLM's ``structured_outputs`` in our words. Raises FieldError."""
    given = {name: value for name, value in asked.items() if value is not None}
    if len(given) != 1 or (kind := next(iter(given))) not in _STRUCTURES:
        raise FieldError(
            f"structured_outputs is {one_line(repr(asked), 60)}; it must have one of {', '.join(_STRUCTURES)}",
            "structured_outputs",
        )
    value = given[kind]
    if kind != "choice":
        return {_STRUCTURES[kind]: value}
    if not isinstance(value, list) or not value or not all(isinstance(text, str) and text for text in value):
        raise FieldError(
            f"structured_outputs.choice is {one_line(repr(value), 60)}; it must be a list of texts, none empty",
            "structured_outputs.choice",
        )
    return {"regex": "|".join(map(re.escape, value))}


def read(kind: type[Asked], raw: bytes) -> Asked:
    """The fields of a body.

    Raises
    ------
    SelfspecError
        The body is no JSON object, has a field that there is not, or a value of a wrong type; nothing is ignored.
    """
    needs = "messages" if kind is ChatFields else "a prompt"
    body = {name: value for name, value in json_object(raw, "the body", needs).items() if value is not None}
    for name, only in kind.ONLY.items():
        with naming(name):
            body = without_only(body, {name: only})
    known = {field.alias or name for name, field in kind.model_fields.items()}
    if unknown := [name for name in body if name not in known]:
        with naming(one_line(unknown[0], 60)):
            if unknown[0] in ("best_of", "num_return_sequences"):
                raise OptionError(f"{unknown[0]} is not offered: ask for n texts, and choose among them")
            refuse_unverifiable(unknown)
            names = one_line(", ".join(unknown), 200)
            raise OptionError(f"no field {names} here; there are {', '.join(sorted(known | set(kind.ONLY)))}")
    try:
        fields = kind.model_validate(body)
    except ValidationError as error:
        raise _wrong(error.errors(include_url=False, include_context=False)[0]) from None
    fields.check()
    return fields


def _wrong(error: Mapping[str, Any]) -> FieldError:
    """One line of what pydantic found."""
    where = one_line(".".join(map(str, error["loc"])), 60)
    if error["type"] == "missing":
        return FieldError(f"{where} is missing; give it", where)
    if error["type"] == "extra_forbidden":
        return FieldError(f"no field {where} here; leave it out", where)
    kind = error["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    value = error["input"]
    given = json.dumps(value) if value is None or isinstance(value, bool) else one_line(repr(value), 60)
    return FieldError(f"{where} is {given}; it must be {_WORDS.get(kind, kind)}", where)
