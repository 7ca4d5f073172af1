"""The documentation site: the pages of docs/ as they are, by Sphinx with MyST; `make site` writes build/site.

The lists of links in docs/index.md are its navigation, so a page joins with a line there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from selfspec import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "selfspec"
author = "the selfspec authors"
release = version = __version__
extensions = ["myst_parser"]
root_doc = "index"
exclude_patterns = ["site/**"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"selfspec {release}"
html_copy_source = False
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["site.css"]


def navigation(text: str) -> str:
    """docs/index.md with a table of contents, out of sight, for each list of links under a heading."""
    made = [text]
    for title, body in re.findall(r"^## (.+)\n((?:(?!^## ).*\n?)*)", text, re.MULTILINE):
        pages = re.findall(r"^- \[[^]]+\]\(([\w/]+)\.md\)", body, re.MULTILINE)
        if pages:
            made.append("\n".join(["", "```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```", ""]))
    return "\n".join(made)


def _read(_app: Sphinx, docname: str, source: list[str]) -> None:
    if docname == root_doc:
        source[0] = navigation(source[0])


def setup(app: Sphinx) -> None:
    """What Sphinx calls."""
    app.connect("source-read", _read)
