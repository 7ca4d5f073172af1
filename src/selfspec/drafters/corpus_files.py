"""From files to a corpus: reading, tokenising, and an index that is kept in the cache folder."""

from __future__ import annotations

import hashlib
import json
from array import array
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.drafters.corpus import Corpus, save
from selfspec.errors import OptionError, PromptError
from selfspec.model.cache import converted
from selfspec.model.reading import one_line, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from selfspec.model.tokenizer import Tokenizer

FORM = "corpus1"  # of the index; a new name makes all of them anew
_PIECE = 1 << 16  # characters that are tokenised at a time, so that cores can share a text
_TOGETHER = 64  # pieces
_FIELDS = "text, messages or token_ids"


def open_corpus(
    files: Sequence[str], tokenizer: Tokenizer | None, vocab_size: int, notify: Callable[[str], None]
) -> Corpus:
    """The index of ``files`` in the tokens of a model, made now or earlier (see `selfspec.model.cache.converted`).

    A ``.npy`` file holds token ids; each line of a ``.jsonl`` file has one of ``token_ids``, ``messages`` (a
    conversation) or ``text``; any other file is text in UTF-8.

    Raises
    ------
    OptionError
        A file cannot be read or holds something else, there are no tokens, or there is text and no tokenizer.
    ModelError
        The cache folder cannot be written.
    """
    paths = [Path(file) for file in files]

    def convert(_source: Path, folder: Path) -> None:
        tokens = array("I")
        for path in paths:
            for text in _texts(path, tokenizer, vocab_size):
                tokens.extend(text)
                tokens.append(vocab_size)
        if tokens.count(vocab_size) == len(tokens):
            raise OptionError(f"the corpus {_named(files)} has no text; name files that have some")
        notify(f"the corpus has {len(tokens):,} tokens; sorting them")
        save(np.frombuffer(tokens, dtype=np.uint32), vocab_size, folder)

    identity = _identity(paths, tokenizer, vocab_size)
    return Corpus.open(converted(paths[0], convert, notify, FORM, identity), vocab_size)


def _named(files: Sequence[str]) -> str:
    return quoted(files[0]) + (f" and {len(files) - 1} more" if len(files) > 1 else "")


def _identity(paths: Sequence[Path], tokenizer: Tokenizer | None, vocab_size: int) -> str:
    """SHA-256 of everything that an index depends on."""
    whole = hashlib.sha256(f"{vocab_size} {tokenizer.fingerprint if tokenizer else ''}".encode())
    for path in paths:
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except (OSError, ValueError) as error:
            raise _unreadable(path, getattr(error, "strerror", None) or error) from error
        whole.update(f" {path.suffix} {digest}".encode())
    return whole.hexdigest()


def _unreadable(path: Path, why: object) -> OptionError:
    return OptionError(f"the corpus file {quoted(path)} cannot be read: {one_line(why)}")


def _texts(path: Path, tokenizer: Tokenizer | None, vocab_size: int) -> Iterator[Sequence[int]]:
    """The tokens of every text of a file."""
    if path.suffix == ".npy":
        yield _from_numpy(path, vocab_size)
        return
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # it may have changed since
        raise _unreadable(path, getattr(error, "strerror", None) or f"it is not UTF-8 ({error})") from error
    if path.suffix == ".jsonl":
        lines = ((number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip())
        for number, line in lines:
            yield _from_line(line, f"line {number} of {quoted(path)}", tokenizer, vocab_size)
    elif tokenizer is None:
        raise OptionError(f"the corpus file {quoted(path)} is text, and there is no tokenizer; give token ids")
    else:
        try:
            yield list(chain.from_iterable(_encoded(tokenizer, _pieces(text))))
        except PromptError as error:
            raise _unreadable(path, error) from error


def _from_numpy(path: Path, vocab_size: int) -> Sequence[int]:
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)  # a map is no longer than the file
    except (OSError, ValueError, OverflowError) as error:
        why = "it holds pickled objects, which are never loaded" if "pickle" in str(error) else error
        raise _unreadable(path, why) from error
    if not isinstance(found, np.ndarray) or found.ndim != 1 or not np.issubdtype(found.dtype, np.integer):
        raise OptionError(f"the corpus file {quoted(path)} must hold a one-dimensional array of token ids")
    return _checked(found.tolist(), quoted(path), vocab_size)


def _from_line(line: str, where: str, tokenizer: Tokenizer | None, vocab_size: int) -> Sequence[int]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{where} is not JSON ({one_line(error)}); give one object per line") from None
    if not isinstance(row, dict) or not row.keys() & {"text", "messages", "token_ids"}:
        raise OptionError(f"{where} has no text; it must be an object with {_FIELDS}")
    if "token_ids" in row:
        if not isinstance(row["token_ids"], list):
            raise OptionError(f"{where} has token_ids that are not a list")
        return _checked(row["token_ids"], where, vocab_size)
    if tokenizer is None:
        raise OptionError(f"{where} is text, and there is no tokenizer; give token_ids")
    try:
        if "messages" in row:
            return tokenizer.encode_chat(row["messages"], add_generation_prompt=False)
        if not isinstance(row["text"], str):
            raise OptionError(f"{where} has a text that is not one: {one_line(row['text'], 40)}")
        return tokenizer.encode(row["text"], add_special_tokens=False)
    except PromptError as error:
        raise OptionError(f"{where} cannot be used: {one_line(error)}") from error


def _checked(ids: list[Any], where: str, vocab_size: int) -> list[int]:
    if wrong := [t for t in ids if isinstance(t, bool) or not isinstance(t, int) or not 0 <= t < vocab_size]:
        raise OptionError(
            f"{where} has the token {one_line(wrong[0], 40)}; this model's tokens are 0 to {vocab_size - 1}"
        )
    return ids


def _pieces(text: str) -> Iterator[str]:
    """Parts of a text, cut after a line where that is possible: tokens seldom span lines."""
    start = 0
    while start < len(text):
        stop = start + _PIECE
        if stop < len(text):
            stop = text.rfind("\n", start, stop) + 1 or stop
            stop = stop if stop > start else start + _PIECE
        yield text[start:stop]
        start = stop


def _encoded(tokenizer: Tokenizer, pieces: Iterable[str]) -> Iterator[list[int]]:
    batch: list[str] = []
    for piece in pieces:
        batch.append(piece)
        if len(batch) == _TOGETHER:
            yield from tokenizer.encode_all(batch)
            batch.clear()
    yield from tokenizer.encode_all(batch)
