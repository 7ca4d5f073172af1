"""The file of ``selfspec profile --out``: what was measured so far, so that a later run goes on with it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfspec.documents import json_line, other_fields, write_whole
from selfspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from selfspec.engine import Engine
    from selfspec.measure.settings import Workload


class Notebook:
    """Measurements by section and name, in memory, and in a file where one is given.

    The file is one JSON object: ``identity`` says what they belong to, ``units`` are they, and the fields of the
    result, if there is one, stand beside them. It is replaced as a whole, so a kill leaves the one before.

    Raises OptionError if the file cannot be read, or is something else.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._identity: Mapping[str, Any] = {}
        self.units: dict[str, dict[str, Any]] = {}
        if path is not None and path.exists():
            self._identity, self.units = _read(path)

    def require(self, identity: Mapping[str, Any]) -> None:
        """Raise OptionError if what is there was measured on something else; from now on it is ``identity``'s."""
        if self._identity and (other := other_fields(self._identity, identity)):
            raise OptionError(
                f"--out {str(self._path)!r} was measured with another {' and '.join(other)}; "
                "give the same again, another FILE, or remove it"
            )
        self._identity = identity

    def save(self, result: Mapping[str, Any] | None = None) -> None:
        """Write what is there, and perhaps the result."""
        if self._path is not None:
            document = {"identity": self._identity, **(result or {}), "units": self.units}
            write_whole(self._path, json_line(document) + "\n")


def identity_of(engine: Engine, options: Workload, free: Sequence[str]) -> dict[str, Any]:
    """What measurements must share to stand in one file: all but the ``free`` options, and where data lies."""
    from selfspec._version import __version__
    from selfspec.measure.report import machine

    data = b"" if options.data is None else Path(options.data).read_bytes()
    return {
        "selfspec": __version__,
        "model": engine.name,
        "runtime": engine.runtime.name,
        "runs_on": engine.runtime.runs_on,
        "precision": engine.runtime.precision,
        "machine": machine(),
        "fingerprint": engine.fingerprint,
        "data": hashlib.sha256(data).hexdigest(),
        "options": {name: value for name, value in asdict(options).items() if name not in (*free, "data")},
    }


def _read(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        identity, units = found["identity"], found["units"]
        if not (isinstance(identity, dict) and identity and all(isinstance(unit, dict) for unit in units.values())):
            raise ValueError("its fields are something else")
    except OSError as error:
        raise OptionError(f"--out {str(path)!r} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OptionError(
            f"--out {str(path)!r} is there, but no profile; give another FILE, or remove it"
        ) from error
    return identity, units
