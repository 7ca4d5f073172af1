"""A folder for boxes without a network: wheels, packed weights, and a script that runs them."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import file_digest
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from selfspec._version import __version__
from selfspec.documents import require_format
from selfspec.drafters.prior import prior_of
from selfspec.errors import CorruptModelError, ModelError, OptionError
from selfspec.export.install import MACHINE, SUMS, WHEELS, machine
from selfspec.export.wheels import OURS, needed, write_wheel
from selfspec.model.packed_folder import write_packed
from selfspec.model.reading import expanded, one_line, quoted, read_json
from selfspec.runtime.cpu_model import precision_of
from selfspec.runtime.packed import find_packed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from importlib.metadata import Distribution

    from selfspec.runtime.packed import PackedModel

_SCRIPTS = ("run.sh", "install.py")
_SERVER = ("starlette", "uvicorn", "pydantic", "prometheus_client")  # what says that the extra is installed
_README = """\
{name} for selfspec {version}: {precision}, {size} MB with all that it needs

    ./run.sh "Name three rivers in Portugal."
    ./run.sh chat
    ./run.sh batch prompts.jsonl answers.jsonl
    ./run.sh generate --help
    ./run.sh serve                    if the extra of that name was installed where the bundle was made

Nothing is fetched from a network, and no compiler is needed. The first run makes .venv beside run.sh (or where
SELFSPEC_VENV says); later runs start at once.

Needs   {python} on {system} ({libc}, or newer); PYTHON names it if python3 is another one.
        Other Pythons and machines need a bundle that was made there.

    wheels/        selfspec, what it requires, and pip
    model/         weights packed for the native core, and the tokenizer; `--model .../model` loads it anywhere
{profile}    run.sh         installs once, then runs selfspec with this model
    SHA256SUMS     of every file: sha256sum --check SHA256SUMS
"""
_PROFILE = (
    "    profile.json   what `selfspec profile` measured, for run.sh to begin with on boxes like that machine\n"
)


@dataclass(frozen=True)
class Bundle:
    """What a finished bundle holds; ``bytes`` of all files, ``model_bytes`` of the packed weights."""

    folder: Path
    model: str
    precision: str
    wheels: tuple[str, ...]
    model_bytes: int
    bytes: int


def make_bundle(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    bits: int | None = None,
    profile: str | os.PathLike[str] | None = None,
    *,
    told: tuple[Callable[[str], None], Callable[[int, int], None]],
) -> Bundle:
    """Write a bundle of a model; it appears whole, by one rename.

    Parameters
    ----------
    model, bits
        As for `find_packed`.
    out
        A folder that does not exist yet.
    profile
        A file of ``selfspec profile --out``, measured on these weights.
    told
        Called with a line about what takes time, and with the weights packed so far and in all.

    Raises
    ------
    SelfspecError
        As `find_packed`, and for a wrong ``out`` or ``profile``, or an environment that no wheels can be made of.
    """
    notify, progress = told
    if os.name != "posix":
        raise OptionError("bundles are made on Linux and macOS; here, install selfspec from a wheel")
    target = checked_target(expanded(out))
    serves = all(map(find_spec, _SERVER))
    distributions = needed((f"{OURS}[serve]" if serves else OURS, "pip"))
    packed = find_packed(model, bits, notify=notify, progress=progress)
    if profile is not None:
        _check_profile(expanded(profile), packed)
    with aside(target) as scratch:
        found = _fill(scratch, packed, distributions, profile, notify)
    return Bundle(target, *found)


@contextmanager
def aside(target: Path) -> Iterator[Path]:
    """A folder that becomes ``target`` by one rename if all goes well, and is gone if not."""
    try:
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            yield scratch
            scratch.chmod(0o755)
            scratch.rename(target)
        finally:  # of an interruption too; after the rename there is nothing to remove
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        why = one_line(error.strerror or error)
        raise ModelError(f"cannot write {quoted(target)}: {why}; free some space, or name another --out") from error


def checked_target(target: Path) -> Path:
    """Raise OptionError where nothing can be made at ``target``; its absolute path."""
    target = target.absolute()
    if os.path.lexists(target):
        raise OptionError(f"--out {quoted(target)} is there already; name a new folder, or remove it")
    if not os.access(target.parent, os.W_OK):
        why = "no permission" if target.parent.is_dir() else "its folder does not exist"
        raise OptionError(f"--out {quoted(target)} cannot be written: {why}")
    return target


def _check_profile(path: Path, packed: PackedModel) -> None:
    found = read_json(path)
    require_format(found, f"--profile {quoted(path)}")
    try:
        of = found["identity"]["fingerprint"]
        prior_of(found)  # boxes will begin with it
    except (LookupError, TypeError, ValueError, AttributeError):
        raise OptionError(
            f"--profile {quoted(path)} is no finished file of `selfspec profile --out`; give one, or leave it out"
        ) from None
    if of != packed.fingerprint:
        raise OptionError(
            f"--profile {quoted(path)} belongs to other weights or bits; run `selfspec profile --out` with these"
        )


def _fill(
    folder: Path,
    packed: PackedModel,
    distributions: list[Distribution],
    profile: str | os.PathLike[str] | None,
    notify: Callable[[str], None],
) -> tuple[str, str, tuple[str, ...], int, int]:
    """Write everything; gives the facts of a `Bundle`."""
    for name in ("model", WHEELS):
        (folder / name).mkdir()
    write_packed(packed.folder, packed.texts, folder / "model", packed.name)
    if find_packed(folder / "model").fingerprint != packed.fingerprint:
        raise CorruptModelError(
            f"{quoted(packed.folder)} was copied with other bytes; try again, and check the disk"
        )
    notify(f"making {len(distributions)} wheels of what is installed here")
    wheels = tuple(write_wheel(each, folder / WHEELS).name for each in distributions)
    if profile is not None:
        shutil.copyfile(expanded(profile), folder / "profile.json")
    for script in _SCRIPTS:
        (folder / script).write_text(resources.files(__package__).joinpath(script).read_text(encoding="utf-8"))
    (folder / "run.sh").chmod(0o755)
    (folder / MACHINE).write_text(json.dumps(needs := machine(), indent=1))
    precision = precision_of(packed.config, packed.weights)
    weights = (folder / "model" / "packed.bin").stat().st_size
    facts = {
        "version": __version__,
        "size": round(_size(folder) / 1e6),
        "profile": "" if profile is None else _PROFILE,
    }
    facts |= {"name": packed.name, "precision": precision, **needs}
    (folder / "README.txt").write_text(_README.format(**facts), encoding="utf-8")
    _note_sums(folder)
    return packed.name, precision, wheels, weights, _size(folder)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _note_sums(folder: Path) -> None:
    """As sha256sum writes them."""
    lines = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            lines.append(f"{file_digest(file, 'sha256').hexdigest()}  {path.relative_to(folder).as_posix()}\n")
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")
