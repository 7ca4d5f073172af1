"""Write docs/drafters.md from the drafters and the dataclasses of their options; a test keeps the two equal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from selfspec.cli.flags import flag_name
from selfspec.drafters import available, drafter_class
from selfspec.drafters.base import Drafter

PAGE = Path(__file__).with_name("drafters.md")
MORE = {
    "auto": "parts.md",
    "clasp": "skipping.md",
    "conflayers": "skipping.md",
    "draft_model": "lossless.md",
    "eagle": "heads.md",
    "early_exit": "heads.md",
    "layer_skip": "skipping.md",
    "moe": "mixtures.md",
    "ngram": "lookup.md",
    "overlap": "chains.md",
    "staged": "chains.md",
    "suffix": "lookup.md",
    "swift": "skipping.md",
}
"""Pages that say more."""

_HEAD = """# Drafters

Made from the drafters in `src/selfspec/drafters` by `make docs`; `selfspec drafters` lists those that are installed, plug-ins included. Whatever drafts, the text is plain decoding's ([lossless.md](lossless.md)); a draft only decides how soon it comes.

`--draft NAME` (Python `draft="NAME"`) takes one, with its options beside it (`--gamma 2`, `gamma=2`) or in the name (`early_exit:exit_layer=8:gamma=2`). Chains are written with an arrow: `'suffix>early_exit'`. Options marked ◦ name files or load models: requests to a server may not set them.
"""


def page() -> str:
    """The page, as Markdown."""
    built_in = [name for name, entry in available().items() if entry.value.startswith("selfspec.")]
    drafters = [drafter_class(name) for name in built_in]
    return "\n".join([_HEAD, *_overview(drafters), "", *(line for drafter in drafters for line in _part(drafter))])


def _overview(drafters: list[type[Drafter]]) -> Iterator[str]:
    yield "| drafter | what drafts | when it pays |"
    yield "|---|---|---|"
    for drafter in drafters:
        yield f"| [`{drafter.name}`](#{drafter.name}) | {drafter.summary} | {drafter.pays} |"


def _part(drafter: type[Drafter]) -> Iterator[str]:
    yield f"## {drafter.name}\n"
    yield f"{_sentence(drafter.summary)}\n"
    if drafter.paper:
        yield f"**From**: {drafter.paper}.\n"
    yield f"**Pays**: {drafter.pays}.\n"
    if more := MORE.get(drafter.name):
        yield f"More: [{more}]({more}).\n"
    yield "| option | type | default | what it does |"
    yield "|---|---|---|---|"
    yield from map(_row, fields(drafter.Options))
    yield ""


def _row(field: Field[Any]) -> str:
    mark = " ◦" if field.metadata.get("opens") else ""
    flag = f"`{flag_name(field.name)}`" if "help" in field.metadata else "(Python only)"
    kind = str(field.type).replace("|", "\\|")
    text = field.metadata.get("help", "What drafts: called with the tokens so far and γ.").replace("|", "\\|")
    return f"| `{field.name}`, {flag}{mark} | `{kind}` | {_default(field)} | {text} |"


def _default(field: Field[Any]) -> str:
    default = field.default
    assert default is not MISSING, "every option has a default"
    return "" if default in (None, (), "") else f"`{default}`"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
