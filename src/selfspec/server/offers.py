"""What a request may ask for in ``speculative``: drafters, and those of their options that are for everybody."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selfspec.drafters.base import Drafter
    from selfspec.engine import Engine
    from selfspec.server.settings import ServerOptions

_KINDS = {"int": "integer", "float": "number", "bool": "boolean"}  # Python's types in the words of JSON schemas


def offered_drafts(engine: Engine, options: ServerOptions) -> list[str]:
    """The names of the drafters that a request may choose, that of the server among them."""
    default = engine.defaults["draft"]
    return sorted({getattr(default, "name", default), *options.drafts})


def offered_options(kind: type[Drafter] | Drafter) -> list[Field[Any]]:
    """The options of a drafter that a request may set: those that name no files and load no models."""
    return [field for field in fields(kind.Options) if not field.metadata.get("opens")]


def offers(engine: Engine, options: ServerOptions) -> dict[str, Any]:
    """The answer of ``/v1/drafters``: every drafter with its options and their defaults here."""
    default = engine.defaults["draft"]
    name = getattr(default, "name", default)
    return {
        "object": "list",
        "default": name,
        "layers": engine.config.num_layers,
        "data": [
            _described(draft, engine.kind(default if draft == name else draft)[0], engine, draft == name)
            for draft in offered_drafts(engine, options)
        ],
    }


def _described(name: str, kind: type[Drafter] | Drafter, engine: Engine, is_default: bool) -> dict[str, Any]:
    flags = engine.defaults if is_default else {}
    return {
        "id": name,
        "object": "drafter",
        "summary": kind.summary,
        "options": [
            {
                "name": field.name,
                "type": _type(field),
                "default": flags.get(field.name, None if field.default is MISSING else field.default),
                "help": field.metadata.get("help", ""),
            }
            for field in offered_options(kind)
        ],
    }


def _type(field: Field[Any]) -> str:
    """The type of an option in the words of JSON schemas; what is neither a number nor a switch is a text."""
    annotation = field.type.__name__ if isinstance(field.type, type) else str(field.type)
    return _KINDS.get(annotation.removesuffix(" | None"), "string")
