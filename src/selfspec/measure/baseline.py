"""What got slower since an earlier benchmark."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

_SHAPING = ("data", "limit", "max_new_tokens", "temperature", "ignore_eos")
_SAME = ("model", "runtime", "precision", "baseline")


@dataclass(frozen=True)
class Change:
    """A ratio now ÷ the same ratio then, with an interval that covers both of theirs."""

    task: str
    column: str
    now: float
    before: float
    low: float
    high: float
    is_ours: bool

    @property
    def is_worse(self) -> bool:
        """A draft of ours lost speed against the baseline, or the baseline lost against another program."""
        return self.high < 1.0 if self.is_ours else self.low > 1.0


def read_baseline(path: str) -> dict[str, Any]:
    """An earlier document: the last line of `bench --json`, or the file of `--out`.

    Raises OptionError for anything else.
    """
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise OptionError(
            f"the baseline {path!r} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error
    try:
        document = json.loads(text.splitlines()[-1]) if text else None
    except ValueError:
        document = None
    if not isinstance(document, dict) or not _is_whole(document.get("ratios")):
        raise OptionError(
            f"the baseline {path!r} is no benchmark; give what `selfspec bench --json` or --out wrote"
        )
    return document


def _is_whole(ratios: object) -> bool:
    if not isinstance(ratios, dict):
        return False
    rows = [row for row in ratios.values() if isinstance(row, dict)]
    cells = [cell for row in rows for cell in row.values()]
    return len(rows) == len(ratios) and all(
        isinstance(cell, dict) and all(_is_positive(cell.get(name)) for name in ("median", "low", "high"))
        for cell in cells
    )


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 < value < math.inf


def require_same(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise OptionError if the two measured different things."""
    for name in _SAME:
        if name in before and before[name] != now[name]:
            raise OptionError(
                f"the baseline was measured with {name} {before[name]!r}, this is {now[name]!r}; "
                "compare like with like"
            )


def other_options(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Options that shape the ratios and differ between the two: what changed may be due to them."""
    then = before.get("options", {})
    return [name for name in _SHAPING if name in then and then[name] != now["options"][name]]


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """Every ratio that both documents have.

    The interval of the quotient is [low now ÷ high then, high now ÷ low then]: wider than need be, so that
    what it excludes is excluded. The baseline's own tokens per second are not compared, since no pair of runs
    joins the two days; a rival in both documents is the yardstick for that.
    """
    found = []
    for task, columns in now["ratios"].items():
        for column, cell in columns.items():
            if (old := before["ratios"].get(task, {}).get(column)) is None:
                continue
            found.append(
                Change(
                    task,
                    column,
                    now=cell["median"],
                    before=old["median"],
                    low=cell["low"] / old["high"],
                    high=cell["high"] / old["low"],
                    is_ours=bool(now["columns"][column]["is_ours"]),
                )
            )
    return found
