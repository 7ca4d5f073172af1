"""The report as a reader sees it: wide and narrow, light and dark, by mouse, by keys, aloud."""

from __future__ import annotations

import pytest

from selfspec.reporting.page import report

pytestmark = pytest.mark.browser
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(20, 23, 26)"


@pytest.fixture(scope="session")
def file(results, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(report([str(result) for result in results.values()])[1], encoding="utf-8")
    return path


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 375, 1280])
def test_the_page_is_whole_quiet_and_readable(visit, file, width, dark):
    """Guards every reader: nothing asked for, nothing complained of, all plots, no sideways page, axe content."""
    found = visit(file, dark=dark, width=width)
    page = found.page
    for details in page.query_selector_all("details"):
        details.evaluate("it => it.open = true")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == (DARK if dark else LIGHT)
    plots = page.query_selector_all("[role=img]")
    assert len(plots) == 3
    for plot in plots:
        box = plot.query_selector("svg").bounding_box()
        assert width * 0.8 < box["width"] or box["width"] > 500
        assert box["height"] > 100
        strokes = plot.query_selector("svg").evaluate(
            "it => [...it.querySelectorAll('path')].map(p => getComputedStyle(p).stroke)"
        )
        assert len({stroke for stroke in strokes if stroke.startswith("rgb(")}) >= 2, "the page's colours are drawn"
        letters = plot.query_selector("text").evaluate("it => it.getBoundingClientRect().height")
        assert letters > 8
    assert not found.is_wider_than_screen()
    assert width != 375 or found.violations() == []
    assert found.requests == [f"GET {file.as_uri()}"]
    assert found.errors == []


def test_the_page_is_used_by_keys(visit, file):
    """Guards the keyboard: the first stop skips to the content, a heading is reached, what is folded unfolds."""
    page = visit(file, width=375).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    summary = page.query_selector("summary")
    summary.focus()
    page.keyboard.press("Enter")
    assert summary.evaluate("it => it.parentElement.open")
    page.query_selector(".scroll").focus()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_who_wrote_a_token_is_seen_without_colours(visit, file):
    """Guards readers who see no colours, and paper: the three kinds have different lines below."""
    page = visit(file).page
    lines = {
        kind: page.query_selector(f"article .{kind}").evaluate("it => getComputedStyle(it).borderBottomStyle")
        for kind in ("draft", "bonus", "plain")
    }
    assert lines == {"draft": "solid", "bonus": "dotted", "plain": "none"}
