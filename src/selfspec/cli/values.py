"""Values of flags as they are typed, and as a request takes them."""

from __future__ import annotations

import json
from typing import Any

from selfspec.cli.reading import decoded, read_file
from selfspec.errors import OptionError

_PYTHON = {"True": "true", "False": "false", "None": "null"}  # as JSON spells them


def bias(value: str) -> tuple[int, float]:
    """A token id and what to add to its logit."""
    token, _, bias = value.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise OptionError(f"--logit-bias is {value!r}; it must be ID=BIAS, such as 11=-100") from None


def given_text(value: str) -> str:
    """The text itself, or that of a file."""
    if not value.startswith("@"):
        return value
    return decoded(read_file(value[1:], "the file"), f"the file {value[1:]!r}")


def chat_option(text: str) -> tuple[str, Any]:
    """A variable of the chat template: JSON where it is JSON, else a text."""
    name, found, value = text.partition("=")
    if not (name and found):
        raise OptionError(f"--chat-option is {text!r}; it must be NAME=VALUE, such as enable_thinking=false")
    try:
        return name, json.loads(_PYTHON.get(value, value))
    except ValueError:
        return name, value


def tools_of(file: str) -> list[Any]:
    """The JSON schemas in a file: a list, or one alone."""
    text = decoded(read_file(file, "the file of tools"), f"the file of tools {file!r}")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"the file of tools {file!r} is no JSON: {error}") from None
    found = found if isinstance(found, list) else [found]
    if not found or not all(isinstance(tool, dict) for tool in found):
        raise OptionError(f"the file of tools {file!r} must hold a list of JSON schemas")
    return found


def template_of(given: str) -> str:
    """The name of a template, or what is in a file of that ending."""
    if not given.endswith((".jinja", ".j2")):
        return given
    return decoded(read_file(given, "the chat template"), f"the chat template {given!r}")
