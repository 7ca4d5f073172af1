"""Prompts by task: a file of the user, or the small set that comes with the package."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfspec.errors import OptionError, PromptError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.model import Tokenizer

BUILT_IN = "built-in"
_CHAT = "mt_bench"
# Spec-Bench names the eight parts of MT-Bench in `category`, and its five other tasks
_PARTS_OF_CHAT = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}


@dataclass(frozen=True)
class Prompt:
    """What a user says, turn by turn."""

    task: str
    id: str
    turns: tuple[str, ...]


def read_prompts(path: str | None) -> list[Prompt]:
    """The prompts of a JSON Lines file in its order, or the built-in ones.

    A line has ``turns`` (a list of texts) or ``prompt`` (one), and may have ``task`` and ``id``; of Spec-Bench's
    own ``question_id, category, turns`` the category is the task.

    Raises
    ------
    PromptError
        The file cannot be read, or a line is something else; it is named.
    """
    if path is None:
        return _parsed(files(__package__).joinpath("prompts.jsonl").read_text(encoding="utf-8"), BUILT_IN)
    try:
        return _parsed(Path(path).read_text(encoding="utf-8-sig"), path)
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a null byte in the name
        if isinstance(error, PromptError):
            raise
        raise PromptError(
            f"the file {path!r} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error


def choose(prompts: Sequence[Prompt], tasks: Sequence[str], limit: int | None) -> list[Prompt]:
    """The first ``limit`` prompts of each of ``tasks``, in order; no tasks are all of them.

    Raises OptionError for a task that is not there.
    """
    there = list(dict.fromkeys(prompt.task for prompt in prompts))
    if unknown := [task for task in tasks if task not in there]:
        raise OptionError(f"no task {unknown[0]!r}; there are {', '.join(there)}")
    wanted = [task for task in there if task in tasks] if tasks else there
    return [prompt for task in wanted for prompt in [p for p in prompts if p.task == task][:limit]]


def encode_turns(tokenizer: Tokenizer, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
    """A conversation as the model wants it, by the chat template if there is one."""
    if tokenizer.has_chat_template:
        return tuple(tokenizer.encode_chat(list(messages)))
    return tuple(tokenizer.encode("\n\n".join(message["content"] for message in messages)))


def _parsed(text: str, source: str) -> list[Prompt]:
    split = text.split("\n")  # JSON may hold other line ends
    lines = [(number, line) for number, line in enumerate(split, start=1) if line.strip()]
    if not lines:
        raise PromptError(f"{source!r} has no prompts; give one JSON object per line")
    return [_prompt(line, number, f"line {number} of {source!r}") for number, line in lines]


def _prompt(line: str, number: int, where: str) -> Prompt:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise PromptError(f"{where} is not JSON ({error}); give one object per line") from None
    turns = _turns(row) if isinstance(row, dict) else None
    if turns is None:
        raise PromptError(f"{where} has no prompt; it needs `turns`, a list of texts, or `prompt`, a text")
    return Prompt(_task(row), str(row.get("id", row.get("question_id", number))), turns)


def _turns(row: dict[str, Any]) -> tuple[str, ...] | None:
    turns = row.get("turns", [row.get("prompt")])
    is_usable = isinstance(turns, list) and turns and all(isinstance(t, str) and t.strip() for t in turns)
    return tuple(turns) if is_usable else None


def _task(row: dict[str, Any]) -> str:
    if "task" in row:
        return str(row["task"])
    category = str(row.get("category", "all"))
    return _CHAT if "question_id" in row and category in _PARTS_OF_CHAT else category
