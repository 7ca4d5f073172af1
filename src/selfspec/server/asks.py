"""From the fields of a request to generations that are ready to run."""

from __future__ import annotations

from dataclasses import fields
from threading import Lock
from typing import TYPE_CHECKING, Any

from selfspec.errors import OptionError, PromptError, SelfspecError
from selfspec.grammar import KINDS
from selfspec.model.reading import one_line
from selfspec.request import Request
from selfspec.server.failures import FieldError, UnknownModelError
from selfspec.server.fields import ChatFields, CompletionFields
from selfspec.server.offers import offered_drafts, offered_options
from selfspec.server.tools import ToolDesk

if TYPE_CHECKING:
    from selfspec.drafters.base import Drafter
    from selfspec.engine import Engine
    from selfspec.generation import Generation
    from selfspec.model.tool_format import ToolFormat
    from selfspec.server.fields import TextFields
    from selfspec.server.settings import ServerOptions

_KEPT_DRAFTERS = 32
_OURS_TO_THEIRS = {
    "json_schema": ("response_format", "structured_outputs"),
    "regex": ("structured_outputs",),
    "grammar": ("structured_outputs",),
    "max_new_tokens": ("max_completion_tokens", "max_tokens"),
    "chat_options": ("chat_template_kwargs",),
}
_MOST_SEED = 2**63


class Desk:
    """Turns requests into generations; what is wrong with one is said here, before it queues.

    The engine's defaults hold where a request does not say; where they do not say either, the temperature is 1, as
    OpenAI's.
    """

    def __init__(self, engine: Engine, options: ServerOptions) -> None:
        self._engine, self._options = engine, options
        own = engine.defaults
        self._defaults = {"temperature": own.get("temperature", 1.0), "seed": own.get("seed")}
        self._made: list[Drafter] = []
        self._lock = Lock()
        self._tools = ToolDesk(engine)

    def calls_of(self, asked: TextFields) -> ToolFormat | None:
        """The format of the calls that an answer may have; None where it has none."""
        return self._tools.format if isinstance(asked, ChatFields) and asked.tool_use else None

    def generations(self, asked: TextFields) -> list[Generation]:
        """One for each prompt and choice: the n choices of a prompt stand together.

        The i-th choice is what ``seed`` + i gives alone. Raises SelfspecError.
        """
        if asked.model not in (None, self._options.name):
            name = one_line(repr(asked.model), 80)
            raise UnknownModelError(f"model is {name}; this server has {self._options.name!r}")
        texts = asked.n * (len(asked.prompts()) if isinstance(asked, CompletionFields) else 1)
        if texts > (most := self._options.slots + self._options.queue):
            raise FieldError(
                f"the request asks for {texts} texts; this server holds {most} at most: ask for fewer",
                "n" if asked.n > 1 else "prompt",
            )
        try:
            options = {**self._defaults, **asked.options(), **self._drafting(asked.speculative)}
            if options["seed"] is not None and not 0 <= options["seed"] < _MOST_SEED:
                raise OptionError(f"seed is {options['seed']}; it must be 0 to 2^63 - 1")
            prompts = self._prompts(asked, options)
            structures: dict[str, Any] = {kind: prompts[0].get(kind) for kind in KINDS}
            self._engine.grammar(Request(**structures))  # is kept; others need not wait for it
            with self._lock:
                return self._made_of(asked, prompts)
        except SelfspecError as error:
            raise _in_their_words(error, asked) from error
        except RecursionError as error:
            raise FieldError("a field is nested too deeply; make it flatter") from error

    def _made_of(self, asked: TextFields, prompts: list[dict[str, Any]]) -> list[Generation]:
        found: list[Generation] = []
        for prompt in prompts:
            for choice in range(asked.n):
                own = dict(prompt)
                if own["seed"] is not None:
                    own["seed"] += choice
                found.append(self._engine.prepare(made=self._made, **own))
                if (length := len(found[-1].prediction)) > (most := self._engine.config.context_length):
                    raise OptionError(f"prediction is of {length} tokens; this model's texts have {most} at most")
        del self._made[:-_KEPT_DRAFTERS]
        return found

    def _prompts(self, asked: TextFields, options: dict[str, Any]) -> list[dict[str, Any]]:
        """What `Engine.prepare` takes of each prompt, with the ``options`` of all."""
        if isinstance(asked, ChatFields):
            return [self._tools.options(asked.tool_use, asked.turns(), options)]
        assert isinstance(asked, CompletionFields)
        return [{**options, "prompt": prompt, "chat": False} for prompt in asked.prompts()]

    def _drafting(self, asked: dict[str, Any] | None) -> dict[str, Any]:
        """The drafter and its options. What names files or loads models is the operator's alone."""
        options = {name: value for name, value in (asked or {}).items() if value is not None}
        is_on = options.pop("enabled", True)
        if not isinstance(is_on, bool):
            raise FieldError(f"speculative.enabled is {is_on!r}; it must be true or false", "speculative.enabled")
        if not is_on:
            if options:
                raise FieldError(
                    f"speculative.enabled is false; leave out {', '.join(map(str, options))}", "speculative"
                )
            return {"draft": "plain"}
        default = self._engine.defaults["draft"]
        draft = options.get("draft", default)
        if draft != default and draft not in self._options.drafts:
            there = ", ".join(offered_drafts(self._engine, self._options))
            raise FieldError(
                f"speculative.draft is {one_line(repr(draft), 60)}; it must be one of {there}",
                "speculative.draft",
            )
        kind, _ = self._engine.kind(draft)
        allowed = [field.name for field in offered_options(kind)]
        opening = {field.name for field in fields(kind.Options)} - set(allowed)
        for name in options:
            if name != "draft" and name not in allowed:
                why = "is for whoever starts the server" if name in opening else f"is no option of {draft}"
                raise FieldError(
                    f"speculative.{one_line(name, 60)} {why}; there are draft, enabled, {', '.join(allowed)}",
                    f"speculative.{one_line(name, 60)}",
                )
        return options


def _in_their_words(error: SelfspecError, asked: TextFields) -> SelfspecError:
    """An error about an option or the prompt, with the field that it was given as."""
    if isinstance(error, PromptError):
        return FieldError(str(error), "messages" if isinstance(asked, ChatFields) else "prompt")
    if not isinstance(error, OptionError):
        return error
    given = _given(asked)
    name, _, rest = str(error).partition(" ")
    theirs = {
        ours: next((field for field in fields if field in given), None) for ours, fields in _OURS_TO_THEIRS.items()
    }
    if theirs["max_new_tokens"]:
        rest = rest.replace("max_new_tokens", theirs["max_new_tokens"])
    spelled = theirs.get(name) or name
    if spelled in given:
        return FieldError(f"{spelled} {rest}", spelled)
    if name in (asked.speculative or {}):
        return FieldError(f"speculative.{name} {rest}", f"speculative.{name}")
    return error


def _given(asked: TextFields) -> set[str]:
    """The names of the fields that were given, as they were."""
    known = type(asked).model_fields
    return {known[name].alias or name for name in asked.model_fields_set}
