"""Tools for chat templates: JSON schemas, or Python functions that are described as transformers describes them."""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from selfspec.errors import OptionError
from selfspec.model.reading import one_line

_KINDS: dict[Any, dict[str, Any]] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    list: {"type": "array"},
    tuple: {"type": "array"},
    dict: {"type": "object"},
    Any: {},
}
_SCALARS = (int, float, str, bool, type(None))
_SECTION = re.compile(r"^\s*(Args|Returns|Raises):\s*$", re.MULTILINE)
_ARGUMENT = re.compile(r"^(\s*)(\w+)(?:[ \t]*\([^()\n]*\))?:\s*(.*)$")


def schemas_of(tools: Sequence[Mapping[str, Any] | Callable[..., Any]]) -> list[dict[str, Any]]:
    """The JSON schema of each tool; schemas are taken as they are.

    Raises
    ------
    OptionError
        ``tools`` is no list, or one of them is neither a schema nor a function that says what it takes.
    """
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence):
        raise OptionError(
            f"tools are {one_line(repr(tools), 60)}; they must be a list of JSON schemas or functions"
        )
    return [_schema(f"tools[{number}]", tool) for number, tool in enumerate(tools)]


def _schema(where: str, tool: Any) -> dict[str, Any]:
    if isinstance(tool, Mapping):
        try:
            return dict(json.loads(json.dumps(tool)))  # a copy, in plain types
        except (TypeError, ValueError) as error:
            raise OptionError(f"{where} is no JSON: {one_line(error)}") from error
    if inspect.isfunction(tool) or inspect.ismethod(tool):
        return _described(f"{where}, the function {tool.__name__},", tool)
    raise OptionError(f"{where} is a {type(tool).__name__}; it must be a JSON schema or a function")


def _described(where: str, function: Callable[..., Any]) -> dict[str, Any]:
    """``{"type": "function", "function": ...}`` from type hints and a Google-style docstring."""
    doc = (inspect.getdoc(function) or "").strip()
    if not doc:
        raise OptionError(f"{where} has no docstring; describe what it does, and its arguments under 'Args:'")
    sections = _sections(doc)
    parameters = _parameters(where, function)
    described = _arguments(sections.get("Args", ""))
    returned = parameters["properties"].pop("return", None)
    for name, schema in parameters["properties"].items():
        if name not in described:
            raise OptionError(
                f"{where} does not describe its argument {name!r}; add it under 'Args:' in the docstring"
            )
        _describe(schema, described[name], where)
    found: dict[str, Any] = {"name": function.__name__, "description": sections[""], "parameters": parameters}
    if returned is not None:
        if "Returns" in sections:
            returned["description"] = sections["Returns"]
        found["return"] = returned
    return {"type": "function", "function": found}


def _sections(doc: str) -> dict[str, str]:
    """Section -> text; what is before the first heading has no name."""
    found = {"": doc}
    heads = list(_SECTION.finditer(doc))
    if heads:
        found[""] = doc[: heads[0].start()].strip()
    ends = [head.start() for head in heads[1:]] + [len(doc)]
    for head, end in zip(heads, ends, strict=True):
        found[head[1]] = doc[head.end() : end].strip("\n").rstrip()
    if "Returns" in found:
        found["Returns"] = found["Returns"].strip()
    return found


def _arguments(text: str) -> dict[str, str]:
    """Argument -> description; a line that is indented deeper goes on with the last one."""
    found: dict[str, list[str]] = {}
    depth = None
    for line in text.split("\n"):
        head = _ARGUMENT.match(line)
        if head and (depth is None or len(head[1]) <= depth):
            depth, lines = len(head[1]), [head[3].strip()]
            found[head[2]] = lines
        elif found and line.strip():
            lines.append(line.strip())
    return {name: " ".join(lines).strip() for name, lines in found.items()}


def _describe(schema: dict[str, Any], text: str, where: str) -> None:
    """The description; ``(choices: [...])`` at its end lists what is allowed."""
    if choices := re.search(r"\(choices:\s*(.*?)\)\s*$", text, re.IGNORECASE):
        try:
            values = json.loads(choices[1])
        except ValueError as error:
            raise OptionError(f"{where} has choices that are no JSON list: {one_line(choices[1], 60)}") from error
        schema["enum"] = [value.strip() if isinstance(value, str) else value for value in values]
        text = text[: choices.start()].strip()
    schema["description"] = text


def _parameters(where: str, function: Callable[..., Any]) -> dict[str, Any]:
    signature = inspect.signature(function).parameters
    empty = inspect.Parameter.empty
    receiver = next(iter(signature), None)
    if receiver not in ("self", "cls") or signature[receiver].annotation is not empty:
        receiver = None
    if bare := [name for name, given in signature.items() if given.annotation is empty and name != receiver]:
        raise OptionError(f"{where} has no type hint for its argument {bare[0]!r}; add one")
    try:
        hints = get_type_hints(function)
    except Exception as error:  # whatever a hint in quotes evaluates to
        raise OptionError(f"{where} has type hints that cannot be read: {one_line(error)}") from error
    properties: dict[str, Any] = {}
    for name, hint in hints.items():
        try:
            properties[name] = _kind(hint)
        except OptionError as error:
            if name != "return":  # the model never writes it
                raise OptionError(f"{where} takes {name!r}, {error}") from None
    required = [name for name, given in signature.items() if given.default is empty and name != receiver]
    found: dict[str, Any] = {"type": "object", "properties": properties}
    return found | {"required": required} if required else found


def _kind(hint: Any) -> dict[str, Any]:
    """The JSON schema of a type hint."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _union(args)
    if origin is Literal:
        return _choices(list(args))
    if origin is list or origin is dict or origin is tuple:
        return _container(hint, origin, args)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _choices([member.value for member in hint])
    if origin is None and hint in _KINDS:
        return dict(_KINDS[hint])
    raise OptionError(
        f"whose type {one_line(repr(hint), 60)} has no JSON schema; use int, float, str, bool, Enum, Literal, or "
        "lists, tuples, dicts and unions of these, or write the schema by hand"
    )


def _container(hint: Any, origin: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    if origin is list:
        return {"type": "array", "items": _kind(args[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _kind(args[1])}
    if ... in args or len(args) == 1:
        raise OptionError(f"whose type {one_line(repr(hint), 60)} is a list in JSON; use list[...]")
    return {"type": "array", "prefixItems": [_kind(arg) for arg in args]}


def _union(args: tuple[Any, ...]) -> dict[str, Any]:
    kinds = [_kind(arg) for arg in args if arg is not type(None)]
    if len(kinds) == 1:
        found = kinds[0]
    elif all(kind.keys() == {"type"} and isinstance(kind["type"], str) for kind in kinds):
        names = sorted({kind["type"] for kind in kinds})
        found = {"type": names[0] if len(names) == 1 else names}
    else:
        found = {"anyOf": kinds}
    return found | {"nullable": True} if type(None) in args else found


def _choices(values: list[Any]) -> dict[str, Any]:
    if not values or not all(type(value) in _SCALARS for value in values):
        raise OptionError(f"whose choices {one_line(repr(values), 60)} are not texts, numbers or truth values")
    names = list(dict.fromkeys(_KINDS[type(value)]["type"] for value in values))
    return {"type": names[0] if len(names) == 1 else names, "enum": values}
