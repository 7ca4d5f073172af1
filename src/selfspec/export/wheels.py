"""Wheels of what is installed here, made again from the files that each RECORD lists.

Neither a network nor a compiler is needed, and what a box gets is what runs here. The formats are those of the
Python Packaging User Guide: "Recording installed projects" and "Binary distribution format".
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from selfspec.errors import RuntimeMissingError
from selfspec.model.reading import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

OURS = "selfspec"
_NOT_PACKED = {"RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER", "REQUESTED", "direct_url.json"}  # of this place
_CORES = {".so", ".pyd"}  # of which a checkout may have several, for several Pythons
_TIME = (1980, 1, 1, 0, 0, 0)  # of every file, so that the same files make the same wheel


@dataclass(frozen=True)
class _Content:
    """One file of a wheel."""

    name: str
    data: bytes
    is_executable: bool = False


def needed(names: Iterable[str]) -> list[Distribution]:
    """The installed distributions of these names and all that they require here, by name.

    Raises RuntimeMissingError where one is missing or has a version that another does not accept.
    """
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(name), "selfspec bundle") for name in names]
    while waiting:
        wanted, by = waiting.pop()
        name = canonicalize_name(wanted.name)
        found[name] = _installed(wanted, by)
        for extra in ("", *wanted.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                waiting += [(other, name) for other in _requirements(found[name], extra)]
    return [found[name] for name in sorted(found)]


def write_wheel(of: Distribution, folder: Path) -> Path:
    """Write the wheel of an installed distribution into a folder.

    Raises RuntimeMissingError where its files are not as a wheel has put them there.
    """
    info = _info(of)
    contents = [*_recorded(of)] if _is_in_place(of) else _our_files(of)
    facts = next(each.data.decode() for each in contents if each.name == f"{info}/WHEEL")
    path = folder / f"{info.removesuffix('.dist-info')}-{_tag(facts)}.whl"
    record = io.StringIO()
    lines = csv.writer(record, lineterminator="\n")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for each in sorted(contents, key=lambda one: (one.name.startswith(info), one.name)):
            digest = base64.urlsafe_b64encode(hashlib.sha256(each.data).digest()).rstrip(b"=").decode()
            lines.writerow((each.name, f"sha256={digest}", len(each.data)))
            _add(archive, each)
        lines.writerow((f"{info}/RECORD", "", ""))
        _add(archive, _Content(f"{info}/RECORD", record.getvalue().encode()))
    return path


def _add(archive: zipfile.ZipFile, content: _Content) -> None:
    entry = zipfile.ZipInfo(content.name, _TIME)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = (0o100755 if content.is_executable else 0o100644) << 16
    archive.writestr(entry, content.data)


# -- which distributions ----------------------------------------------------------------------------------


def _installed(wanted: Requirement, by: str) -> Distribution:
    try:
        found = distribution(wanted.name)
    except PackageNotFoundError:
        raise RuntimeMissingError(
            f"{wanted.name}, which {by} needs, is not installed here; install it: pip install '{wanted}'"
        ) from None
    if not wanted.specifier.contains(found.version, prereleases=True):
        raise RuntimeMissingError(
            f"{wanted.name} is installed in version {found.version}, but {by} needs {wanted.specifier}; install "
            f"that first: pip install '{wanted}'"
        )
    return found


def _requirements(of: Distribution, extra: str) -> Iterator[Requirement]:
    """What a distribution, or one of its extras, requires on this machine."""
    for line in of.requires or ():
        wanted = Requirement(line)
        if wanted.marker is None:
            if not extra:
                yield wanted
        elif wanted.marker.evaluate({"extra": extra}):
            yield wanted


# -- their files ------------------------------------------------------------------------------------------


def _recorded(of: Distribution) -> Iterator[_Content]:
    """The files of RECORD under the names that they have in a wheel; those that an installer makes are left out."""
    made = {entry.name for entry in of.entry_points if entry.group in ("console_scripts", "gui_scripts")}
    for listed in of.files or ():
        path = _path(of, listed)
        if "__pycache__" in path.parts or path.suffix == ".pyc":
            continue
        if listed.parts[0].endswith(".dist-info") and listed.name in _NOT_PACKED:
            continue
        if path.stem in made and not path.is_relative_to(_path(of, "")):
            continue
        name, is_script = _place(of, path)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise RuntimeMissingError(
                f"{of.metadata['Name']} is incomplete here, {quoted(path)}: {error.strerror}; install it again"
            ) from error
        # an installer has put its own Python there
        data = re.sub(rb"\A#![^\n]*python[^\n]*", b"#!python", data) if is_script else data
        yield _Content(name, data, os.access(path, os.X_OK))


def _place(of: Distribution, path: Path) -> tuple[str, bool]:
    """The name of a file in a wheel, and whether it is a script."""
    root = _path(of, "")
    if path.is_relative_to(root):
        return path.relative_to(root).as_posix(), False
    data = f"{_info(of).removesuffix('.dist-info')}.data"
    for kind in ("scripts", "data"):
        folder = Path(os.path.normpath(sysconfig.get_path(kind)))
        if path.is_relative_to(folder):
            return f"{data}/{kind}/{path.relative_to(folder).as_posix()}", kind == "scripts"
    raise RuntimeMissingError(
        f"{of.metadata['Name']} has {quoted(path)} outside of {quoted(sys.prefix)}; install it again"
    )


# -- this package, which may lie in a checkout ------------------------------------------------------------


def _is_in_place(of: Distribution) -> bool:
    """Whether what runs are the files of RECORD; else this package runs from a checkout (editable)."""
    if canonicalize_name(of.metadata["Name"]) == OURS:
        return _package() / "__init__.py" in (_path(of, listed) for listed in of.files or ())
    if json.loads(of.read_text("direct_url.json") or "{}").get("dir_info", {}).get("editable"):
        raise RuntimeMissingError(_not_a_wheel(of, "is installed as editable"))
    return True


def _our_files(of: Distribution) -> list[_Content]:
    """What runs here of this package: its sources, its native core, and what RECORD has of its metadata."""
    package, core = _package(), find_spec(f"{OURS}._native")
    own = None if core is None or core.origin is None else Path(os.path.normpath(core.origin))
    files = [
        path
        for path in package.rglob("*")
        if path.is_file() and path.parent.name != "__pycache__" and (path.suffix not in _CORES or path == own)
    ]
    contents = [_Content(f"{OURS}/{path.relative_to(package).as_posix()}", path.read_bytes()) for path in files]
    return contents + [each for each in _recorded(of) if each.name.startswith(f"{_info(of)}/")]


def _package() -> Path:
    return Path(os.path.normpath(Path(__file__).parents[1]))


# -- names ------------------------------------------------------------------------------------------------


def _path(of: Distribution, listed: str | os.PathLike[str]) -> Path:
    """Where a file of RECORD lies; links on the way there stay."""
    return Path(os.path.normpath(str(of.locate_file(listed))))


def _info(of: Distribution) -> str:
    """The folder NAME-VERSION.dist-info."""
    parts = [listed.parts for listed in of.files or () if listed.name == "WHEEL"]
    found = next((first for first, *rest in parts if rest == ["WHEEL"] and first.endswith(".dist-info")), None)
    if found is None:
        raise RuntimeMissingError(_not_a_wheel(of, "was not installed from a wheel"))
    return found


def _tag(facts: str) -> str:
    """The compressed tag of a wheel's name, from the tags in its WHEEL."""
    tags = [line.partition(":")[2].strip().split("-") for line in facts.splitlines() if line.startswith("Tag:")]
    return "-".join(".".join(dict.fromkeys(parts)) for parts in zip(*tags, strict=True))


def _not_a_wheel(of: Distribution, why: str) -> str:
    return (
        f"{of.metadata['Name']} {why}, so no wheel can be made of it; install it with pip from a wheel or an index"
    )
