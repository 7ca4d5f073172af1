"""Quantities as people write them: bytes (24GB, 24GiB), tokens (32k), weights (0.5B), ratios."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from selfspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

_BYTES = (
    {"B": 1}
    | {f"{p}B": 1000**i for i, p in enumerate("kMGT", 1)}
    | {f"{p}iB": 1024**i for i, p in enumerate("KMGT", 1)}
)
_TOKENS = {"": 1, "k": 1024}  # a context of "32k" has 32,768
_WEIGHTS = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9}
_MOST = 2**60


def bytes_of(name: str, value: str | int) -> int:
    """Bytes: a whole number, or a text with a unit. Raises OptionError, in which the value is called ``name``."""
    units = ", ".join(_BYTES)
    return _number(name, value, _BYTES, f"a number of bytes with its unit ({units}), such as 24GB or 24GiB", 0)


def tokens_of(name: str, value: str | int) -> int:
    """Tokens, at least 1; k is 1,024, as contexts are named. Raises OptionError."""
    return _number(name, value, _TOKENS, "a number of tokens from 1, such as 4096 or 32k (k is 1,024)", 1)


def weights_of(name: str, value: str | int) -> int:
    """Weights of a model, at least 1; B is 10^9. Raises OptionError."""
    return _number(name, value, _WEIGHTS, "a number of weights, such as 500M or 0.5B", 1)


def _number(name: str, value: str | int, units: dict[str, int], allowed: str, least: int) -> int:
    found = -1
    if isinstance(value, int) and not isinstance(value, bool):
        found = value
    elif isinstance(value, str) and (match := re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)", value, re.ASCII)):
        amount, unit = match.groups()
        exact = float(amount) * units.get(unit, -1)
        if exact == int(exact) or "." in amount:
            found = int(exact)
    if not least <= found <= _MOST:
        raise OptionError(f"{name} is {str(value)[:40]!r}; it must be {allowed}")
    return found


def size(number: int) -> str:
    """A number of bytes, for people."""
    for unit in ("TB", "GB", "MB", "kB"):
        if number >= _BYTES[unit]:
            return f"{number / _BYTES[unit]:.1f} {unit}"
    return f"{number} B"


def ratio(cell: Mapping[str, Any] | None) -> str:
    """A `Ratio` with its interval and what it decides; "-" where there is none."""
    if cell is None:
        return "-"
    mark = "?" if cell["verdict"] == "undecided" else " "
    return f"{cell['median']:.2f} [{cell['low']:.2f}, {cell['high']:.2f}]{mark}"


def number(value: float | None, scale: float, form: str) -> str:
    """A number; "-" where it is not known."""
    return "-" if value is None else format(value * scale, form)
