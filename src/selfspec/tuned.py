"""What `selfspec tune` found for a model on this machine: its file, and the draft that `selfspec.load` takes.

The file belongs to a checkpoint, a precision, a runtime with its kernels and threads, and a machine; they are in
its name, and in it. One of something else is left out, and the user is told in a line: a draft that pays here may
lose elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from selfspec import drafters
from selfspec._version import __version__
from selfspec.documents import json_line, replace_file, require_format
from selfspec.drafters import prior
from selfspec.errors import OptionError, SelfspecError
from selfspec.machine import machine
from selfspec.model.cache import cache_folder
from selfspec.model.reading import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from selfspec.drafters.base import Host

KIND = "tune"
_AGAIN = "run selfspec tune again"


@dataclass(frozen=True)
class Tuned:
    """A draft, as `draft=` takes it, with ``options`` beside it; ``predicts``: it uses a prediction."""

    draft: str
    options: Mapping[str, Any] = field(default_factory=dict)
    predicts: bool = False


def facts_of(host: Host) -> dict[str, Any]:
    """What a file must have in common with an engine, as its ``identity`` has them."""
    return {**prior.facts_of(host), "selfspec": __version__}


def folder() -> Path:
    """Where the files are: a folder in the cache folder (``SELFSPEC_CACHE``)."""
    return cache_folder() / "tuned"


def file_for(host: Host) -> Path:
    """The file of this model on this machine, whether it is there or not.

    Raises OptionError for a model object: nothing tells it from another.
    """
    if not host.fingerprint:
        raise OptionError(
            "a model object has no fingerprint, so nothing can be kept for it; load its folder instead"
        )
    return folder() / f"{_model_key(host)}-{_machine_key(host)}.json"


def work_for(host: Host, what: str) -> Path:
    """Where an unfinished run of `selfspec tune` keeps what it measured, by a text that says ``what``."""
    own = file_for(host)
    return own.with_name(f"{own.stem}-{_short([what], 8)}.part")


def find_tuned(host: Host) -> Tuned | None:
    """What was tuned for this model on this machine; None if nothing was.

    A file that is of something else, damaged, or of another version is left out; so is one whose draft cannot be
    made here. ``host.notify`` is told in one line. Binding a drafter may load what it needs.
    """
    try:
        there = list(folder().glob(f"{_model_key(host)}-*.json")) if host.fingerprint else []
    except OSError:
        there = []
    if not there:
        return None
    own = file_for(host)
    if own not in there:
        elsewhere = "what was tuned for this model was tuned on another machine, or with other threads"
        host.notify(f"{elsewhere}; it is left out: {_AGAIN}")
        return None
    try:
        return _made(own, host)
    except SelfspecError as error:
        host.notify(f"what was tuned for this model ({own}) is left out: {one_line(error)}; {_AGAIN}")
        return None


def save(document: Mapping[str, Any], path: Path) -> None:
    """Write a document of `selfspec tune` whole or not at all. Raises OptionError where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json_line(document) + "\n")
    except OSError as error:
        raise OptionError(f"{str(path)!r} cannot be written: {error.strerror}") from error


def forget(host: Host) -> list[Path]:
    """Remove what was tuned for this model and precision, on any machine, begun runs too; the files there were."""
    gone = sorted(folder().glob(f"{_model_key(host)}-*"))
    for path in gone:
        path.unlink(missing_ok=True)
    return gone


def _made(path: Path, host: Host) -> Tuned:
    """The draft in a file, which can be made here. Raises SelfspecError."""
    found = _read(path)
    if other := _other(found["identity"], facts_of(host)):
        raise OptionError(f"it was measured with another {' and '.join(other)}")
    choice = found["choice"]
    options = {"profile": str(path)} if choice["uses_profile"] else {}
    made = drafters.create(choice["draft"], host.runtime.config, dict(options), host)
    return Tuned(choice["draft"], options, made.uses_prediction)


def _read(path: Path) -> dict[str, Any]:
    """A document, as far as it is read here. Raises OptionError for anything else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        require_format(found, "it")
        identity, choice = found["identity"], found["choice"]
        is_one = (
            found["kind"] == KIND
            and isinstance(identity["machine"], dict)
            and isinstance(choice["draft"], str)
            and isinstance(choice["uses_profile"], bool)
        )
    except OSError as error:
        raise OptionError(f"it cannot be read: {error.strerror}") from error
    except OptionError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError):
        is_one = False
    if not is_one:
        raise OptionError("it is damaged")
    assert isinstance(found, dict)
    return found


def _other(identity: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterable[str]:
    """The names of what differs."""
    here = machine()
    other = [name for name, value in facts.items() if identity.get(name) != value]
    is_here = all(identity["machine"].get(name) == here[name] for name in ("platform", "processor", "cores"))
    return other if is_here else [*other, "machine"]


def _model_key(host: Host) -> str:
    return _short([host.fingerprint, host.runtime.name, host.runtime.precision], 16)


def _machine_key(host: Host) -> str:
    here = machine()
    return _short([here["processor"], here["cores"], platform.machine(), host.runtime.runs_on], 8)


def _short(parts: list[Any], digits: int) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:digits]
