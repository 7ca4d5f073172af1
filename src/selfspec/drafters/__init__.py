"""Drafters by name, through entry points: built-ins use the same door as plug-ins."""

from __future__ import annotations

import inspect
from dataclasses import fields
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from selfspec.drafters.base import Drafter, Host
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
    entries = available()
    if not isinstance(name, str) or name not in entries:
        raise OptionError(f"drafter is {name!r}; it must be one of {', '.join(entries)}")
    try:
        found = entries[name].load()
    except Exception as error:  # a plug-in is somebody else's program
        raise OptionError(f"drafter {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not (inspect.isclass(found) and issubclass(found, Drafter)):
        raise OptionError(f"drafter {name!r} ({entries[name].value}) is not a selfspec Drafter")
    return found


def option_names(cls: type[Drafter]) -> list[str]:
    """The names of a drafter's options."""
    return [f.name for f in fields(cls.Options)]


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
    cls = draft if isinstance(draft, type) else drafter_class(draft)
    if unknown := [name for name in options if name not in option_names(cls)]:
        refuse_unverifiable(unknown)
        raise OptionError(
            f"drafter {cls.name!r} has no option {', '.join(unknown)}; it has {', '.join(option_names(cls))}"
        )
    return cls.for_options(cls.Options(**options), config)
