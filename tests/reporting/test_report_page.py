"""The page of `selfspec report`: whole or partial, and it needs nothing else."""

from __future__ import annotations

import copy
import itertools
import re

import pytest
from html_pages import Page

from selfspec.reporting import drawing
from selfspec.reporting.page import page_of, render, report
from selfspec.reporting.results import Result

TITLES = {
    "tune": ["Tuned on this machine"],
    "bench": ["Methods side by side", "Acceptance by position and task", "Who wrote each token"],
    "profile": ["Predicted S over exit layer and draft length", "Acceptance by layer", "What rows cost: v(T)"],
    "plan": ["What fits into the memory"],
    "certify": ["Proof that drafts change nothing"],
}


def paths(results, *kinds):
    return [str(results[kind]) for kind in kinds or results]


def titles(page):
    return [heading.text for heading in page.all("h2")]


def test_everything_that_was_measured_is_on_the_page(whole):
    """Guards the sections: each kind of result has its own, under one heading, and nothing is missing."""
    page = Page(whole)
    assert set(itertools.chain(*TITLES.values())) <= set(titles(page))
    assert "Not in this report" not in titles(page)
    assert len(list(page.all("h1"))) == 1


def test_the_page_asks_for_nothing_and_runs_nothing(whole):
    """Guards mail and disks: no script, no address but anchors and the empty icon, a policy that forbids others."""
    page = Page(whole)
    assert not list(page.all("script"))
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", whole.replace("http-equiv", ""))
    policy = next(meta["content"] for meta in page.all("meta") if meta["http-equiv"])
    assert policy.startswith("default-src 'none'")
    for element in page.all():
        assert not [name for name in element.attributes if name.startswith("on")]
        for name in ("href", "src", "xlink:href"):
            assert (element[name] or "#").startswith(("#", "data:,"))


def test_the_page_is_sound_and_can_be_read_aloud(whole):
    """Guards readers without sight: language, title, unique ids, captions, header cells, sentences for plots."""
    page = Page(whole)
    (html,) = page.all("html")
    assert html["lang"] == "en"
    assert "selfspec report: tiny" in next(page.all("title")).text
    ids = [element["id"] for element in page.all() if element["id"]]
    assert len(ids) == len(set(ids))
    for link in page.all("a"):
        assert link["href"][1:] in ids
    for element in page.all():
        if element["aria-labelledby"]:
            assert element["aria-labelledby"] in ids
        if element.tag == "use":
            assert element["href"][1:] in ids
    levels = [int(element.tag[1]) for element in page.all() if re.fullmatch("h[1-6]", element.tag)]
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    tables = list(page.all("table"))
    assert len(tables) > 10
    for table in tables:
        assert next(table.all("caption")).text.strip()
        width = {len(row.children) for row in table.all("tr")}
        assert len(width) == 1, "every row has every cell"
        assert table.parent["role"] == "group"
        assert table.parent["tabindex"] == "0", "what scrolls can be scrolled by keys"
        assert {cell["scope"] for cell in table.all("th")} <= {"row", "col"}


def test_every_plot_has_its_numbers_as_a_table(whole, documents):
    """Guards the alternative: a plot says in a sentence what it shows, and a table with the numbers follows."""
    page = Page(whole)
    plots = list(page.all(role="img"))
    temperatures = len(documents["profile"]["exits"])
    assert len(plots) == 1 + temperatures + 1  # methods, α by layer, v(T)
    for plot in plots:
        assert len(plot["aria-label"]) > 40
        assert next(plot.all("svg"))["aria-hidden"] == "true"
        assert list(plot.all("path"))
        figure = plot.parent
        place = figure.parent.children.index(figure)
        assert list(figure.parent.children[place + 1].all("table")), "the numbers come next"


def test_the_heat_map_has_every_point_and_frames_the_best(whole, documents):
    """Guards S over (k, γ): the cells are those of the profile, and the framed one is the largest."""
    page = Page(whole)
    for temperature, points in documents["profile"]["points"].items():
        (table,) = (
            t for t in page.all("table") if f"S at temperature {temperature}:" in next(t.all("caption")).text
        )
        shown = {
            (int(next(row.all("th")).text), gamma): cell
            for row in next(table.all("tbody")).all("tr")
            for gamma, cell in enumerate(row.all("td"), 1)
        }
        assert {where: cell.text for where, cell in shown.items()} == {
            (point["exit_layer"], point["gamma"]): f"{point['speedup']:.2f}" for point in points
        }
        framed = [where for where, cell in shown.items() if "best" in (cell["class"] or "")]
        best = max(points, key=lambda point: point["speedup"])
        assert framed == [(best["exit_layer"], best["gamma"])]
        for cell in shown.values():
            kind = "gain" if float(cell.text) > 1.004 else "loss" if float(cell.text) < 0.996 else ""
            assert kind in cell["class"].split() or not kind


