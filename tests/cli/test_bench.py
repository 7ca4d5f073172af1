"""`selfspec bench`: tables, one JSON line, and exit codes."""

from __future__ import annotations

import json
import stat
import sys
from dataclasses import replace

import pytest

import selfspec
from selfspec.measure import ours
from selfspec.measure.bench import Benchmark, num_matches
from selfspec.measure.settings import BenchOptions
from selfspec.measure.tasks import Prompt
from selfspec.measure.timing import Answer, Column

SMALL = ("--max-new-tokens", 3, "--repeats", 1, "--ignore-eos")


@pytest.fixture
def bench(call, tiny, data):
    def run(*args):
        return call("bench", "--model", tiny, "--data", data, *SMALL, *args)

    return run


def document(result):
    return json.loads(result.stdout.splitlines()[-1])


def test_tables_then_one_document(bench, tmp_path):
    """Guards the page and its JSON: ceilings first, a row per task, ratios by task and draft, the file too."""
    out = tmp_path / "out.json"
    result = bench("--drafts", "ngram,early_exit:exit_layer=2:gamma=2", "--json", "--out", out)
    assert result.exit_code == 0, result.output
    page = result.stdout
    assert page.startswith("memory ceiling")
    assert page.index("one pass of one row") < page.index("S by task") < page.index("columns over all tasks")
    found = document(result)
    assert set(found["ratios"]) == {"a", "b"}
    assert set(found["ratios"]["a"]) == {"ngram", "early_exit:exit_layer=2:gamma=2"}
    assert found["ratios"]["a"]["ngram"]["pairs"] == 2, "two turns"
    assert found["outputs"]["ngram"] == {"equal": 3}
    assert found["ceiling"]["weight_bytes"] > 0
    assert found["totals"]["plain"]["tokens"] == 9
    assert [sample["task"] for sample in found["samples"]] == ["a", "b"], "one of each task"
    first = found["samples"][0]
    assert (first["prompt"], set(first["answers"])) == ("Hi", set(found["columns"]))
    assert [source for _, source in first["answers"]["plain"]] == ["plain"] * 3
    assert {found["columns"][name]["keeps"] for name in found["columns"]} == {"nothing"}
    assert json.loads(out.read_text()) == found


def test_transformers_answers_in_the_same_process_on_the_same_tensors(bench):
    """Guards the rivals that users would otherwise run: greedy, they say the same; sampling runs too."""
    names = "transformers,transformers-early-exit:exit_layer=2:gamma=2:confidence=0,transformers-lookup"
    flags = ("--runtime", "torch", "--drafts", "plain", "--temperature", "0,0.5", "--json")
    found = document(bench("--rivals", names, *flags))
    assert found["failed"] == found["skipped"] == {}
    for name in names.split(","):
        assert found["outputs"][name] == {"equal": 3, "not compared": 3}
        assert found["columns"][name]["weights"] == "shared tensors"
        assert found["totals"][name]["ttft_seconds"] > 0.0


def test_a_baseline_that_was_faster_ends_with_1(bench, tmp_path):
    """Guards CI: what got slower is named, and only then the exit code is 1."""
    before = tmp_path / "before.json"
    first = document(bench("--drafts", "ngram", "--json", "--out", before))
    for factor, code in ((100.0, 1), (0.01, 0)):
        for cell in first["ratios"].values():
            cell["ngram"] = dict.fromkeys(("median", "low", "high"), factor)
        before.write_text(json.dumps(first))
        result = bench("--drafts", "ngram", "--baseline", before)
        assert result.exit_code == code, result.output
        assert ("SLOWER ngram on a: 100.00 ->" in result.stdout) is (code == 1)
        assert f"{2 * code} of 2 ratios got worse" in result.stdout


