"""The files of `selfspec report`: what it reads and writes, and what it refuses."""

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
from selfspec.reporting.page import page_of, report
from selfspec.reporting.results import FIELDS, Result, read_results


@pytest.fixture
def command(tmp_path):
    def run(*files):
        from selfspec.cli.main import cli

        return CliRunner().invoke(cli, ["report", *map(str, files), "--out", str(tmp_path / "r.html")])

    return run


def test_the_command_writes_the_page(command, results, tmp_path, whole):
    """Guards the verb: files in any order, a page of its own at --out, its size said."""
    done = command(*reversed(results.values()))
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
    with pytest.raises(OptionError, match="no whole result") as refused, both[0].whole():
        raise ValueError("what a library says\n\nof half a character: \\ud800")
    assert "\n" not in str(refused.value)
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


@pytest.mark.parametrize("kind", FIELDS)
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
