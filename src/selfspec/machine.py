"""The machine and the software that something was measured on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from selfspec.runtime.cores import available_processors

if TYPE_CHECKING:
    from collections.abc import Mapping

_PACKAGES = ("numpy", "torch", "transformers")


def machine() -> Mapping[str, Any]:
    """Where something was measured: what another reader needs to judge the numbers."""
    return {
        "platform": platform.platform(terse=True),
        "processor": processor(),
        "cores": available_processors(),
        "python": platform.python_version(),
        **{name: found for name in _PACKAGES if (found := version_of(name))},
    }


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
