"""Write the tables of bad inputs into docs/hardening.md from what they get; a test keeps the two equal."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).with_name("hardening.md")
TESTS = Path(__file__).parents[1] / "tests"
_BEGIN, _END = "<!-- made by make docs -->\n", "<!-- end -->"
_MOST = 330  # characters of a cell


def page() -> str:
    """The page, with the tables as they must be."""
    sys.path.insert(0, str(TESTS))
    import bad_inputs

    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    after = rest.partition(_END)[2]
    with tempfile.TemporaryDirectory() as home:
        tables = [_table(what, rows) for what, rows in bad_inputs.answers(Path(home))]
    return "".join((before, _BEGIN, "\n", *tables, _END, after))


def _table(what: str, rows: list[tuple[str, str]]) -> str:
    lines = [f"| {_cell(given)} | {_cell(gets)} |" for given, gets in rows]
    return "\n".join([f"| {what} | gets |", "|---|---|", *lines, "", ""])


def _cell(text: str) -> str:
    """Markdown shows it as it is."""
    text = " ".join(text.split())
    text = text if len(text) <= _MOST else text[:_MOST] + "..."
    return re.sub(r"([\\`*_{}\[\]<>|#$~])", r"\\\1", text)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