def test_tokens_are_marked_by_who_wrote_them(whole, documents):
    """Guards the token view: the marked text is the answer, accepted drafts are as many as the loop counted."""
    page, bench = Page(whole), documents["bench"]
    articles = list(page.all("article"))
    assert len(articles) == 2
    for article, sample in zip(articles, bench["samples"], strict=True):
        assert sample["prompt"] in article.text
        texts = list(article.all("p", kind="tokens"))
        columns = [name for name in bench["columns"] if name != "plain"]
        for text, column in zip(texts, columns, strict=True):
            pieces = sample["answers"][column]
            assert [(span.text, span["class"]) for span in text.children] == [
                (re.sub("[\0-\b\v\f\x0e-\x1f\x7f-\x9f]", "\ufffd", piece), source)
                for piece, source in pieces
                if piece
            ]
    for column in ("ngram:adaptive=false", "early_exit:exit_layer=2:gamma=2"):
        pieces = [piece for sample in bench["samples"] for piece in sample["answers"][column]]
        assert sum(source == "draft" for _, source in pieces) == bench["totals"][column]["accepted"]
    assert {"bonus", "plain"} <= {source for _, source in pieces}


def test_what_users_typed_is_text(whole):
    """Guards against markup in prompts and names of tasks."""
    assert "Hi &lt;script&gt;alert(1)&lt;/script&gt;" in whole
    assert "a &lt;b&gt;" in whole


def test_characters_that_no_page_may_hold_are_replaced(documents):
    """Guards the encoding: lone surrogates and control characters of a token do not end the run, nor the page."""
    bench = copy.deepcopy(documents["bench"])
    bench["samples"][0]["answers"]["plain"] = [["\ud800x\x07\x9b", "plain"]]
    del bench["samples"][1:]
    for column in [*bench["samples"][0]["answers"]]:
        if column != "plain":
            del bench["samples"][0]["answers"][column]
    html = render(page_of([Result("b", "bench", bench)]))
    assert "\ufffdx\ufffd\ufffd" in html
    html.encode()


def test_the_same_results_give_the_same_page(whole, results):
    """Guards version control of a report: nothing of the day or the run is in it."""
    assert report(paths(results))[1] == whole


@pytest.mark.parametrize("kind", TITLES)
def test_one_result_makes_a_partial_page_that_says_what_is_missing(results, kind):
    """Guards partial input: what is there is shown, the rest is named with the command that makes it."""
    page = Page(report(paths(results, kind))[1])
    assert set(TITLES[kind]) <= set(titles(page))
    missing = next(section for section in page.all("section") if section["aria-labelledby"] == "missing")
    commands = [code.text for code in missing.all("code")]
    absent = [other for other in TITLES if other != kind and not (kind == "tune" and other == "profile")]
    assert [command.split()[1] for command in commands] == [
        name for name in ("bench", "profile", "tune", "plan", "certify") if name in absent
    ]
    assert all("tiny" in command for command in commands), "the model is named"


def test_a_tuned_result_draws_its_own_profile(results):
    """Guards the tuner's file: S, α and v(T) are in it, and a profile given beside it goes before."""
    assert set(TITLES["profile"]) <= set(titles(Page(report(paths(results, "tune"))[1])))
    assert "And 1 more that were neither replayed" in report(paths(results, "tune"))[1]
    both = titles(Page(report(paths(results, "tune", "profile"))[1]))
    assert both.count("Acceptance by layer") == 1


def test_an_older_benchmark_has_no_samples_and_that_is_said(documents):
    """Guards old files: what they lack is named, the rest is shown."""
    bench = {name: value for name, value in documents["bench"].items() if name != "samples"}
    page = page_of([Result("old.json", "bench", bench)])
    assert any("older version" in found.what for found in page.missing)


def test_letters_that_no_font_of_ours_has_are_drawn(recwarn):
    """Guards names from files: they are text, not formulas, and warn nobody."""
    svg = drawing.intervals(
        "n", [("模型 $\\frac{a $<i>", [drawing.Interval(1.0, 0.9, 1.1), None])], ("a", "b"), "S"
    )
    assert "模型 $\\frac{a $&lt;i&gt;" in svg
    assert not recwarn.list