def test_a_draft_that_changes_a_word_is_shown_and_ends_with_1(bench, monkeypatch):
    """Guards the promise in the benchmark itself: a fast wrong answer is no speedup."""
    right = ours.DrafterColumn.answer

    def wrong(self, ask, first):
        answer = right(self, ask, first)
        return replace(answer, tokens=answer.tokens[::-1]) if self.name == "ngram" else answer

    monkeypatch.setattr(ours.DrafterColumn, "answer", wrong)
    result = bench("--drafts", "ngram")
    assert result.exit_code == 1
    assert "DIFFERENT OUTPUT ngram on a 1, turn 1, token 0" in result.stdout
    assert "DIFFERENT 3/3" in result.stdout


def test_rivals_that_are_missing_or_broken_are_named(bench, tmp_path):
    """Guards against a table that hides a rival: skipped and failed ones are in it, with the reason."""
    broken = tmp_path / "python"
    broken.write_text(f"#!{sys.executable}\nprint('no JSON')\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    model = ("--rival-model", "llama.cpp=m.gguf", "--rival-model", "onnxruntime-genai=folder")
    rivals = ("--rivals", "llama.cpp,openvino-genai,onnxruntime-genai", "--drafts", "plain")
    python = ("--rival-python", f"llama.cpp={broken}", "--rival-python", "onnxruntime-genai=/no/python")
    result = bench(*rivals, *model, *python, "--json")
    assert result.exit_code == 0
    found = document(result)
    assert "no JSON" in found["failed"]["llama.cpp"]
    assert "does not start" in found["skipped"]["onnxruntime-genai"]
    assert "--rival-model openvino-genai=PATH" in found["skipped"]["openvino-genai"]
    for line in ("FAILED llama.cpp:", "SKIPPED onnxruntime-genai:", "SKIPPED openvino-genai:"):
        assert line in result.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--drafts", "gram"), "must be one of"),
        (("--drafts", "early_exit:exit_layer=4"), "it must be 1 to 3"),
        (("--rivals", "transformers-early-exit:exit_layer=4"), "must be 1 to 3"),
        (("--rivals", "tgi"), "must be one of"),
        (("--tasks", "c"), "there are a, b"),
        (("--repeats", 0), "at least 1"),
        (("--baseline", "/no/file"), "cannot be read"),
        (("--out", "/no/folder/file"), "does not exist"),
        (("--max-new-tokens", 5000), "no prompt fits"),
    ],
)
def test_a_mistake_is_one_line(refused, tiny, data, args, words):
    """Guards every check that can be made before measuring: nothing is printed but the error."""
    assert words in refused("bench", "--model", tiny, "--data", data, *args)


def test_later_turns_follow_the_answer_of_the_baseline(tiny):
    """Guards equal questions: every column is asked the same, whatever it said before."""
    engine = selfspec.load(tiny)
    asks = []

    class Scripted(Column):
        def __init__(self, name, text):
            self.name, self._text = name, text

        def answer(self, ask, first):
            asks.append((self.name, ask.prompt))
            return Answer((1,), self._text)

    options = BenchOptions(max_new_tokens=2, repeats=2)
    prompts = [Prompt("a", "1", ("one", "two"))]
    found = list(Benchmark(engine, [Scripted("plain", "yes"), Scripted("x", "no")], options).run(prompts))
    assert len(found) == num_matches(prompts, options) == 4
    messages = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "two"},
    ]
    first, second = (tuple(engine.tokenizer.encode_chat(messages[:n])) for n in (1, 3))
    names = ["plain", "x", "plain", "x", "x", "plain"]  # warm-up, then in turn
    assert asks == [*((name, first) for name in names), *((name, second) for name in names[2:])]


def test_what_does_not_fit_is_left_out_and_named(tiny):
    """Guards the context: a long prompt is reported, not cut."""
    engine = selfspec.load(tiny)
    columns = [ours.DrafterColumn(engine, "plain", "plain", {})]
    made = Benchmark(engine, columns, BenchOptions(max_new_tokens=2, repeats=1))
    prompts = [Prompt("a", "1", ("x" * 5000,)), Prompt("a", "2", ("y",))]
    assert [match.prompt.id for match in made.run(prompts)] == ["2"]
    assert made.measured.too_long[0].startswith("a 1, turn 1: 50")
