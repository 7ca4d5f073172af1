"""Texts on disk: safetensors files of some tens of thousands of tokens, written whole or not at all."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from selfspec.errors import OptionError
from selfspec.model.disk import sync
from selfspec.model.reading import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

Tokens: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"
Array: TypeAlias = "np.ndarray[Any, Any]"

_TYPES = {"tokens": np.int32, "ends": np.int64, "prompt_lengths": np.int32, "sources": np.int32}
_ALL = {**_TYPES, "temperatures": np.float32, "draws": np.int32}


@dataclass(frozen=True)
class Text:
    """A prompt and its answer.

    ``tokens`` [T] begin with the ``prompt_length`` tokens of the prompt; the end-of-text token is there if the
    answer came to its end. ``source`` is the index of the prompt, ``draw`` counts its answers of one temperature.
    """

    tokens: Tokens
    prompt_length: int
    temperature: float
    source: int
    draw: int = 0

    @property
    def prompt(self) -> Tokens:
        """Its tokens [prompt_length]."""
        return self.tokens[: self.prompt_length]

    @property
    def answer(self) -> Tokens:
        """Its tokens [T - prompt_length]."""
        return self.tokens[self.prompt_length :]


@dataclass(frozen=True)
class Shard:
    """The texts of one file: text n has tokens [ends[n - 1], ends[n])."""

    path: Path
    tokens: Tokens
    ends: Array
    prompt_lengths: Array
    sources: Array
    temperatures: Array
    draws: Array

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, n: int) -> Text:
        tokens = self.tokens[int(self.ends[n - 1]) if n else 0 : int(self.ends[n])]
        own = (self.prompt_lengths[n], self.sources[n], self.draws[n])
        prompt_length, source, draw = (int(value) for value in own)
        return Text(tokens, prompt_length, float(self.temperatures[n]), source, draw)

    def __iter__(self) -> Iterator[Text]:
        return (self[n] for n in range(len(self)))

    @property
    def answer_tokens(self) -> int:
        """Tokens of all answers."""
        return len(self.tokens) - int(self.prompt_lengths.sum())


def shards_of(folder: Path) -> list[Path]:
    """The files of a folder, in the order in which they were written."""
    return sorted(folder.glob("answers-[0-9][0-9][0-9][0-9][0-9].safetensors"))


def write_shard(folder: Path, texts: Sequence[Text]) -> Path:
    """Write a further file with ``texts``; it is there whole, and durable, or not at all.

    Raises OptionError if it cannot be written.
    """
    last = max((int(path.stem.partition("-")[2]) for path in shards_of(folder)), default=-1)
    path = folder / f"answers-{last + 1:05d}.safetensors"
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    arrays = {
        "tokens": np.concatenate([text.tokens for text in texts]),
        "ends": np.cumsum([len(text.tokens) for text in texts]),
        "prompt_lengths": [text.prompt_length for text in texts],
        "sources": [text.source for text in texts],
        "temperatures": [text.temperature for text in texts],
        "draws": [text.draw for text in texts],
    }
    try:
        aside.write_bytes(save({name: np.asarray(value, _ALL[name]) for name, value in arrays.items()}))
        sync(aside)
        aside.replace(path)
        sync(folder)
    except OSError as error:
        raise OptionError(f"--out {str(path)!r} cannot be written: {error}; what is done is kept") from error
    finally:
        aside.unlink(missing_ok=True)
    return path


def read_shard(path: Path) -> Shard:
    """Read a file and check that its parts fit together; raises OptionError with its name."""
    try:
        found = load_file(path)
        shard = Shard(path, **_typed(found))
        _check(shard)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise OptionError(
            f"{str(path)!r} is damaged ({one_line(error)}); remove it, and run `selfspec train data` with the same "
            "--out again"
        ) from error
    return shard


def _typed(found: Mapping[str, Array]) -> dict[str, Array]:
    if unknown := set(found) - set(_ALL):
        raise ValueError(f"it has {min(unknown)}")
    found = {"draws": np.zeros(len(found["ends"]), np.int32), **found}
    for name, kind in _ALL.items():
        if found[name].dtype != kind or found[name].ndim != 1:
            raise ValueError(f"{name} is {found[name].dtype} {list(found[name].shape)}")
    return {name: found[name] for name in _ALL}


def _check(shard: Shard) -> None:
    lengths = np.diff(shard.ends, prepend=0)
    own = (shard.prompt_lengths, shard.sources, shard.temperatures, shard.draws)
    if any(len(values) != len(shard) for values in own):
        raise ValueError("it has another number of texts than of prompts")
    if len(shard) and (lengths.min() < 1 or shard.ends[-1] != len(shard.tokens)):
        raise ValueError("its texts do not fill it")
    if (shard.prompt_lengths < 1).any() or (shard.prompt_lengths >= lengths).any():
        raise ValueError("a text has no prompt or no answer")
    if not np.isfinite(shard.temperatures).all() or (shard.temperatures < 0).any():
        raise ValueError("a temperature is none")
