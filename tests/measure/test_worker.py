"""Rivals in processes of their own: the protocol, with a rival that is not there at all."""

from __future__ import annotations

import json
import sys
import time
import types
from pathlib import Path

import pytest

from selfspec.measure import worker
from selfspec.measure.process import RivalMissingError, WorkerColumn
from selfspec.measure.timing import Ask, ColumnError, Stopwatch

# speaks the protocol through the real `serve`, with an opener that the test writes
FAKE = f"""
import importlib.util, json, os, sys
spec = importlib.util.spec_from_file_location("worker", {worker.__file__!r})
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)
worker.OPENERS["fake"] = lambda settings: HERE
sys.argv = ["worker", json.dumps({{"rival": "fake"}})]
worker.main()
"""
COUNTS = """({"version": "1"}, lambda request, first: (print("noise"), first(),
    list(range(request["max_new_tokens"])) + request["eos"])[2])"""


def start(opener, eos=(9,), patience=20.0):
    return WorkerColumn("fake", [sys.executable, "-c", FAKE.replace("HERE", opener)], eos, patience)


@pytest.fixture
def column():
    made = start(COUNTS)
    yield made
    made.close()


def test_a_worker_answers_again_and_again(column):
    """Guards the protocol end to end, a library that prints on stdout included."""
    watch = Stopwatch([column], time.perf_counter)
    for length in (3, 4):
        ((_, run),) = watch.round(Ask((1, 2), length))
        assert run.answer.tokens == (*range(length), 9)
        assert 0.0 < run.ttft_seconds <= run.seconds
        assert run.peak_bytes > 10**6
    assert column.about == {"version": "1"}
    assert watch.failed == {}


def test_going_on_past_the_end_is_asked_for_by_no_ends(column):
    """Guards equal lengths: ends are the model's, or none."""
    assert column.answer(Ask((1,), 2, ignore_eos=True), lambda: None).tokens == (0, 1)


@pytest.mark.parametrize(
    ("opener", "error", "words"),
    [
        ("__import__('not_there_at_all')", RivalMissingError, "not_there_at_all"),
        ("1 / 0", ColumnError, "ZeroDivisionError"),
        ("os._exit(3)", ColumnError, "ended with code 3"),
        ("(print('last words', file=sys.stderr), os._exit(4))", ColumnError, "code 4: last words"),
        ("__import__('time').sleep(60)", ColumnError, "nothing for 2 seconds"),
    ],
)
def test_a_worker_that_does_not_open_says_why(opener, error, words):
    """Guards the two kinds: not installed is skipped, a failure is reported."""
    with pytest.raises(error, match=words):
        start(opener, patience=2.0 if "sleep" in opener else 20.0)


@pytest.mark.parametrize(
    ("answer", "words"),
    [("1 / 0", "ZeroDivisionError"), ("os._exit(5)", "ended with code 5"), ("'text'", "worker said|invalid")],
)
def test_a_worker_that_fails_later_leaves_the_table(answer, words):
    """Guards the other columns against a rival that breaks half-way."""
    column = start(f"({{}}, lambda request, first: {answer})")
    watch = Stopwatch([column], time.perf_counter)
    assert list(watch.round(Ask((1,), 2))) == []
    assert watch.columns == []
    assert __import__("re").search(words, watch.failed["fake"])


def test_a_python_that_is_not_there_is_missing():
    """Guards a wrong --rival-python: named and skipped."""
    with pytest.raises(RivalMissingError, match="does not start"):
        WorkerColumn("x", [str(Path("/nowhere/python"))], ())


def test_llama_cpp_is_asked_for_a_fresh_prompt_every_time(monkeypatch):
    """Guards its prompt cache: without a reset, a repeated prompt would prefill nothing."""
    calls = []

    class Llama:
        def __init__(self, path, **options):
            calls.append(("open", path, options["n_threads"], type(options.get("draft_model")).__name__))

        def reset(self):
            calls.append("reset")

        def set_seed(self, seed):
            calls.append(("seed", seed))

        def generate(self, tokens, **options):
            calls.append(("generate", tokens, options["temp"], options["min_p"]))
            yield from (5, 6, 2, 7)

    class LlamaPromptLookupDecoding:
        def __init__(self, max_ngram_size, num_pred_tokens):
            calls.append((max_ngram_size, num_pred_tokens))

    speculative = types.SimpleNamespace(LlamaPromptLookupDecoding=LlamaPromptLookupDecoding)
    monkeypatch.setitem(sys.modules, "llama_cpp", types.SimpleNamespace(Llama=Llama))
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", speculative)
    monkeypatch.setattr(worker, "version", lambda _: "0.3")
    settings = {"model": "m.gguf", "threads": 2, "context": 64, "options": {"gamma": 7, "ngram": 3}}
    said = []
    request = {"prompt": [1], "max_new_tokens": 9, "temperature": 0.0, "seed": 4, "eos": [2]}
    worker.serve(worker.open_llama_cpp, settings, [json.dumps(request)] * 2, said.append)
    asked = ["reset", ("seed", 4), ("generate", [1], 0.0, 0.0)]
    assert calls == [(3, 7), ("open", "m.gguf", 2, "LlamaPromptLookupDecoding"), *asked, *asked]
    assert [message.get("tokens", message) for message in said[1:3]] == [{"first": True}, [5, 6, 2]]
