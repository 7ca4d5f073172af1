"""The file of ``selfspec profile --out``: what was measured so far, so that a later run goes on with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfspec.documents import FORMAT, json_line, other_fields, require_format, write_whole
from selfspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping


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
            document = {"format": FORMAT, "identity": self._identity, **(result or {}), "units": self.units}
            write_whole(self._path, json_line(document) + "\n")


def _read(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        require_format(found, f"--out {str(path)!r}")
        identity, units = found["identity"], found["units"]
        if not (isinstance(identity, dict) and identity and all(isinstance(unit, dict) for unit in units.values())):
            raise ValueError("its fields are something else")
    except OSError as error:
        raise OptionError(f"--out {str(path)!r} cannot be read: {error.strerror}") from error
    except OptionError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OptionError(
            f"--out {str(path)!r} is there, but no profile; give another FILE, or remove it"
        ) from error
    return identity, units
