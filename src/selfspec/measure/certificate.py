"""What `certify` found: one `Check` per claim, and the certificate that holds them all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCHEMA = 1
"""Version of the certificate's fields; it rises when one changes its meaning or goes."""


@dataclass(frozen=True)
class Check:
    """One claim: ``passed`` None where it does not apply. ``summary`` is for people, ``details`` for programs."""

    name: str
    passed: bool | None
    summary: str
    details: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "name": self.name,
            "passed": self.passed,
            "summary": self.summary,
            "seconds": self.seconds,
            **self.details,
        }


@dataclass(frozen=True)
class Certificate:
    """The checks, and what they were made on (``subject``: model, machine, versions, drafters, settings)."""

    subject: Mapping[str, Any]
    checks: Sequence[Check]

    @property
    def failed(self) -> list[str]:
        """The names of the checks that found a bug."""
        return [check.name for check in self.checks if check.passed is False]

    @property
    def passed(self) -> bool:
        """Whether no check found a bug."""
        return not self.failed

    @property
    def verdict(self) -> str:
        """In words."""
        if self.passed:
            return "pass: speculation changes nothing here"
        return f"FAIL: {', '.join(self.failed)}; speculation is not lossless here, please report it"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "schema": SCHEMA,
            "verdict": "pass" if self.passed else "fail",
            "failed": self.failed,
            **self.subject,
            "seconds": sum(check.seconds for check in self.checks),
            "checks": [check.to_dict() for check in self.checks],
        }
