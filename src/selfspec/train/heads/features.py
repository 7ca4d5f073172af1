"""The target's states along the data: run once into shards on disk, or anew whenever they are read."""

from __future__ import annotations

import hashlib
import json
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from selfspec.documents import other_fields, write_whole
from selfspec.errors import OptionError
from selfspec.types import LayerPlan, Rows, SubLayer, on_host

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from selfspec.runtime.base import Cache, Runtime
    from selfspec.types import Array

ROWS = 512  # of a pass
SHARD_ROWS = 16_384
_KEY = "selfspec.states"


class States(Protocol):
    """Gives the states of a text: [T, K + 1, d] in float32, those after ``taps`` and after the last layer."""

    @property
    def taps(self) -> tuple[int, ...]:
        """The layers, in order."""

    def __call__(self, text: int) -> Tensor:
        """The states of text number ``text``."""


class Reader:
    """Runs the target over one text at a time."""

    def __init__(self, runtime: Runtime, taps: Sequence[int]) -> None:
        self._runtime, self.taps = runtime, tuple(taps)
        self._cache: Cache | None = None

    def __call__(self, tokens: NDArray[np.int32]) -> Tensor:
        """States [T, K + 1, d] along ``tokens`` [T], in float32."""
        count, runtime = len(tokens), self._runtime
        if self._cache is None or self._cache.length < count:
            self._cache = runtime.new_cache(1, max(count, ROWS))
        plan, taps = LayerPlan.full(runtime.config.num_layers), [SubLayer(tap - 1) for tap in self.taps]
        parts = []
        for start in range(0, count, ROWS):
            stop = min(start + ROWS, count)
            rows = Rows.of([0] * (stop - start), range(start, stop))
            entered = runtime.embed(tokens[start:stop].tolist(), rows.positions)
            last, found = runtime.run(entered, plan, rows, self._cache, taps)
            states = [on_host(part) for part in (*(found[tap] for tap in taps), last)]
            parts.append(np.stack(states, axis=1).astype(np.float32, copy=False))
        return torch.from_numpy(np.concatenate(parts))


def entering(runtime: Runtime, states: Tensor) -> Array:
    """States [R, d] in the kind of array, and the precision, that the runtime's own have."""
    own: Any = runtime.embed([0], np.zeros(1, np.int64))
    return states.numpy() if isinstance(own, np.ndarray) else states.to(own.device, own.dtype)


class Anew:
    """Runs the target whenever a text is read; rounded as the shards are, so that both train alike."""

    def __init__(self, reader: Reader, texts: Sequence[NDArray[np.int32]]) -> None:
        self._reader, self._texts = reader, texts
        self.taps = reader.taps

    def __call__(self, text: int) -> Tensor:
        """See `States`."""
        return self._reader(self._texts[text]).to(torch.bfloat16).float()


class Remembered:
    """Runs the target when a text is read for the first time, and keeps what it found, unrounded."""

    def __init__(self, reader: Reader, texts: Sequence[NDArray[np.int32]]) -> None:
        self._reader, self._texts = reader, texts
        self.taps = reader.taps
        self._found: dict[int, Tensor] = {}

    def __call__(self, text: int) -> Tensor:
        """See `States`."""
        if text not in self._found:
            self._found[text] = self._reader(self._texts[text])
        return self._found[text]


class _Shard(NamedTuple):
    path: Path
    texts: range
    digest: str


