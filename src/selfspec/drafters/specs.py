"""Drafters as a user writes them: ``ngram``, ``early_exit:exit_layer=15:gamma=4``, several with commas.

``suffix>early_exit:exit_layer=8`` is a chain: its stages are an option of the drafter `staged`.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, fields
from typing import TYPE_CHECKING, Any

from selfspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

ARROW = ">"
STAGED = "staged"
_SWITCH = {"on": True, "true": True, "off": False, "false": False}
_KINDS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "bool": lambda text: _SWITCH[text]}
_WANTED = {"int": "an integer", "float": "a number", "bool": "on or off"}


@dataclass(frozen=True)
class Spec:
    """One drafter or rival: its name with its options, as they were written, is its label."""

    name: str
    given: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        """How it is called."""
        if self.name == STAGED and len(self.given) == 1:
            return self.given[0][1]
        return ":".join([self.name, *(f"{name}={value}" for name, value in self.given)])

    def options(self, kind: type[Any]) -> dict[str, Any]:
        """The options as values of the dataclass ``kind``, checked by it; those with a help text are allowed.

        Raises OptionError for an unknown option or a value that is not allowed.
        """
        known = {field.name: field for field in fields(kind) if "help" in field.metadata}
        if unknown := [name for name, _ in self.given if name not in known]:
            allowed = f"it has {', '.join(known)}" if known else "it has no options"
            raise OptionError(f"{self.name!r} has no option {', '.join(unknown)}; {allowed}")
        values = {name: _value(known[name], text) for name, text in self.given}
        kind(**values)
        return values


def parse_specs(text: str) -> list[Spec]:
    """The entries of a list with commas. Raises OptionError for an empty or doubled one, or a bad option."""
    specs = [_spec(part.strip()) for part in text.split(",")] if text.strip() else []
    labels = [spec.label for spec in specs]
    if doubled := [label for i, label in enumerate(labels) if label in labels[:i]]:
        raise OptionError(f"{doubled[0]!r} is there twice; name each once")
    return specs


def is_spec(text: str) -> bool:
    """Whether this is more than the name of a drafter."""
    return ":" in text or ARROW in text


def _spec(text: str) -> Spec:
    if ARROW in text:
        stages = [_spec(stage.strip()).label for stage in text.split(ARROW)]
        return Spec(STAGED, (("stages", ARROW.join(stages)),))
    name, *options = text.split(":")
    if not name:
        raise OptionError("an entry has no name; give names with commas, such as plain,ngram:gamma=8")
    given: list[tuple[str, str]] = []
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key or not value:
            raise OptionError(f"{text!r} has {option!r}; an option must be name=value, such as ngram:gamma=8")
        if key in dict(given):
            raise OptionError(f"{text!r} gives {key} twice; give it once")
        given.append((key, value))
    return Spec(name, tuple(given))


def _value(field: Field[Any], text: str) -> Any:
    annotation = field.type.__name__ if isinstance(field.type, type) else str(field.type)
    kind = annotation.partition(" | ")[0]
    try:
        return _KINDS.get(kind, str)(text)
    except (ValueError, KeyError):
        raise OptionError(f"{field.name} is {text!r}; it must be {_WANTED[kind]}") from None
