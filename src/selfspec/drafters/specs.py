"""Drafters as a user writes them: ``ngram``, ``early_exit:exit_layer=15:gamma=4``, several with commas.

``suffix>early_exit:exit_layer=8`` is a chain: its stages are an option of the drafter `staged`.
A value that has commas or colons itself stands in parentheses: ``auto:candidates=(suffix,quantized:draft_bits=4)``.
"""

from __future__ import annotations

import re
from dataclasses import Field, dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from selfspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ARROW = ">"
STAGED = "staged"
_GROUP = re.compile(r"=\([^()]*\)")
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
        made = kind(**{name: _value(known[name], text) for name, text in self.given})
        return {name: getattr(made, name) for name, _ in self.given}


def with_commas(text: str, names: Iterable[str]) -> str:
    """A list whose entries may also be joined by +, with commas.

    A + joins where one of ``names`` follows: elsewhere it belongs to the name of a file.
    """
    known = "|".join(map(re.escape, names))
    return re.sub(rf"\+(?=(?:{known})(?:[:,+]|$))", ",", text)


def parse_specs(text: str) -> list[Spec]:
    """The entries of a list with commas. Raises OptionError for an empty or doubled one, or a bad option."""
    specs = [_spec(part.strip()) for part in _parts(text, ",")] if text.strip() else []
    labels = [spec.label for spec in specs]
    if doubled := [label for i, label in enumerate(labels) if label in labels[:i]]:
        raise OptionError(f"{doubled[0]!r} is there twice; name each once")
    return specs


def _parts(text: str, mark: str) -> list[str]:
    """What stands between the marks that are in no parentheses of a value."""
    groups = [group.span() for group in _GROUP.finditer(text)]
    marks = [i for i, sign in enumerate(text) if sign == mark and not any(a < i < b for a, b in groups)]
    return [text[before + 1 : after] for before, after in pairwise([-1, *marks, len(text)])]


def is_spec(text: str) -> bool:
    """Whether this is more than the name of a drafter."""
    return ":" in text or ARROW in text


def _spec(text: str) -> Spec:
    if len(stages := _parts(text, ARROW)) > 1:
        return Spec(STAGED, (("stages", ARROW.join(_spec(stage.strip()).label for stage in stages)),))
    name, *options = _parts(text, ":")
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
    text = text.removeprefix("(").removesuffix(")") if _GROUP.fullmatch(f"={text}") else text
    try:
        return _KINDS.get(kind, str)(text)
    except (ValueError, KeyError):
        raise OptionError(f"{field.name} is {text!r}; it must be {_WANTED[kind]}") from None
