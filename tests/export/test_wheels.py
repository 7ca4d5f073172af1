"""Wheels of installed distributions: complete, for this machine only as far as they must be, and installable."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

import selfspec
from selfspec.errors import RuntimeMissingError
from selfspec.export import wheels
from selfspec.export.wheels import needed, write_wheel

ROOT = Path(__file__).parents[2]
WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: {}\nTag: py2-none-any\nTag: py3-none-any\n"


@pytest.fixture
def install(monkeypatch, tmp_path):
    """Put a distribution among the installed ones, as an installer would: files by their place in RECORD."""
    site = tmp_path / "lib" / "site"
    site.mkdir(parents=True)
    monkeypatch.syspath_prepend(site)
    places = {"scripts": str(tmp_path / "bin"), "data": str(tmp_path)}
    monkeypatch.setattr(wheels.sysconfig, "get_path", places.__getitem__)

    def put(name, version="1.0", requires=(), **files):
        info = f"{name}-{version}.dist-info"
        lines = ["Metadata-Version: 2.1", f"Name: {name.replace('_', '-')}", f"Version: {version}", *requires]
        files = {f"{info}/METADATA": "\n".join(lines), f"{info}/WHEEL": WHEEL} | files.pop("files", {})
        for file, text in {**files, f"{info}/RECORD": "\n".join(f"{file},," for file in files)}.items():
            path = Path(os.path.normpath(site / file))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return distribution(name)

    return put


def test_what_a_distribution_needs_is_followed_through_extras_and_markers(install):
    """Guards the closure: what a box would look for on an index must be there, and nothing that it would not."""
    here, nowhere = "python_version > '3'", "sys_platform == 'nowhere'"
    install("outer", requires=[f"Requires-Dist: In_Ner[more]>=1; {here}", f"Requires-Dist: other; {nowhere}"])
    install("in_ner", requires=["Requires-Dist: leaf; extra == 'more'", "Requires-Dist: outer"])
    install("leaf", requires=["Requires-Dist: torch; extra == 'gpu'"])
    assert [each.metadata["Name"] for each in needed(["outer"])] == ["in-ner", "leaf", "outer"]
    assert {"jinja2", "markupsafe"} == {each.metadata["Name"].lower() for each in needed(["jinja2"])}


def test_what_is_missing_or_too_old_is_one_line(install):
    """Guards boxes: a gap is found here, not on the hundredth of them."""
    install("outer", requires=["Requires-Dist: nothing-like-it>=2"])
    with pytest.raises(
        RuntimeMissingError, match=r"nothing-like-it, which outer needs, .* install 'nothing-like-it>=2'"
    ):
        needed(["outer"])
    install("newer", requires=["Requires-Dist: click<1"])
    with pytest.raises(RuntimeMissingError, match=r"click is installed in version .*, but newer needs <1"):
        needed(["newer"])


def test_a_wheel_has_every_file_in_its_place(install, tmp_path):
    """Guards the format: names, tags, hashes and modes; what installers make or note for themselves is left out."""
    info = "some_thing-1.0.dist-info"
    files = {
        "some_thing/__init__.py": "x = 1",
        "some_thing/__pycache__/__init__.cpython-311.pyc": "x",
        "some_thing.libs/libx.so": "x",
        "../../bin/made": "#!/here/python\n",
        "../../bin/own": "#!/here/bin/python3.11 -E\nprint()",
        "../../share/man/some.1": "man",
        f"{info}/entry_points.txt": "[console_scripts]\nmade = some_thing:run\n",
        f"{info}/licenses/LICENSE": "mine",
        f"{info}/INSTALLER": "pip",
        f"{info}/direct_url.json": '{"url": "file:///home/me", "dir_info": {}}',
    }
    of = install("some_thing", files=files)
    (tmp_path / "bin" / "own").chmod(0o755)
    path = write_wheel(of, tmp_path)
    assert path.name == "some_thing-1.0-py2.py3-none-any.whl"
    with zipfile.ZipFile(path) as archive:
        found = {name: archive.read(name).decode() for name in archive.namelist()}
        modes = {entry.filename: entry.external_attr >> 16 & 0o777 for entry in archive.infolist()}
    data = "some_thing-1.0.data"
    kept = {
        "some_thing/__init__.py",
        "some_thing.libs/libx.so",
        f"{data}/scripts/own",
        f"{data}/data/share/man/some.1",
    }
    kept |= {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    assert set(found) == kept
    assert found[f"{data}/scripts/own"] == "#!python\nprint()"
    assert (modes[f"{data}/scripts/own"], modes["some_thing/__init__.py"]) == (0o755, 0o644)
    record = {name: (digest, size) for name, digest, size in csv.reader(found[f"{info}/RECORD"].splitlines())}
    assert record.pop(f"{info}/RECORD") == ("", "")
    for name, (digest, size) in record.items():
        digested = base64.urlsafe_b64encode(hashlib.sha256(found[name].encode()).digest()).rstrip(b"=").decode()
        assert (digest, int(size)) == (f"sha256={digested}", len(found[name]))
    (tmp_path / "b").mkdir()
    assert write_wheel(of, tmp_path / "b").read_bytes() == path.read_bytes()


def test_what_cannot_be_packed_is_one_line(install, tmp_path):
    """Guards against wheels that would install nothing, or half of it."""
    of = install("half", files={"half/__init__.py": ""})
    Path(of.locate_file("half/__init__.py")).unlink()
    with pytest.raises(
        RuntimeMissingError, match=r"half is incomplete here, .*: No such file or directory; install it"
    ):
        write_wheel(of, tmp_path)
    link = {"link-1.0.dist-info/direct_url.json": '{"url": "file:///x", "dir_info": {"editable": true}}'}
    with pytest.raises(RuntimeMissingError, match="link is installed as editable, so no wheel can be made of it"):
        write_wheel(install("link", files=link), tmp_path)
    of = install("old")
    Path(of.locate_file("old-1.0.dist-info/RECORD")).unlink()
    with pytest.raises(RuntimeMissingError, match="old was not installed from a wheel"):
        write_wheel(of, tmp_path)
    assert not list(tmp_path.glob("*.whl"))


def test_this_package_is_packed_from_a_checkout_too(install, tmp_path):
    """Guards developers: an editable installation has only a pointer in RECORD, and the wheel must have it all."""
    of = install("selfspec", files={"_selfspec.pth": "/somewhere", "selfspec-1.0.dist-info/LICENSE": "Apache"})
    with zipfile.ZipFile(write_wheel(of, tmp_path)) as archive:
        found = set(archive.namelist())
    package = Path(selfspec.__file__).parent
    files = (path.relative_to(package) for path in package.rglob("*") if path.is_file())
    own = {f"selfspec/{path.as_posix()}" for path in files if path.suffix not in (".so", ".pyd", ".pyc")}
    assert {"selfspec/py.typed", "selfspec/export/run.sh", "selfspec/heads/README.md"} <= own
    cores = {name for name in found if name.startswith("selfspec/_native.") and not name.endswith(".pyi")}
    assert len(cores) == 1
    infos = {f"selfspec-1.0.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD", "LICENSE")}
    assert found == own | cores | infos


@pytest.mark.slow
def test_a_built_wheel_works_where_no_compiler_is(tmp_path):
    """Guards wheels: built from sources, free of leftovers, and used in a clean environment."""
    source, dist = tmp_path / "source", tmp_path / "dist"
    for name in ("src", "native"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "_native.*.so"))
    for name in (".gitignore", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    stale = source / "src" / "selfspec" / "_native.cpython-39-stale.so"
    stale.write_bytes(b"what an editable installation leaves")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", dist, source], check=True)
    (built,) = dist.glob("selfspec-*.whl")
    with zipfile.ZipFile(built) as archive:
        leftovers = [
            name for name in archive.namelist() if "stale" in name or name.endswith((".o", ".a", ".cpp", ".h"))
        ]
    assert leftovers == []
    for each in needed(["selfspec"]):
        if each.metadata["Name"] != "selfspec":
            write_wheel(each, dist)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    environment = {"PATH": "/nowhere", "HOME": str(tmp_path)}
    install = ["-m", "pip", "install", "--quiet", "--no-index", "--find-links", dist, "selfspec"]
    for command in (install, [ROOT / "tests" / "use_wheel.py"]):
        subprocess.run([python, *command], check=True, env=environment)
