"""The folder that data grow in: shards, a journal of the texts since the last one, and where they come from."""

from __future__ import annotations

import json
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec import journal
from selfspec.documents import json_line, other_fields, write_whole
from selfspec.errors import OptionError
from selfspec.train.data import read_provenance
from selfspec.train.shards import Text, read_shard, shards_of, write_shard

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

SHARD_TOKENS = 50_000  # of answers: a file of some 0.3 MB

_FREE = ("version", "self_prompts")
_REMEDY = "or give another --out"
_SOURCES = 1 << 32  # more prompts than anyone has


@contextmanager
def growing(path: Path, provenance: Mapping[str, Any]) -> Iterator[Folder]:
    """The folder ``path``, made if it is not there; one run at a time.

    What ends the run, the texts that are there are in shards then; only a kill leaves some in the journal, for the
    next run to take up. A run that has no text to show leaves no folder.

    Parameters
    ----------
    path
        The folder.
    provenance
        What ``data.json`` says, a JSON object. All but the version, the model's name and the number of
        prompts of its own must be what the run that began the folder said.

    Raises
    ------
    OptionError
        The folder cannot be made or written, holds something else or data of another run, or is being written.
    """
    is_new = _make(path)
    identity = _identity(provenance)
    _require_same(path, identity)  # now: a journal of a run that is refused would stand in the way of others
    try:
        with journal.opened(path / "answers", identity, remedy=_REMEDY) as kept:
            _require_same(path, identity)
            _describe(path, provenance)
            folder = Folder(path, kept, provenance["temperatures"])
            try:
                yield folder
            finally:
                folder.seal()
                kept.is_finished = not len(folder) and _is_empty(path)
                if kept.is_finished:  # it would only refuse the right prompts
                    (path / "data.json").unlink()
            kept.is_finished = True
    finally:
        if is_new:
            with suppress(OSError):  # there is something in it
                path.rmdir()


def _make(path: Path) -> bool:
    """Make a folder; whether it was not there. Raises OptionError."""
    if path.exists() and not path.is_dir():
        raise OptionError(f"--out {str(path)!r} is a file; name a new folder, or that of an earlier run")
    try:
        is_new = not path.exists()
        path.mkdir(parents=True, exist_ok=True)
        is_other = any(path.iterdir()) and not (path / "data.json").exists()
    except OSError as error:
        raise OptionError(f"--out {str(path)!r} cannot be made: {error.strerror}; name another folder") from error
    if is_other and not journal.partial_of(path / "answers").exists():
        raise OptionError(f"--out {str(path)!r} has files, but no data of ours; name a new or an empty folder")
    return is_new


def _is_empty(path: Path) -> bool:
    """Whether nothing is in it but what every run begins with."""
    return all(file.name == "data.json" or file.name.startswith("answers.partial") for file in path.iterdir())


def _require_same(path: Path, identity: Mapping[str, Any]) -> None:
    if (path / "data.json").exists() and (other := other_fields(_identity(read_provenance(path)), identity)):
        raise OptionError(
            f"--out {str(path)!r} holds data of {_in_words(other, identity)}; give the same again to go on "
            f"with it, {_REMEDY}"
        )


def _in_words(names: Sequence[str], identity: Mapping[str, Any]) -> str:
    """What is another one; of prompts and texts there are several."""
    several = {"prompts": "other texts" if identity.get("kind") == "text" else "other prompts"}
    return " and ".join(several.get(name, f"another {name}") for name in names)


def _describe(path: Path, provenance: Mapping[str, Any]) -> None:
    """Write ``data.json``; the version that began the folder stays in it, and the larger number of prompts."""
    document = dict(provenance)
    if (path / "data.json").exists():
        found = read_provenance(path)
        document["version"] = found.get("version")
        written = [d["self_prompts"] for d in (found, document) if "self_prompts" in d]
        document |= {"self_prompts": max(written, key=lambda w: int(w["count"]))} if written else {}
    write_whole(path / "data.json", json.dumps(json.loads(json_line(document)), indent=1) + "\n")


def _identity(provenance: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in provenance.items() if name not in _FREE}
    return kept | {"model": provenance["model"]["fingerprint"]}


class Folder:
    """Texts by number: prompt, temperature and draw. A text that was added is not lost."""

    def __init__(self, path: Path, kept: journal.Journal, temperatures: Sequence[float]) -> None:
        self._path = path
        self._journal = kept
        self._indices = {float(np.float32(value)): i for i, value in enumerate(temperatures)}
        self._sealed: set[int] = set()
        self.answer_tokens = self.shards = 0
        for file in shards_of(path):
            shard = read_shard(file)
            self._sealed.update(self.number(text.source, text.temperature, text.draw) for text in shard)
            self.answer_tokens += shard.answer_tokens
            self.shards += 1
        self._waiting = 0  # answer tokens in the journal
        for number in kept:
            if number not in self._sealed:  # else a kill came between the shard and the end of its journal
                found = kept[number]
                self._waiting += len(found["tokens"]) - found["prompt_length"]
        self.answer_tokens += self._waiting

    def __len__(self) -> int:
        return len(self._sealed) + sum(number not in self._sealed for number in self._journal)

    def __contains__(self, number: int) -> bool:
        return number in self._sealed or number in self._journal

    def number(self, source: int, temperature: float, draw: int) -> int:
        """The number of a text: it stays the same when prompts or draws are added."""
        index = self._indices[float(np.float32(temperature))]
        return (draw * len(self._indices) + index) * _SOURCES + source

    def add(self, text: Text) -> None:
        """Keep a text; with enough of them a shard is written."""
        number = self.number(text.source, text.temperature, text.draw)
        found = {"prompt_length": text.prompt_length, "tokens": [int(token) for token in text.tokens]}
        self._journal.add(number, found)
        self._waiting += len(text.answer)
        self.answer_tokens += len(text.answer)
        if self._waiting >= SHARD_TOKENS:
            self.seal()

    def seal(self) -> None:
        """Move what the journal holds into a shard."""
        numbers = [number for number in self._journal if number not in self._sealed]
        if numbers:
            write_shard(self._path, [self._text(number) for number in numbers])
            self._sealed.update(numbers)
            self.shards += 1
        self._journal.clear()
        self._waiting = 0

    def _text(self, number: int) -> Text:
        found = self._journal[number]
        rest, source = divmod(number, _SOURCES)
        draw, index = divmod(rest, len(self._indices))
        tokens = np.asarray(found["tokens"], np.int32)
        return Text(tokens, int(found["prompt_length"]), list(self._indices)[index], source, draw)
