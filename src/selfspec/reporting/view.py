"""What a page consists of, ready to be rendered: texts, tables, plots. Nothing here knows results."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, TypeAlias

_NUMBER = 6  # letters of a number
Tone: TypeAlias = Literal["", "gain", "loss", "level"]


@dataclass(frozen=True)
class Cell:
    """A cell of a table. ``share`` (0 to 1) is how strongly its ``tone`` colours it; ``is_best`` frames it."""

    text: str
    tone: Tone = ""
    share: float = 0.0
    is_best: bool = False


@dataclass(frozen=True)
class Table:
    """A table; the first cell of a row is its header. A coloured one is a heat map."""

    kind: ClassVar[str] = "table"
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    @property
    def is_heat_map(self) -> bool:
        """Whether its cells are coloured."""
        return any(cell.tone for row in self.rows for cell in row)

    @property
    def has_names(self) -> bool:
        """Whether its rows have names rather than numbers."""
        return any(len(row[0].text) > _NUMBER for row in self.rows)


@dataclass(frozen=True)
class Plot:
    """A drawing, what it shows in a sentence, and its numbers."""

    kind: ClassVar[str] = "plot"
    svg: str
    says: str
    table: Table


@dataclass(frozen=True)
class Words:
    """Paragraphs."""

    kind: ClassVar[str] = "words"
    paragraphs: tuple[str, ...]


@dataclass(frozen=True)
class Writing:
    """Who wrote each token of an answer: (text, source) of each, and the runs of one source."""

    column: str
    counts: str
    tokens: tuple[tuple[str, str], ...]
    table: Table


@dataclass(frozen=True)
class Sample:
    """A question, and answers to it."""

    kind: ClassVar[str] = "sample"
    title: str
    prompt: str
    writings: tuple[Writing, ...]


Part: TypeAlias = Table | Plot | Words | Sample


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading; ``name`` is its anchor. What ``is_long`` comes last."""

    name: str
    title: str
    parts: tuple[Part, ...]
    is_long: bool = False


@dataclass(frozen=True)
class Advice:
    """What to do, in a sentence, and why. ``tone``: whether that is to draft, not to, or open."""

    headline: str
    reasons: tuple[str, ...]
    tone: Literal["gain", "loss", "open"]


@dataclass(frozen=True)
class Missing:
    """What a page does not show, and the command that makes it."""

    what: str
    command: str


@dataclass(frozen=True)
class Page:
    """All of it."""

    title: str
    advice: Advice
    facts: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]
    missing: tuple[Missing, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: what to do, why, and what is missing; ``speculate`` None where that is open."""
        return {
            "title": self.title,
            "speculate": {"gain": True, "loss": False, "open": None}[self.advice.tone],
            "recommendation": self.advice.headline,
            "reasons": list(self.advice.reasons),
            "missing": [asdict(missing) for missing in self.missing],
        }


def table(caption: str, header: tuple[str, ...], rows: list[tuple[str | Cell, ...]], note: str = "") -> Table:
    """A table from texts and cells."""
    cells = tuple(tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in row) for row in rows)
    return Table(caption, header, cells, note)
