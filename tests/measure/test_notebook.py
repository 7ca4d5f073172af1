"""What a notebook shows of results: tables that say what the results say."""

from __future__ import annotations

import pytest
from html_pages import Page

import selfspec


def table_of(result):
    """Caption, header and rows of the only table."""
    (table,) = Page(result._repr_html_()).all("table")
    rows = [[cell.text for cell in row.children] for row in table.all("tr")]
    return next(table.all("caption")).text, rows[0], rows[1:]


@pytest.fixture(scope="module")
def engine(tiny):
    return selfspec.load(tiny, draft="plain")


def test_an_estimate_is_a_table_by_draft_length():
    """Guards `selfspec.estimate` in a notebook: a row for each γ, with its own speedup."""
    made = selfspec.estimate(0.7, layers=32, exit_layer=8)
    caption, header, rows = table_of(made)
    assert f"best γ {made.best_gamma}" in caption
    assert len(rows) == 11
    assert dict(zip(header, rows[4], strict=True)) == {
        "γ": "4",
        "tokens per round": f"{made.expected_tokens:.2f}",
        "speedup": f"{made.speedup:.2f}x",
    }


def test_a_simulation_is_a_table_by_outcomes():
    """Guards `selfspec.simulate`: the caption has the setting that was asked for, the rows the others."""
    made = selfspec.simulate(0.8, c=0.1, outcomes=4)
    caption, _, rows = table_of(made)
    assert f"{made.found.speedup:.2f}x, without {made.found.speedup_without:.2f}x" in caption
    assert [row[0] for row in rows] == ["1", "2", "4", "8", "16"]
    assert rows[2][3] == f"{made.found.speedup:.2f}x"
    with pytest.raises(selfspec.OptionError, match="outcomes is 0"):
        selfspec.simulate(0.8, outcomes=0)


def test_a_profile_is_a_table_by_exit_layer(engine):
    """Guards `selfspec.profile`: α, c and the best predicted S of every exit; without predictions, a sentence."""
    quick = {"budget": "1s", "contexts": "8", "temperature": "0", "gamma": 2, "check": 0}
    made = selfspec.profile(engine, tasks="qa", limit=1, max_new_tokens=4, ignore_eos=True, **quick)
    caption, header, rows = table_of(made)
    document = made.document()
    points = document["points"]["0"]
    assert f"at best {max(point['speedup'] for point in points):.2f}x" in caption
    assert [row[0] for row in rows] == ["1", "2", "3"]
    for row, found in zip(rows, document["exits"]["0"], strict=True):
        best = max(point["speedup"] for point in points if point["exit_layer"] == found["exit_layer"])
        shown = dict(zip(header, row, strict=True))
        assert (shown["c"], shown["α"]) == (f"{found['c']:.3f}", f"{found['alpha']:.3f}")
        assert shown["predicted S"] == f"{best:.2f}x"
    nothing = type(made)(engine.runtime, made._options, {})
    assert "nothing was predicted" in nothing._repr_html_()


def test_a_plan_is_a_table_by_way(tiny):
    """Guards `selfspec.plan`: the ways, and the recommendation as a sentence below."""
    made = selfspec.plan(tiny, memory="1GB", context=512)
    _, header, rows = table_of(made)
    assert header[0] == "way"
    assert [row[0] for row in rows] == [row.label for row in made.rows]
    assert made.recommendation in next(Page(made._repr_html_()).all("p")).text
