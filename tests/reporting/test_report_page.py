"""`selfspec report`: one page, whole or partial, that needs nothing else."""

from __future__ import annotations

import copy
import itertools
import json
import re
import sys

import pytest
from click.testing import CliRunner
from html_pages import Page

from selfspec.errors import OptionError
from selfspec.reporting import drawing
from selfspec.reporting.advice import advice_of
from selfspec.reporting.page import page_of, render, report
from selfspec.reporting.results import Result, read_results

TITLES = {
    "tune": ["Tuned on this machine"],
    "bench": ["Methods side by side", "Acceptance by position and task", "Who wrote each token"],
    "profile": ["Predicted S over exit layer and draft length", "Acceptance by layer", "What rows cost: v(T)"],
    "plan": ["What fits into the memory"],
    "certify": ["Proof that drafts change nothing"],
}


def paths(results, *kinds):
    return [str(results[kind]) for kind in kinds or TITLES]


def titles(page):
    return [heading.text for heading in page.all("h2")]


@pytest.fixture(scope="module")
def whole(results):
    return report(paths(results))[1]


@pytest.fixture(scope="module")
def documents(results):
    return {kind: json.loads(path.read_text()) for kind, path in results.items()}


@pytest.fixture
def command(tmp_path):
    def run(*files):
        from selfspec.cli.main import cli

        return CliRunner().invoke(cli, ["report", *map(str, files), "--out", str(tmp_path / "r.html")])

    return run


# -- the page ----------------------------------------------------------------------------------------------


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


# -- the recommendation ------------------------------------------------------------------------------------


def ratio(median, low, high, verdict):
    return {"median": median, "low": low, "high": high, "pairs": 12, "verdict": verdict}


def advice(documents, **changed):
    """Of a benchmark whose look-up has this ratio, and of other results with changes."""
    results = []
    for kind, change in changed.items():
        document = copy.deepcopy(documents[kind])
        change(document)
        results.append(Result(kind, kind, document))
    return advice_of(results)


def benched(cell, decoding=None, column="ngram:adaptive=false"):
    def change(document):
        document["overall"] = {column: cell}
        document["decoding"]["all"] = {column: decoding or cell}

    return change


@pytest.mark.parametrize(
    ("cell", "begins", "tone"),
    [
        (ratio(1.30, 1.25, 1.35, "faster"), "Draft with ngram:adaptive=false: ", "gain"),
        (ratio(1.02, 1.015, 1.025, "faster"), "Do not speculate: ", "loss"),
        (ratio(0.70, 0.65, 0.75, "slower"), "Do not speculate: ", "loss"),
        (ratio(1.10, 0.90, 1.30, "undecided"), "Open: ngram:adaptive=false looks best", "open"),
        (ratio(0.95, 0.80, 1.10, "undecided"), "Do not speculate: ", "loss"),
    ],
)
def test_the_recommendation_follows_the_interval(documents, cell, begins, tone):
    """Guards the word that users act on: a draft only where the pairs decide for it, and by more than the noise."""
    found = advice(documents, bench=benched(cell))
    assert found.headline.startswith(begins)
    assert found.tone == tone
    assert f"{cell['median']:.2f}x [{cell['low']:.2f}, {cell['high']:.2f}]" in found.headline


def test_the_recommendation_says_why(documents):
    """Guards the reasons: what a round gave and took, from counts and S after the first token."""

    def change(document):
        benched(ratio(0.9, 0.85, 0.95, "slower"), ratio(0.8, 0.7, 0.85, "slower"))(document)
        document["totals"]["ngram:adaptive=false"] |= {"acceptance_rate": 0.3, "mean_accepted_length": 1.6}

    (why, *_) = advice(documents, bench=change).reasons
    assert "0.30 of its draft tokens held" in why
    assert "1.60 tokens" in why
    assert "2.00 plain rounds" in why


def test_a_draft_that_changed_a_word_is_never_recommended(documents):
    """Guards losslessness in advice: the fastest is out if it wrote another text; a bug goes before all."""

    def change(document):
        wrong = {"column": "ngram:adaptive=false", "is_fault": True, "task": "c", "id": "1"}
        benched(ratio(3.0, 2.9, 3.1, "faster"))(document)
        document["overall"]["early_exit:exit_layer=2:gamma=2"] = ratio(0.5, 0.4, 0.6, "slower")
        document["differences"] = [wrong]

    found = advice(documents, bench=change)
    assert found.headline.startswith("Do not speculate: the best draft that was measured, early_exit")
    assert any("wrote another text" in reason for reason in found.reasons)

    def fail(document):
        document |= {"verdict": "fail", "failed": ["greedy"]}

    worst = advice(documents, bench=benched(ratio(3.0, 2.9, 3.1, "faster")), certify=fail)
    assert worst.headline.startswith("Do not speculate: it changes what is said here (greedy failed)")
    assert worst.tone == "loss"


def test_profiles_and_plans_advise_too(documents):
    """Guards partial input: exits that do not pay, with the α they would need; a plan's sentence; neither."""

    def poor(document):
        for points in document["points"].values():
            for point in points:
                point["speedup"] = 0.5

    found = advice(documents, profile=poor)
    assert found.headline.startswith("Do not speculate with early exits")
    assert "α is" in found.reasons[0]

    def rich(document):
        document["points"][next(iter(document["points"]))][0]["speedup"] = 2.5

    assert "predicted at 2.50x" in advice(documents, profile=rich).headline
    assert advice(documents, plan=lambda _: None).headline == documents["plan"]["recommendation"]
    assert advice(documents, certify=lambda _: None).headline.startswith("Whether to speculate does not follow")
    tuned = advice(documents, tune=lambda _: None, plan=lambda _: None, certify=lambda _: None)
    assert tuned.headline == documents["tune"]["recommendation"]
    assert documents["plan"]["recommendation"] in tuned.reasons
    assert tuned.reasons[-1].startswith("selfspec certify found that drafts change nothing")


