"""The machine and the software that something was measured on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version


def processor() -> str:
    """The name of the processor, as far as the system tells."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
            return next(names, platform.processor() or platform.machine())
    except OSError:
        return platform.processor() or platform.machine()


def version_of(package: str) -> str | None:
    """The installed version of a package, None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
