"""The documentation site: the pages of docs/ as they are, by Sphinx with MyST; `make site` writes build/site.

Sphinx, because it is kept by many, checks every link and needs nothing from elsewhere (MkDocs has had no release
since 2024). The lists of links in docs/index.md are its navigation, so a page joins with a line there.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes

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
html_show_sourcelink = False
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["site.css"]


def navigation(text: str) -> str:
    """docs/index.md with a table of contents, out of sight, for each list of links under a heading."""
    made = [text]
    for title, body in re.findall(r"^## (.+)\n((?:(?!^## ).*\n?)*)", text, re.MULTILINE):
        if pages := re.findall(r"^- \[([^]]+)\]\(([\w/-]+)\.md\)", body, re.MULTILINE):
            entries = [f"{name} <{page}>" for name, page in pages]
            made.append("\n".join(["", "```{toctree}", ":hidden:", f":caption: {title}", "", *entries, "```", ""]))
    return "\n".join(made)


def _read(_app: Sphinx, docname: str, source: list[str]) -> None:
    if docname == root_doc:
        source[0] = navigation(source[0])


def _draw(app: Sphinx, tree: nodes.document, _docname: str) -> None:
    """Put pictures of ours into the page, where they follow its switch between light and dark."""
    for image in list(tree.findall(nodes.image)):
        path = Path(app.srcdir) / image["uri"]
        if path.parent.name == "pictures":
            label = f'<svg aria-label="{escape(image["alt"])}" '
            drawn = re.sub(r"\s*<title>.*?</title>", "", path.read_text(encoding="utf-8"), count=1)
            drawn = drawn.replace("<svg ", label, 1)
            image.replace_self(nodes.raw("", f'<div class="picture">{drawn}</div>', format="html"))


def _language(app: Sphinx, pagename: str, _template: str, context: dict, _tree: nodes.document | None) -> None:
    """Pages below es/ say so to browsers and screen readers."""
    context["language"] = "es" if pagename.startswith("es/") else app.config.language


# what axe-core finds in pages of Sphinx and Furo: what scrolls takes the focus, headings have levels, landmarks names
MENDS = {
    '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper ': '<div tabindex="0" class="table-wrapper ',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="Pages">',
    '<aside class="toc-drawer': '<aside aria-label="This page" class="toc-drawer',
}


def _mend(app: Sphinx, error: Exception | None) -> None:
    for path in [] if error else Path(app.outdir).rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        for found, better in MENDS.items():
            text = text.replace(found, better)
        path.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """What Sphinx calls."""
    app.connect("build-finished", _mend)
    app.connect("source-read", _read)
    app.connect("doctree-resolved", _draw)
    app.connect("html-page-context", _language)