# -- files -------------------------------------------------------------------------------------------------


def test_the_command_writes_the_page(command, results, tmp_path, whole):
    """Guards the verb: files in any order, a page of its own at --out, its size said."""
    done = command(*reversed(paths(results)))
    assert done.exit_code == 0, done.output
    assert Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert re.search(r"r\.html: \d", done.stderr)
    assert done.stdout.splitlines() == ["Draft with suffix:gamma=15: 1.21x of plain decoding."]
    made = json.loads(command(results["certify"], "--json").stdout)
    assert made["speculate"] is None
    assert len(made["missing"]) == 4
    assert json.loads(command(results["tune"], "--json").stdout)["speculate"] is True


def written(folder, document, name="x.json"):
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_what_bench_printed_is_a_result_too(results, documents, tmp_path):
    """Guards `bench --json > file`: the tables before the document do not matter."""
    printed = written(tmp_path, "ceiling: none\n\n" + json.dumps(documents["bench"]))
    assert read_results([str(printed)])[0].kind == "bench"


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ("", "no JSON document"),
        ("[1, 2]", "is JSON, but no object"),
        ('{"a": NaN}', "no JSON document"),
        ('{"a": 1', "no JSON document"),
        ("[" * 100_000, "no JSON document"),
        ({"a": 1}, "no result that can be shown; it must be one of"),
        ({"identity": {}, "units": {}}, "a profile without its end"),
    ],
)
def test_what_is_no_result_is_refused_in_one_line(command, tmp_path, made, says):
    """Guards wrong files: named, with what would be right, and nothing is written."""
    done = command(written(tmp_path, made))
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert says in line
    assert not (tmp_path / "r.html").exists()


def test_files_that_cannot_be_read_are_refused_in_one_line(command, tmp_path):
    """Guards the other mistakes of a command line."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for files, says in (((), "no files"), ((tmp_path / "no",), "cannot be read"), ((tmp_path,), "cannot be read")):
        done = command(*files)
        assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
        assert says in done.stderr
    assert "cannot be read" in command(tmp_path / "binary").stderr


@pytest.mark.parametrize("field", ["model", "fingerprint", "precision", "runtime"])
def test_results_of_different_things_are_not_mixed(results, documents, tmp_path, field):
    """Guards comparisons: another model, checkpoint, precision or runtime is a report of its own."""
    other = written(tmp_path, documents["bench"] | {field: "other"})
    with pytest.raises(OptionError, match=f"has the {field} 'other', and .*make a report of each"):
        report([str(results["certify"]), str(other)])


def test_another_machine_is_said(documents):
    """Guards numbers of two machines on one page: both are named."""
    other = copy.deepcopy(documents["profile"])
    other["machine"]["processor"] = "Another CPU"
    both = [Result("a", "bench", documents["bench"]), Result("b", "profile", other)]
    assert sum(name == "machine" for name, _ in page_of(both).facts) == 2
    del other["machine"]["cores"]
    with pytest.raises(OptionError, match="'b' is no whole result"):
        page_of(both)


def corruptions(value, depth=3):
    """Copies of a document in which one field is missing or is something else."""
    fields = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, inner in fields:
        rest = {k: v for k, v in value.items() if k != key} if isinstance(value, dict) else value[:key]
        yield rest
        for wrong in (None, "x", [], {}, -1):
            changed = copy.copy(value)
            changed[key] = wrong
            yield changed
        if depth:
            for broken in corruptions(inner, depth - 1):
                changed = copy.copy(value)
                changed[key] = broken
                yield changed


@pytest.mark.parametrize("kind", TITLES)
def test_a_corrupt_result_is_refused_or_shown_and_never_a_traceback(documents, kind, monkeypatch):
    """Guards against files that were cut, edited or written by another version: OptionError, or a page."""
    monkeypatch.setattr(drawing, "_svg", lambda *_: "")
    outcomes = set()
    document = {name: value for name, value in documents[kind].items() if name != "units"}
    for broken in itertools.islice(corruptions(document), 0, None, 7):
        said = ""
        try:
            page_of([Result("x.json", kind, broken)])
        except OptionError as error:
            said = str(error)
        outcomes.add((len(said.splitlines()), "'x.json'" in said))
    assert outcomes == {(0, False), (1, True)}


def test_without_what_draws_the_command_says_how_to_get_it(command, results, monkeypatch):
    """Guards the extra: one line with the command that installs it."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = command(results["bench"])
    assert done.exit_code == 2
    assert "pip install 'selfspec[report]'" in done.stderr


def test_letters_that_no_font_of_ours_has_are_drawn(recwarn):
    """Guards names from files: they are text, not formulas, and warn nobody."""
    svg = drawing.intervals(
        "n", [("模型 $\\frac{a $<i>", [drawing.Interval(1.0, 0.9, 1.1), None])], ("a", "b"), "S"
    )
    assert "模型 $\\frac{a $&lt;i&gt;" in svg
    assert not recwarn.list
