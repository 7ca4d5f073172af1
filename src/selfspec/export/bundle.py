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
from selfspec.export.bundled_draft import bits_of_draft
from selfspec.export.install import MACHINE, SUMS, WHEELS, machine
from selfspec.export.wheels import OURS, needed, write_wheel
from selfspec.model.packed_folder import write_packed
from selfspec.model.reading import expanded, one_line, quoted, read_json
from selfspec.runtime.cpu_model import precision_of
from selfspec.runtime.packed import find_packed
from selfspec.runtime.packing import KIND_OF_BITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
{profile}{draft}    run.sh         installs once, then runs selfspec with this model
    SHA256SUMS     of every file: sha256sum --check SHA256SUMS
"""
_PROFILE = (
    "    profile.json   what `selfspec profile` measured, for run.sh to begin with on boxes like that machine\n"
)
_DRAFT = "    draft          who drafts where nobody says --draft: {}\n"


@dataclass(frozen=True)
class Extras:
    """What a bundle may have beside the model: a file of ``selfspec profile --out``, and who drafts by default."""

    profile: str | os.PathLike[str] | None = None
    draft: str | None = None


@dataclass(frozen=True)
class Bundle:
    """What a finished bundle holds; ``bytes`` of all files, ``model_bytes`` of the packed weights.

    ``draft_bits`` are those in which the weights are there once more, for the draft.
    """

    folder: Path
    model: str
    precision: str
    draft_bits: tuple[int, ...]
    wheels: tuple[str, ...]
    model_bytes: int
    bytes: int


def make_bundle(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    bits: int | None = None,
    extras: Extras = Extras(),
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
    extras
        The profile must be of these weights. The draft, with its options as in ``quantized:draft_bits=4``, brings
        the weights in the bits that it drafts in.
    told
        Called with a line about what takes time, and with the weights packed so far and in all.

    Raises
    ------
    SelfspecError
        As `find_packed`, and for a wrong ``out`` or wrong ``extras``, or an environment that no wheels can be made
        of.
    """
    notify, progress = told
    if os.name != "posix":
        raise OptionError("bundles are made on Linux and macOS; here, install selfspec from a wheel")
    target = checked_target(expanded(out))
    serves = all(map(find_spec, _SERVER))
    distributions = needed((f"{OURS}[serve]" if serves else OURS, "pip"))
    packed = find_packed(model, bits, notify=notify, progress=progress)
    if extras.profile is not None:
        _check_profile(expanded(extras.profile), packed)
    drafted = (
        () if extras.draft is None else bits_of_draft(model, bits, extras.draft, extras.profile is not None, told)
    )
    with aside(target) as scratch:
        _copy_model(scratch / "model", packed, {each: find_packed(model, each) for each in drafted})
        notify(f"making {len(distributions)} wheels of what is installed here")
        (scratch / WHEELS).mkdir()
        wheels = tuple(write_wheel(each, scratch / WHEELS).name for each in distributions)
        precision = precision_of(packed.config, packed.weights)
        _write_scripts(scratch, (packed.name, precision), extras)
        sizes = _size(scratch / "model", "packed.bin"), _size(scratch)
    return Bundle(target, packed.name, precision, drafted, wheels, *sizes)


def _copy_model(folder: Path, packed: PackedModel, lighter: dict[int, PackedModel]) -> None:
    """Make a folder of a model, with its weights in fewer bits beside those that it runs in."""
    folder.mkdir()
    others = [(KIND_OF_BITS[bits], made.folder) for bits, made in lighter.items()]
    write_packed(packed.folder, packed.texts, folder, packed.name, others)
    for bits, made in ((None, packed), *lighter.items()):
        if find_packed(folder, bits).fingerprint != made.fingerprint:
            raise CorruptModelError(
                f"{quoted(made.folder)} was copied with other bytes; try again, and check the disk"
            )


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


def _write_scripts(folder: Path, model: tuple[str, str], extras: Extras) -> None:
    """What runs on the box and what people there read; ``model`` is its name and its precision."""
    if extras.profile is not None:
        shutil.copyfile(expanded(extras.profile), folder / "profile.json")
    if extras.draft is not None:
        (folder / "draft").write_text(extras.draft + "\n", encoding="utf-8")
    for script in _SCRIPTS:
        (folder / script).write_text(resources.files(__package__).joinpath(script).read_text(encoding="utf-8"))
    (folder / "run.sh").chmod(0o755)
    (folder / MACHINE).write_text(json.dumps(needs := machine(), indent=1))
    facts = {
        "name": model[0],
        "precision": model[1],
        "version": __version__,
        "size": round(_size(folder) / 1e6),
        "profile": "" if extras.profile is None else _PROFILE,
        "draft": "" if extras.draft is None else _DRAFT.format(extras.draft),
        **needs,
    }
    (folder / "README.txt").write_text(_README.format(**facts), encoding="utf-8")
    _note_sums(folder)


def _size(folder: Path, pattern: str = "*") -> int:
    return sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file())


def _note_sums(folder: Path) -> None:
    """As sha256sum writes them."""
    lines = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            lines.append(f"{file_digest(file, 'sha256').hexdigest()}  {path.relative_to(folder).as_posix()}\n")
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")
