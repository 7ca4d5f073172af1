"""What the installed package asks for, by its own metadata, and what is there of it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from selfspec.machine import version_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OURS = "selfspec"
_FOR_DEVELOPERS = ("dev", "browser")


@dataclass(frozen=True)
class Need:
    """A package that is asked for, and the version that is there; None: none is."""

    package: str
    wanted: str
    version: str | None

    @property
    def is_met(self) -> bool:
        """Whether it is there in a version that will do."""
        wanted = Requirement(f"{self.package}{self.wanted}")
        return self.version is not None and wanted.specifier.contains(self.version, prereleases=True)

    def __str__(self) -> str:
        return f"{self.package} {self.version or 'missing'}" + ("" if self.is_met else f" (needs {self.wanted})")


def base_needs() -> Sequence[Need]:
    """Of the package itself."""
    return _needs("")


def extra_needs() -> Mapping[str, Sequence[Need]]:
    """Of every optional extra that users meet, extras that it is made of included."""
    try:
        names = metadata(OURS).get_all("Provides-Extra") or []
    except PackageNotFoundError:
        names = []
    return {name: _needs(name) for name in sorted(names) if name not in _FOR_DEVELOPERS}


def install_line(extra: str) -> str:
    """What installs an extra."""
    return f"pip install '{OURS}[{extra}]'"


def _needs(extra: str) -> list[Need]:
    found: dict[str, Need] = {}
    waiting, seen = [extra], set[str]()
    while waiting:
        seen.add(name := waiting.pop())
        for wanted in _declared(name):
            if wanted.name == OURS:
                waiting += wanted.extras - seen
            else:
                found[wanted.name] = Need(wanted.name, str(wanted.specifier), version_of(wanted.name))
    return sorted(found.values(), key=lambda need: need.package)


def _declared(extra: str) -> list[Requirement]:
    """The requirements of one extra, "" for the package itself, that count on this system."""
    try:
        lines = requires(OURS) or []
    except PackageNotFoundError:  # sources on the path, not installed
        lines = []
    wanted = map(Requirement, lines)
    return [r for r in wanted if _counts(r, extra) and (not extra or not _counts(r, ""))]


def _counts(wanted: Requirement, extra: str) -> bool:
    return wanted.marker is None or wanted.marker.evaluate({"extra": extra})
