"""The data of a trained head: texts of the target, read from the folder that ``selfspec train data`` writes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from selfspec.errors import OptionError
from selfspec.model.reading import one_line
from selfspec.train.shards import Text, read_shard, shards_of
from selfspec.train.vocabulary import draft_vocabulary

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from selfspec.engine import Engine
    from selfspec.train.shards import Shard

__all__ = ["FORMAT", "Data", "Text", "data_of", "draft_vocabulary", "read_data", "read_provenance"]

FORMAT = 1
Integers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


@dataclass(frozen=True)
class Data:
    """Texts, and where they come from: ``provenance`` is what ``data.json`` says of the first folder.

    Iterating gives every `Text`, in the order in which they ended; indexing gives one, as views of the shards.
    """

    folders: tuple[Path, ...]
    provenance: Mapping[str, Any]
    shards: Sequence[Shard]

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __iter__(self) -> Iterator[Text]:
        for shard in self.shards:
            yield from shard

    def __getitem__(self, index: int) -> Text:
        if not 0 <= index < len(self):
            raise IndexError(index)
        shard = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self.shards[shard][index - int(self._starts[shard])]

    @cached_property
    def _starts(self) -> Integers:
        return np.cumsum([0, *(len(shard) for shard in self.shards)])

    def first(self, texts: int) -> Data:
        """The shards that hold the first ``texts``."""
        shards, count = [], 0
        for shard in self.shards:
            if count < texts:
                shards.append(shard)
                count += len(shard)
        return replace(self, shards=shards)

    @property
    def fingerprint(self) -> str:
        """The checkpoint that wrote, or read, these texts."""
        return str(self.provenance["model"]["fingerprint"])

    @property
    def vocab_size(self) -> int:
        """Tokens are below this."""
        return int(self.provenance["vocab_size"])

    @cached_property
    def lengths(self) -> Integers:
        """Tokens of every text, prompt included."""
        return np.concatenate([np.diff(shard.ends, prepend=0) for shard in self.shards] or [np.zeros(0, np.int64)])

    @property
    def tokens(self) -> int:
        """Tokens in all, prompts included."""
        return int(self.lengths.sum())

    @property
    def answer_tokens(self) -> int:
        """Tokens of all answers."""
        return self.tokens - sum(int(shard.prompt_lengths.sum()) for shard in self.shards)


def read_data(folder: str | os.PathLike[str], *more: str | os.PathLike[str]) -> Data:
    """Read the folders of ``selfspec train data``, which may still be growing: whole shards count.

    Raises
    ------
    OptionError
        A folder is no such folder, is damaged, or belongs to another checkpoint than the first.
    """
    folders = tuple(Path(name) for name in (folder, *more))
    described = [read_provenance(path) for path in folders]
    for path, found in zip(folders, described, strict=True):
        if found["model"]["fingerprint"] != described[0]["model"]["fingerprint"]:
            raise OptionError(
                f"the data in {str(path)!r} are of the model {found['model']['name']}, those in "
                f"{str(folders[0])!r} of {described[0]['model']['name']}, another checkpoint; train on one of them"
            )
    shards = [read_shard(file) for path in folders for file in shards_of(path)]
    data = Data(folders, described[0], [shard for shard in shards if len(shard)])
    if not len(data):
        raise OptionError(f"{str(folders[0])!r} has no texts yet; run `selfspec train data` with the same --out")
    for shard in data.shards:
        if shard.tokens.min() < 0 or shard.tokens.max() >= data.vocab_size:
            raise OptionError(
                f"{str(shard.path)!r} has tokens outside the model's 0 to {data.vocab_size - 1}: it is damaged; "
                "remove it, and run `selfspec train data` again"
            )
    return data


def data_of(engine: Engine, folders: Sequence[str]) -> Data:
    """What `read_data` reads, if ``engine``'s model wrote it; raises OptionError for another checkpoint's."""
    data = read_data(*folders)
    if engine.fingerprint and data.fingerprint != engine.fingerprint:
        raise OptionError(
            f"the data in {folders[0]!r} were written by {data.provenance['model']['name']}, another checkpoint "
            f"than {engine.name}; give --model"
        )
    return data


def read_provenance(folder: Path) -> dict[str, Any]:
    """What ``data.json`` says; raises OptionError if it cannot be read, or is something else."""
    path = folder / "data.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise ValueError(f"format {found['format']!r}; this version reads {FORMAT}")
        _check(found)
    except OSError as error:
        raise OptionError(
            f"{str(folder)!r} holds no data: {path.name} cannot be read ({error.strerror}); make it with "
            "`selfspec train data`"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise OptionError(f"{str(path)!r} is not what `selfspec train data` writes: {one_line(error)}") from error
    return dict(found)


def _check(found: Mapping[str, Any]) -> None:
    ids = [found["vocab_size"] - 1, *found["eos_token_ids"], *found["special_ids"]]
    if not isinstance(found["model"]["fingerprint"], str) or not all(0 <= n < found["vocab_size"] for n in ids):
        raise ValueError("its fields are something else")