class Shards:
    """States in bfloat16 on disk, in files of whole texts. A file that is there is kept if its tokens are the same.

    ``identity`` says what made them: states of another model or other layers are refused.
    """

    def __init__(
        self, folder: Path, identity: Mapping[str, Any], reader: Reader, texts: Sequence[NDArray[np.int32]]
    ) -> None:
        self._reader, self._texts = reader, texts
        self.taps = reader.taps
        lengths = [len(tokens) for tokens in texts]
        self._ends = np.cumsum(lengths)
        self._shards = _planned(folder, lengths, texts)
        self._of = np.repeat(np.arange(len(self._shards)), [len(shard.texts) for shard in self._shards])
        self._open: dict[int, Any] = {}
        _claim(folder, identity)

    @property
    def missing(self) -> list[int]:
        """The files that are still to be made."""
        return [index for index, shard in enumerate(self._shards) if not self._is_there(shard)]

    def make(self, index: int) -> int:
        """Make one file; how many rows that are."""
        shard = self._shards[index]
        states = torch.cat([self._reader(self._texts[text]).to(torch.bfloat16) for text in shard.texts])
        aside = shard.path.with_name(f".{shard.path.name}")
        try:
            save_file({"states": states}, aside, metadata={_KEY: shard.digest})
            aside.replace(shard.path)
        except (OSError, SafetensorError) as error:
            raise OptionError(f"states cannot be written to {str(shard.path)!r}: {error}; make room, or lower "
                              "--disk-budget") from error  # fmt: skip
        finally:
            aside.unlink(missing_ok=True)
        return len(states)

    def __call__(self, text: int) -> Tensor:
        """See `States`."""
        index = int(self._of[text])
        shard = self._shards[index]
        if index not in self._open:
            self._open[index] = safe_open(shard.path, framework="pt")
        first = int(self._ends[shard.texts.start - 1]) if shard.texts.start else 0
        stop = int(self._ends[text]) - first
        found: Tensor = self._open[index].get_slice("states")[stop - len(self._texts[text]) : stop]
        return found.float()

    def _is_there(self, shard: _Shard) -> bool:
        try:
            with safe_open(shard.path, framework="pt") as file:
                return bool((file.metadata() or {}).get(_KEY) == shard.digest)
        except (OSError, SafetensorError):
            return False


def _planned(folder: Path, lengths: Sequence[int], texts: Sequence[NDArray[np.int32]]) -> list[_Shard]:
    """Files of whole texts in order; more data make more files, and leave all but the last as they are."""
    found: list[_Shard] = []
    start = rows = 0
    for stop, length in enumerate(lengths, 1):
        rows += length
        if rows >= SHARD_ROWS or stop == len(lengths):
            digest = hashlib.sha256()
            for text in range(start, stop):
                digest.update(np.int64(lengths[text]).tobytes() + texts[text].tobytes())
            path = folder / f"states-{len(found):05d}.safetensors"
            found.append(_Shard(path, range(start, stop), digest.hexdigest()))
            start, rows = stop, 0
    return found


def _claim(folder: Path, identity: Mapping[str, Any]) -> None:
    """Make the folder, or see that it is of the same model and layers."""
    path = folder / "features.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    except OSError as error:
        raise OptionError(f"--features {str(folder)!r} cannot be used: {error.strerror}") from error
    except ValueError as error:
        raise OptionError(f"{str(path)!r} is damaged; remove the folder {str(folder)!r}") from error
    if found is not None:
        if other := other_fields(found, identity):
            raise OptionError(
                f"--features {str(folder)!r} holds states of another {' and '.join(other)}; give another folder, "
                "or remove it"
            )
        return
    write_whole(path, json.dumps(dict(identity)) + "\n")


class Plan(NamedTuple):
    """What keeping the states would take."""

    rows: int
    bytes: int
    free: int
    fits: bool


def planned(reader: Reader, lengths: Sequence[int], width: int, budget: int, folder: Path) -> Plan:
    """How large the states of texts of these ``lengths`` are, and whether they may be kept in ``folder``."""
    rows = int(sum(lengths))
    size = rows * (len(reader.taps) + 1) * width * 2
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    held = sum(path.stat().st_size for path in folder.glob("states-*.safetensors")) if folder.exists() else 0
    free = shutil.disk_usage(place).free + held
    return Plan(rows, size, free, size <= min(budget, free))
