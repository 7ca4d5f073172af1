"""What is printed: JSON, marks, colours and the summary."""

import io
import json
import math
from dataclasses import replace

import pytest

from selfspec.cli.output import Painter, emit_json, has_colours, summary, table
from selfspec.request import Chunk, Completion
from selfspec.rounds import Stats


def chunks(*pieces):
    return [Chunk(text, 0, source) for text, source in pieces]


def painted(painter, parts):
    return "".join(painter.paint(chunk) for chunk in parts) + painter.end()


def test_a_run_of_drafts_shares_its_brackets():
    """Guards the marks: opened once, closed once, also at the end of the text."""
    parts = chunks(("a", "bonus"), ("b", "draft"), ("c", "draft"), ("d", "bonus"), ("e", "draft"))
    assert painted(Painter(has_colours=False), parts) == "a⟦bc⟧d⟦e⟧"


def test_held_back_text_changes_no_mark():
    """Guards tokens that are parts of a character: they have no text, so they mark nothing."""
    parts = chunks(("", "draft"), ("", "bonus"), ("é", "draft"), ("", "bonus"), ("x", "draft"))
    assert painted(Painter(has_colours=False), parts) == "⟦éx⟧"


def test_colours_instead_of_brackets():
    """Guards the terminal: green drafts, and a bonus token as it is."""
    parts = chunks(("a", "bonus"), ("b", "draft"))
    assert painted(Painter(has_colours=True), parts) == "a\x1b[32mb\x1b[0m"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_colours_need_a_terminal_and_consent(monkeypatch):
    """Guards NO_COLOR and files."""
    assert has_colours(Terminal())
    assert not has_colours(io.StringIO())
    assert not has_colours(None)
    monkeypatch.setenv("TERM", "dumb")
    assert not has_colours(Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_colours(Terminal())


def test_json_is_strict(capsys):
    """Guards against NaN and Infinity, which are not JSON, at any depth, and against line breaks."""
    emit_json({"a": math.inf, "b": [math.nan, {"c": -math.inf}], "d": "x\ny\u2028", "e": (1.5, None)})
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line, parse_constant=pytest.fail)
    assert found == {"a": None, "b": [None, {"c": None}], "d": "x\ny\u2028", "e": [1.5, None]}


def test_the_summary_line():
    """Guards the figures that everybody quotes, and their denominators."""
    stats = Stats(texts=1, tokens=48, rounds=21, drafted=36, accepted=22, ttft_seconds=0.3, seconds=2.637)
    completion = Completion(
        text="",
        token_ids=(),
        prompt_tokens=1,
        finish_reason="stop",
        stats=stats,
        seed=0,
        model="m",
        runtime="torch",
        runs_on="torch",
        precision="float32",
        draft="early_exit",
        plan="exit 26/30",
        gamma=2,
        kv_bytes=0,
    )
    assert summary(completion) == (
        "48 tokens · 18.2 tok/s (decode 20.1) · α 0.61 (22/36) · τ 2.2 · 21 rounds"
        " · early_exit exit 26/30 γ 2 · float32 on torch"
    )
    hybrid = replace(completion, state_bytes=5_000_000, rollback_bytes=4_000_000)
    assert summary(hybrid) == f"{summary(completion)} · states 5.0 MB (4.0 MB to roll back)"


def test_tables_are_aligned():
    """Guards columns of figures of different lengths."""
    assert table([("k", "c"), ("10", "0.5")]) == " k    c\n10  0.5"
