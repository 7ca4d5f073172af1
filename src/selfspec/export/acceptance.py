"""What a draft is worth here: α over answers of this engine, or along texts that another engine has written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from selfspec.errors import OptionError
from selfspec.measure.prompts import BUILT_IN
from selfspec.model.reading import expanded, one_line, quoted
from selfspec.types import namespace

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from selfspec.engine import Engine
    from selfspec.rounds import Stats
    from selfspec.types import Array

    Written = tuple[str | Sequence[int], str | Sequence[int]]
    """A prompt and its answer, as texts or token ids."""


@dataclass(frozen=True)
class Acceptance:
    """What a draft's tokens were worth here: α, τ, and what was asked."""

    alpha: float
    mean_accepted_length: float
    drafted: int
    prompts: int
    max_new_tokens: int
    source: str = "built-in prompts"


def acceptance(engine: Engine, tokens: int) -> Acceptance:
    """Greedy answers of ``tokens`` new tokens to the built-in prompts, with the engine's draft."""
    found = [engine.generate(prompt, max_new_tokens=tokens).stats for prompt in BUILT_IN]
    return _of(found, tokens)


def acceptance_along(engine: Engine, written: Iterable[Written], source: str = "given texts") -> Acceptance:
    """How many tokens of the engine's draft agree with texts that are there already, greedily.

    The model is made to say each answer, whatever it would say itself: the rounds begin where they would if it had
    written the text, so α can be compared with that of the engine that did. Texts are taken as they are, without a
    chat template.

    Raises
    ------
    OptionError
        An answer is empty.
    PromptError
        As `Engine.generate`, for a prompt.
    """
    found, longest = [], 0
    for prompt, answer in written:
        begun = engine.encode(prompt, chat=False)
        rest = _encoded(engine, answer)
        if not rest:
            raise OptionError("an answer of the given texts is empty; acceptance is measured along answers")
        longest = max(longest, len(rest))
        asked: dict[str, Any] = {"max_new_tokens": len(rest), "ignore_eos": True, "temperature": 0.0}
        says = _Says((*begun, *rest))
        done = engine.generate(begun, processors=(says,), **asked)
        if done.stats.tokens != len(rest):
            raise OptionError(
                f"a text of {len(begun) + len(rest)} tokens is more than this model's context of "
                f"{engine.config.context_length}; give shorter ones"
            )
        found.append(done.stats)
    return _of(found, longest, source)


def read_texts(path: str | os.PathLike[str]) -> list[Written]:
    """The texts of a file: JSON Lines with ``prompt`` and ``answer``, each a text or a list of token ids.

    Raises OptionError for a file that cannot be read, and a line that is something else.
    """
    file = expanded(path)
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        raise OptionError(f"the texts {quoted(file)} cannot be read: {one_line(error)}") from error
    found = [_entry(line, f"line {i} of {quoted(file)}") for i, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise OptionError(f"{quoted(file)} is empty; give JSON Lines with prompt and answer")
    return found


def _entry(line: str, where: str) -> Written:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{where} is not JSON ({one_line(error)}); give one object a line") from None
    prompt, answer = (row.get("prompt"), row.get("answer")) if isinstance(row, dict) else (None, None)
    if not isinstance(prompt, str | list) or not isinstance(answer, str | list):
        raise OptionError(f"{where} must have a prompt and an answer, each a text or a list of token ids")
    return prompt, answer


def _encoded(engine: Engine, answer: str | Sequence[int]) -> list[int]:
    if not isinstance(answer, str):
        return engine.encode(answer) if len(answer) else []
    if engine.tokenizer is None:
        raise OptionError("an answer is text, and the model has no tokenizer; give token ids")
    return engine.tokenizer.encode(answer, add_special_tokens=False)


class _Says:
    """A processor under which a model says a given text: of every prefix of it, the token that follows."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens

    def __call__(self, prefix: Sequence[int], logits: Array) -> Array:
        """Logits [V] that allow one token."""
        xp = namespace(logits)
        only = xp.full_like(logits, -float("inf"))
        only[self._tokens[len(prefix)]] = 0.0
        return only


def _of(found: Sequence[Stats], tokens: int, source: str = Acceptance.source) -> Acceptance:
    drafted, accepted = sum(s.drafted for s in found), sum(s.accepted for s in found)
    rounds, new = sum(s.rounds for s in found), sum(s.tokens - s.texts for s in found)
    return Acceptance(accepted / max(1, drafted), new / max(1, rounds), drafted, len(found), tokens, source)
