"""What drafting ahead would give on machines that are not here: `selfspec.measure.overlap` at stated numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from selfspec.measure.html import html_table
from selfspec.measure.overlap import Predicted, Setting, predict

_COUNTS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Simulated:
    """A setting and what it gives, beside other numbers of outcomes; a notebook shows it as a table."""

    setting: Setting
    found: Predicted
    others: tuple[tuple[Setting, Predicted], ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; ``table`` has the other numbers of outcomes."""
        own = _document(self.setting, self.found)
        return {**asdict(self.setting), **own, "table": [_document(*row) for row in self.others]}

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Outcomes, hit rate, drafts ahead in target passes, speedup; as text."""
        return [
            (f"{other.outcomes}", f"{made.hit_rate:.2f}", f"{made.ahead:.2f}", f"{made.speedup:.2f}x")
            for other, made in self.others
        ]

    def _repr_html_(self) -> str:
        setting, found = self.setting, self.found
        caption = (
            f"Ahead, α {setting.alpha:g}, γ {setting.gamma}, c {setting.c:g}, {setting.outcomes} outcomes: "
            f"{found.speedup:.2f}x, without {found.speedup_without:.2f}x"
        )
        return html_table(caption, ("outcomes", "hits", "ahead", "speedup"), self.rows)


def simulate(alpha: float, **setting: Any) -> Simulated:
    """What drafting while the target verifies is worth; ``setting`` are the fields of `Setting`.

    >>> round(simulate(0.8, c=0.1).found.gain, 2)
    1.22

    Raises
    ------
    OptionError
        A value outside its range.
    """
    chosen = Setting(alpha, **setting)
    others = (replace(chosen, outcomes=count) for count in _COUNTS)
    return Simulated(chosen, predict(chosen), tuple((other, predict(other)) for other in others))


def _document(setting: Setting, found: Predicted) -> dict[str, Any]:
    return {
        "outcomes": setting.outcomes,
        "fan_out": setting.fan,
        **asdict(found),
        "speedup": found.speedup,
        "speedup_without": found.speedup_without,
        "gain": found.gain,
    }
