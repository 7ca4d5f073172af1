"""Files of prompts: a prompt per line, or JSON Lines."""

from __future__ import annotations

import json
from typing import Any

from selfspec.cli.reading import decoded, read_file
from selfspec.errors import PromptError

KEYS = ("prompt", "turns", "messages")


def read_prompts(file: str) -> list[dict[str, Any]]:
    """The prompts of a file, as keyword arguments of `Engine.encode`; blank lines are left out.

    A file whose first line begins with ``{`` is JSON Lines: every line has ``prompt`` (a text), ``turns`` (texts
    of the user; the first one is taken) or ``messages`` (as `Engine.generate` takes them). Any other file has a
    prompt per line. Raises PromptError, with the line, for what is neither.
    """
    text = decoded(read_file(file, "the prompt file"), f"the prompt file {file!r}")
    lines = text.split("\n")  # JSON may hold other line ends
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise PromptError(f"the prompt file {file!r} is empty; give a prompt per line, or JSON Lines")
    if not numbered[0][1].lstrip().startswith("{"):
        return [{"prompt": line} for _, line in numbered]
    return [_entry(line, f"line {number} of {file!r}") for number, line in numbered]


def _entry(line: str, where: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise PromptError(f"{where} is no JSON: {error}") from error
    found = [key for key in KEYS if isinstance(entry, dict) and key in entry]
    if len(found) != 1:
        raise PromptError(f"{where} must be an object with one of {', '.join(KEYS)}")
    value = entry[found[0]]
    if found[0] == "messages":
        if not isinstance(value, list):
            raise PromptError(f"messages in {where} is {str(value)[:40]!r}; it must be a list")
        return {"messages": value}
    if found[0] == "turns":
        value = value[0] if isinstance(value, list) and value else None
    if not isinstance(value, str) or not value.strip():
        raise PromptError(f"{found[0]} in {where} has no text; give some")
    return {"prompt": value}
