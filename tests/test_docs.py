"""The documentation says what the program does."""

from __future__ import annotations

import doctest
import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from selfspec.cli.main import cli
from selfspec.drafters import available, drafter_class

ROOT = Path(__file__).parents[1]
_PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name not in ("cli.md", "log.md")),
]


@pytest.mark.parametrize(
    "maker", sorted(path.stem for path in (ROOT / "docs").glob("make_*.py") if path.stem != "make_hardening")
)
def test_made_pages_are_as_made(maker):
    """Guards what `make docs` writes: run it after changing a flag, a drafter, a family or a picture.

    A process of its own has no test's plug-ins.
    """
    made = "m.pages() if hasattr(m, 'pages') else {m.PAGE: m.page()}"
    code = (
        f"import {maker} as m, sys; sys.exit(any(t != p.read_text(encoding='utf-8') for p, t in ({made}).items()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "docs", check=False)
    assert done.returncode == 0


def test_every_drafter_says_when_it_pays():
    """Guards docs/drafters.md: a built-in says it, and where its method is from unless it has none."""
    for name, entry in available().items():
        if entry.value.startswith("selfspec."):
            drafter = drafter_class(name)
            assert drafter.pays, name
            assert drafter.paper or name in ("plain", "scripted"), name


def test_hardening_page_is_what_bad_inputs_get():
    """Guards docs/hardening.md: run `make docs` after changing what a mistake gets.

    Other Pythons have other words for what is wrong with JSON; that each input gets one line is checked in all.
    """
    code = (
        "import make_hardening as m, sys; made = m.page(); "
        "sys.exit(sys.version_info[:2] == (3, 11) and made != m.PAGE.read_text(encoding='utf-8'))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "docs", check=False)
    assert done.returncode == 0


def test_concepts_are_computed():
    """Guards docs/concepts.md: every figure of a formula is what the cost model gives."""
    found = doctest.testfile(str(ROOT / "docs" / "concepts.md"), module_relative=False, encoding="utf-8")
    assert found.failed == 0
    assert found.attempted > 40


def test_concepts_quote_what_was_measured():
    """Guards docs/concepts.md: a measured figure stands in the page that is named, below its command."""
    text = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    table = text.partition("## Measured")[2].replace("\\|", "\0")
    rows = [
        [cell.strip().replace("\0", "|") for cell in row.split("|")[1:-1]]
        for row in table.splitlines()
        if "`" in row
    ]
    assert len(rows) > 8
    asked = ""
    for what, line, page, command in rows:
        name = re.fullmatch(r"\[.*\]\((.*)\)", page)[1]
        asked = command if command != "the same" else asked
        sections = (ROOT / "docs" / name).read_text(encoding="utf-8").split("\n## ")
        (section,) = (section for section in sections if asked in section)
        assert " ".join(line.strip("`").split()) in " ".join(section.split()), what


@pytest.mark.parametrize("name", ["estimate", "simulate"])
def test_examples_of_library_functions_are_computed(name):
    """Guards the docstrings of the cost model's functions."""
    found = doctest.testmod(importlib.import_module(f"selfspec.measure.{name}"))
    assert (found.failed, found.attempted > 0) == (0, True)


@pytest.mark.parametrize("page", [*sorted(p.name for p in ROOT.glob("*.md")), "docs"])
def test_links_lead_somewhere(page):
    """Guards links between the pages."""
    pages = sorted((ROOT / "docs").rglob("*.md")) if page == "docs" else [ROOT / page]
    for path in pages:
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_index_has_every_page_once():
    """Guards docs/index.md, whose lists are the navigation of the site: a page joins with a line there."""
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- \[[^]]+\]\(([^)#]+)\)", text, re.MULTILINE)
    there = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")} - {"index.md"}
    assert sorted(listed) == sorted(there)


def test_the_tree_of_the_readme_is_true():
    """Guards the annotated tree: what it names is there, and it names every part of the package."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tree = readme.partition("## Where things are")[2].partition("```\n")[2].partition("```")[0]
    base, named = ROOT, set()
    for line in tree.splitlines():
        names = [
            part
            for part in line.split("  ")[1 if line.startswith("  ") else 0].split()
            if "." in part or "/" in part
        ]
        base = ROOT / "src" / "selfspec" if line.startswith("  ") else ROOT
        assert names, line
        named |= {base / name for name in names}
    assert [path for path in named if not path.exists()] == []
    folders = {path for path in (ROOT / "src" / "selfspec").iterdir() if (path / "__init__.py").exists()}
    assert folders <= named


def test_the_tree_of_the_architecture_has_every_part():
    """Guards docs/architecture.md: each module and package at the top has its place in the tree."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree = page.partition("## Parts, and who may import whom")[2].partition("```\n")[2].partition("```")[0]
    there = {
        path.stem for path in (ROOT / "src" / "selfspec").glob("[a-z]*") if path.name not in ("heads", "py.typed")
    }
    assert there - set(re.findall(r"\w+", tree)) == set()


@pytest.mark.parametrize("page", _PAGES, ids=lambda path: path.name)
def test_commands_on_pages_have_these_flags(page):
    """Guards every `selfspec` line of a block: the verb is there, and has the flags that stand behind it."""
    for block in re.findall(r"^```(?:sh)?\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        for line in re.findall(r"^selfspec (.*)$", block.replace("\\\n", " "), re.MULTILINE):
            words = shlex.split(line, comments=True)
            command = cli
            # a command keeps the flags of its first help, so it must be asked as the program asks
            with click.Context(cli, **cli.context_settings) as context:
                while isinstance(command, click.Group) and words and not words[0].startswith("-"):
                    command = command.get_command(context, words.pop(0))
                    assert command is not None, line
            params = command.get_params(click.Context(command, parent=context))
            known = {flag for made in params for flag in (*made.opts, *made.secondary_opts)}
            used = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert used - known == set(), line


def test_figures_of_the_readme_are_those_of_the_results():
    """Guards the measured table: each ratio with its interval stands in docs/results.md, and the command does."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    figures = re.findall(r"\d\.\d\d \[\d\.\d\d, \d\.\d\d\]", readme)
    assert len(figures) > 6
    assert [figure for figure in figures if figure not in results] == []
    (command,) = re.findall(r"^selfspec bench .*$", readme, re.MULTILINE)
    assert f"`{command.replace(chr(39), '')}`" in results
    row = re.compile(r"^\| [^|]+\| (\d\.\d\d) \[.*\| (\d\.\d\d) \| (\d\.\d\d) \|", re.MULTILINE)
    section = next(part for part in results.split("\n## ") if command.replace("'", "") in part)
    for _, tau, alpha in row.findall(readme):
        assert re.search(rf" {alpha}  {tau}  ", section), (alpha, tau)


def test_every_source_file_is_short():
    """Guards the house rule: a file has one noun, and under 400 lines."""
    long = [p.name for p in (ROOT / "src").rglob("*.py") if len(p.read_text(encoding="utf-8").splitlines()) >= 400]
    assert long == []


def test_every_guard_in_the_table_of_bugs_exists():
    """Guards docs/bugs.md, and the faults of docs/hardening.md: a guard that was renamed or deleted guards nothing;
    the files of bugs are all in it.
    """
    bugs, faults = (
        set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / page).read_text(encoding="utf-8")))
        for page in ("bugs.md", "hardening.md")
    )
    written = {
        path.name: set(re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
        for path in (ROOT / "tests").rglob("test_*.py")
    }
    assert len(bugs) > 40
    assert len(faults) > 15
    assert bugs | faults <= set().union(*written.values())
    for name, tests in written.items():
        if name.startswith("test_public_bugs"):
            assert tests <= bugs
