"""Text of the user's own, taken as if the target had said it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.errors import PromptError
from selfspec.model.messages import check_messages
from selfspec.train.shards import Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from selfspec.engine import Engine

ANSWERS = ("answer", "response", "completion", "output")
PIECE = 1024  # tokens: longer plain texts are cut
TEMPERATURE = 1.0  # such texts stand for samples of a law, not for its likeliest tokens


def own_texts(engine: Engine, raw: bytes, name: str, first: int = 0) -> Iterator[tuple[int, Text | PromptError]]:
    """The texts of a file, each with its source, from ``first`` on; of what cannot be used, why.

    A source's texts are its draws.

    A file whose first line begins with ``{`` is JSON Lines. Of ``messages`` every message of the assistant is an
    answer to all that comes before it; a ``prompt`` has an ``answer`` (``response``, ``completion`` or ``output``);
    a ``text`` is an answer to its first token. Any other file is one such text. Plain texts are cut into pieces of
    1,024 tokens, answers where the model's context ends.

    Raises
    ------
    PromptError
        The file is not UTF-8, is empty, or a line is no JSON object with one of these fields.
    """
    for source, entry in enumerate(_entries(raw, name), first):
        try:
            pairs = _pairs(engine, entry, f"entry {source - first + 1} of {name!r}")
            for draw, (tokens, prompt_length) in enumerate(pairs):
                yield source, Text(np.asarray(tokens, np.int32), prompt_length, TEMPERATURE, source, draw)
        except PromptError as error:
            yield source, error


def _entries(raw: bytes, name: str) -> Iterator[Any]:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptError(f"{name!r} is not UTF-8 (byte {error.start}); convert it") from error
    if not text.strip():
        raise PromptError(f"{name!r} is empty; give text, or JSON Lines")
    if not text.lstrip().startswith("{"):
        yield {"text": text}
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise PromptError(f"line {number} of {name!r} is no JSON: {error}") from error


def _pairs(engine: Engine, entry: Any, where: str) -> Iterator[tuple[list[int], int]]:
    """(prompt and answer, length of the prompt) of all that is in an entry."""
    if engine.tokenizer is None:
        raise PromptError(f"{where} is text, and {engine.name} has no tokenizer")
    known = entry if isinstance(entry, dict) else {}
    answer = next((known[name] for name in ANSWERS if name in known), None)
    if isinstance(known.get("text"), str):
        yield from _pieces(engine, known["text"])
    elif isinstance(known.get("messages"), list):
        yield from _turns(engine, known["messages"])
    elif isinstance(known.get("prompt"), str) and isinstance(answer, str):
        turns = [{"role": "user", "content": known["prompt"]}, {"role": "assistant", "content": answer}]
        yield from _turns(engine, turns) if engine.tokenizer.has_chat_template else _plain(engine, turns)
    else:
        raise PromptError(
            f"{where} has neither `text` nor `messages`, nor `prompt` with one of {', '.join(ANSWERS)}"
        )


def _pieces(engine: Engine, text: str) -> Iterator[tuple[list[int], int]]:
    assert engine.tokenizer is not None
    tokens = engine.tokenizer.encode(text)
    if len(tokens) < 2:
        raise PromptError("the text has no second token; give some more")
    size = min(PIECE, engine.config.context_length)
    yield from ((tokens[start : start + size], 1) for start in range(0, len(tokens) - 1, size))


def _turns(engine: Engine, messages: Sequence[Any]) -> Iterator[tuple[list[int], int]]:
    """Each message of the assistant behind all that comes before it."""
    check_messages(messages)
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant" and i > 0]
    if not turns:
        raise PromptError("the messages have no answer: none of the assistant comes after another one")
    tokenizer = engine.tokenizer
    assert tokenizer is not None
    for i in turns:
        before = tokenizer.render(messages[:i])
        whole = tokenizer.render(messages[: i + 1], add_generation_prompt=False)
        if not whole.startswith(before):
            raise PromptError("the chat template writes answers otherwise than it lets the model begin them")
        yield from _joined(engine, tokenizer.encode(before, add_special_tokens=False), whole[len(before) :])


def _plain(engine: Engine, turns: Sequence[dict[str, str]]) -> Iterator[tuple[list[int], int]]:
    """A prompt and its answer for a model without a chat template."""
    assert engine.tokenizer is not None
    prompt, answer = (turn["content"] for turn in turns)
    yield from _joined(engine, engine.tokenizer.encode(prompt), answer, ends=True)


def _joined(engine: Engine, prompt: list[int], answer: str, ends: bool = False) -> Iterator[tuple[list[int], int]]:
    """Nothing where the context has no room for an answer; what comes behind an end-of-text token is left out."""
    assert engine.tokenizer is not None
    eos = engine.config.eos_token_ids
    said = [*engine.tokenizer.encode(answer, add_special_tokens=False), *(eos[:1] if ends else ())]
    end = next((i for i, token in enumerate(said, 1) if token in eos), len(said))
    tokens = [*prompt, *said[:end]][: engine.config.context_length]
    if not 0 < len(prompt) < len(tokens):
        raise PromptError(f"the prompt has {len(prompt)} tokens, which leaves no room for its answer")
    yield tokens, len(prompt)
