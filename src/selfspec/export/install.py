"""Runs on the box: makes the virtual environment of a bundle from its wheels, once, without a network.

It needs nothing of selfspec, and is read by old Pythons too, so that they can say what is missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NoReturn

MACHINE, SUMS, WHEELS = "machine.json", "SHA256SUMS", "wheels"


def machine() -> dict[str, str]:
    """What wheels depend on: ``abi`` says it all, the others are for people."""
    return {
        "python": "{} {}.{}".format(platform.python_implementation(), *sys.version_info[:2]),
        "system": f"{platform.system()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()).strip() or f"macOS {platform.mac_ver()[0]}",
        "abi": sysconfig.get_config_var("SOABI") or "",
    }


def main() -> None:
    """``install.py VENV``: the environment is there and complete afterwards, or one line says why not."""
    bundle, target = Path(__file__).resolve().parent, Path(sys.argv[1])
    _require_machine(json.loads((bundle / MACHINE).read_text(encoding="utf-8")))
    import fcntl

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = open(str(target) + ".lock", "w", encoding="utf-8")  # noqa: SIM115 (until the process ends)
    except OSError as error:
        _fail(f"cannot write {target.parent}: {error.strerror}; set SELFSPEC_VENV to a folder that can be written")
    fcntl.flock(lock, fcntl.LOCK_EX)
    ready = target / "ready"
    if ready.exists() and ready.read_text(encoding="utf-8").strip() == str(target):
        return  # another process was faster
    _check_wheels(bundle)
    _say(f"installing from {bundle / WHEELS} into {target}, once")
    _install(bundle, target)
    ready.write_text(str(target) + "\n", encoding="utf-8")


def _require_machine(needs: dict[str, str]) -> None:
    """End, or go on in another Python, where this one cannot use the wheels."""
    here = machine()
    if here["abi"] == needs["abi"]:
        return
    wanted = shutil.which("python" + needs["python"].split()[-1])
    if wanted and not os.environ.get("PYTHON") and os.path.realpath(wanted) != os.path.realpath(sys.executable):
        os.environ["PYTHON"] = wanted
        os.execv(wanted, [wanted, *sys.argv])  # noqa: S606
    wants, has = (f"{each['python']} on {each['system']} ({each['abi']})" for each in (needs, here))
    _fail(
        f"this bundle needs {wants}, and {sys.executable} is {has}; set PYTHON to the right one, or make "
        "the bundle on such a machine"
    )


def _check_wheels(bundle: Path) -> None:
    for line in (bundle / SUMS).read_text(encoding="utf-8").splitlines():
        noted, name = line.split("  ", 1)
        if not name.startswith(WHEELS + "/"):
            continue  # the model's own manifest is checked at every load
        try:
            found = hashlib.sha256((bundle / name).read_bytes()).hexdigest()
        except OSError as error:
            _fail(f"cannot read {bundle / name}: {error.strerror}; copy the bundle again")
        if found != noted:
            _fail(f"{bundle / name} is damaged; copy the bundle again")


def _install(bundle: Path, target: Path) -> None:
    """A new environment, filled by the bundle's own pip: many systems come without one."""
    import venv

    venv.create(target, clear=True, symlinks=True)
    python, wheels = str(target / "bin" / "python"), bundle / WHEELS
    pip = str(next(wheels.glob("pip-*.whl")) / "pip")
    options = ["--isolated", "--quiet", "--disable-pip-version-check", "--no-index", "--find-links", str(wheels)]
    # all of them: selfspec may have been installed with an extra
    chosen = [str(wheel) for wheel in sorted(wheels.glob("*.whl")) if not wheel.name.startswith("pip-")]
    needs = json.loads((bundle / MACHINE).read_text(encoding="utf-8"))
    for command in ([pip, "install", *options, *chosen], ["-c", "import numpy, tokenizers, selfspec._native"]):
        done = subprocess.run([python, "-I", *command], stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)  # noqa: S603
        if done.returncode:
            _fail(
                f"the wheels do not run here; they are from {needs['system']} with {needs['libc']}, here is "
                f"{machine()['libc']}"
            )


def _say(line: str) -> None:
    sys.stderr.write(f"run.sh: {line}\n")


def _fail(line: str) -> NoReturn:
    _say(line)
    sys.exit(2)


if __name__ == "__main__":
    main()
