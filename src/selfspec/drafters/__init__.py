"""Drafters by name, through entry points: built-ins use the same door as plug-ins."""

from __future__ import annotations

import inspect
from dataclasses import fields
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from selfspec.drafters.base import Drafter, Host
from selfspec.drafters.specs import is_spec, parse_specs
from selfspec.errors import OptionError
from selfspec.modes import refuse_unverifiable

if TYPE_CHECKING:
    from selfspec.model.config import ModelConfig

GROUP = "selfspec.drafters"


def available() -> dict[str, EntryPoint]:
    """Name -> entry point of every installed drafter; nothing is imported yet.

    Raises OptionError when two packages claim one name.
    """
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        known = found.setdefault(entry.name, entry)
        if known.value != entry.value:
            raise OptionError(
                f"two drafters are named {entry.name!r} ({known.value} and {entry.value}); uninstall one"
            )
    return dict(sorted(found.items()))


def drafter_class(name: str) -> type[Drafter]:
    """Import the drafter called ``name``.

    Raises OptionError, with the names there are, if there is none; and if a plug-in cannot be imported.
    """
    if not isinstance(name, str):
        raise _unknown(name)
    return _found(name)


def _unknown(name: object) -> OptionError:
    return OptionError(f"drafter is {name!r}; it must be one of {', '.join(available())}")


@cache  # to look for it reads the metadata of all packages, which takes longer than a pass of a small model
def _found(name: str) -> type[Drafter]:
    entries = available()
    if name not in entries:
        raise _unknown(name)
    try:
        found = entries[name].load()
    except Exception as error:  # a plug-in is somebody else's program
        raise OptionError(f"drafter {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not (inspect.isclass(found) and issubclass(found, Drafter)):
        raise OptionError(f"drafter {name!r} ({entries[name].value}) is not a selfspec Drafter")
    return found


@cache
def option_names(cls: type[Drafter]) -> tuple[str, ...]:
    """The names of a drafter's options."""
    return tuple(f.name for f in fields(cls.Options))


def resolve(draft: str) -> tuple[type[Drafter], dict[str, Any]]:
    """The class of what a user calls a drafter, and the options that are part of it.

    That is a name, or a name with options or a chain (`specs`). Raises OptionError as `drafter_class`, and for
    options that the drafter does not have.
    """
    if not isinstance(draft, str) or not is_spec(draft):
        return drafter_class(draft), {}
    specs = parse_specs(draft)
    if len(specs) != 1:
        raise OptionError(f"draft is {draft!r}; it must be one drafter, or a chain such as suffix>early_exit")
    cls = drafter_class(specs[0].name)
    return cls, specs[0].options(cls.Options)


def over(draft: str, within: dict[str, Any], beside: dict[str, Any]) -> dict[str, Any]:
    """The options in the name of a drafter, and those beside it. Raises OptionError for one that is in both."""
    if twice := [name for name in within if name in beside]:
        raise OptionError(f"{twice[0]} is in {draft!r} and given beside it; give it once")
    return within | beside


def create(
    draft: str | type[Drafter] | Drafter, config: ModelConfig, options: dict[str, Any], host: Host | None = None
) -> Drafter:
    """A drafter from its name or class and its options, or a ready instance as it is; bound to ``host``, if any.

    Raises OptionError for an unknown name, an option that the drafter does not have, or a bad value; and as
    `Drafter.bind`.
    """
    made = _made(draft, config, options)
    if host is not None:
        made.bind(host)
    return made


def _made(draft: str | type[Drafter] | Drafter, config: ModelConfig, options: dict[str, Any]) -> Drafter:
    if isinstance(draft, Drafter):
        refuse_unverifiable(options)
        if options:
            raise OptionError(f"options {', '.join(options)} were given with a drafter that is already made")
        if draft.config != config:
            raise OptionError(f"the drafter {draft.name!r} was made for another model")
        return draft
    if isinstance(draft, type):
        cls = draft
    else:
        cls, within = resolve(draft)
        options = over(draft, within, options)
    if unknown := [name for name in options if name not in option_names(cls)]:
        refuse_unverifiable(unknown)
        raise OptionError(
            f"drafter {cls.name!r} has no option {', '.join(unknown)}; it has {', '.join(option_names(cls))}"
        )
    return cls.for_options(cls.Options(**options), config)
