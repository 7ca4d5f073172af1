"""A file of prompts: the forms of a line, the order and content of OUT, resuming, and what is refused."""

from __future__ import annotations

import json
import signal
import time

import pytest

from selfspec.cli.asking import asked
from selfspec.engine import Engine
from selfspec.journal import Journal

LINES = [
    {"prompt": "hello", "id": "first", "max_new_tokens": 40},
    {"prompt": "abcabcabc", "draft": "ngram", "adaptive": False, "gamma": 6},
    {"messages": [{"role": "user", "content": "hi"}], "custom_id": "chat", "temperature": 1.0, "seed": 3},
    {"prompt": ""},
    {"prompt": "x", "draft": "early_exit", "exit_layer": 2, "gamma": 2, "max_new_tokens": 3},
    {"prompt": [7, 8, 9], "id": 12},
]
FLAGS = ["--dtype", "float64", "--max-new-tokens", "12", "--ignore-eos", "--slots", "3"]
FLAGS += ["--draft", "ngram", "--no-adaptive"]  # counts that no clock moves


def written(path, lines):
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    return path


def timeless(path):
    """What OUT says, without what a clock says."""
    found = [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]
    return [
        {name: value for name, value in line.items() if "second" not in name and name not in {"seed", "kv_bytes"}}
        for line in found
    ]


@pytest.fixture
def batch(call, tiny, tmp_path):
    """Run `batch` over lines; gives click's result, the results, and what else is in the folder."""

    def run(lines, *args, code=0, text=None):
        source, out = written(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
        result = call("batch", "-" if text else source, out, "--model", tiny, *FLAGS, *args, text=text)
        assert result.exit_code == code, (result.stderr, result.exception)
        found = timeless(out) if out.exists() and code in (0, 1) else None
        return result, found, sorted(path.name for path in tmp_path.iterdir())

    return run


def test_results_are_those_of_generate_in_the_order_of_the_input(batch, call, tiny):
    """Guards order, ids, per-line options and errors; and that nothing but OUT stays behind."""
    result, found, files = batch(LINES, code=1)
    assert files == ["in.jsonl", "out.jsonl"]
    assert [line["line"] for line in found] == [1, 2, 3, 4, 5, 6]
    assert [line["id"] for line in found] == ["first", 2, "chat", 4, 5, 12]
    assert found[3]["error"] == {"type": "PromptError", "message": "the prompt is empty; give some text"}
    assert [len(found[i]["token_ids"]) for i in (0, 1, 2, 4, 5)] == [40, 12, 12, 3, 12]
    assert [(found[i]["draft"], found[i]["gamma"]) for i in (1, 4)] == [("ngram", 6), ("early_exit", 2)]
    for i, flags in ((0, ["hello", "--max-new-tokens", "40"]), (2, ["hi", "--temperature", "1.0", "--seed", "3"])):
        alone = call("generate", flags[0], "--model", tiny, *FLAGS[:5], *flags[1:], "--json")
        assert found[i]["token_ids"] == json.loads(alone.stdout)["token_ids"]
    assert result.stdout == ""
    assert result.stderr.startswith("done 5, failed 1 · 79 tokens · ")
    assert len(result.stderr.splitlines()) == 1


def test_json_is_one_document_with_the_sums(batch):
    """Guards the contract with scripts: exit code 0 when no line failed."""
    result, found, _ = batch(LINES[:3], "--json")
    (line,) = result.stdout.splitlines()
    sums = json.loads(line)
    assert sorted(sums) == [
        *("acceptance_rate", "failed", "resumed", "seconds", "texts", "tokens", "tokens_per_second"),
    ]
    assert (sums["texts"], sums["failed"], sums["resumed"], sums["tokens"]) == (3, 0, 0, 64)
    drafted = sum(entry["drafted"] for entry in found)
    assert sums["acceptance_rate"] == sum(entry["accepted"] for entry in found) / drafted


def openai(line_id="a", **body):
    body = {"messages": [{"role": "user", "content": "hi"}], **body}
    return {"custom_id": line_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def test_explain_sums_what_was_decided(batch):
    """Guards --explain: a table of all texts, and of each in its result; another drafter has none."""
    lines = [{"prompt": "hello"}, {"prompt": "hi", "draft": "plain"}, {"prompt": "abcabc"}]
    result, found, _ = batch(lines, "--draft", "auto", "--adaptive", "--explain")
    assert [line["explanation"] is None for line in found] == [False, True, False]
    rounds = sum(line["explanation"]["rounds"] for line in (found[0], found[2]))
    assert f" of {rounds} rounds of 2 texts drafted" in result.stderr
    for i, choice in enumerate(found[0]["explanation"]["choices"]):
        both = choice["rounds"] + found[2]["explanation"]["choices"][i]["rounds"]
        (row,) = (line.split() for line in result.stderr.splitlines() if line.split()[0] == choice["drafter"])
        assert row[1] == str(both)


def test_the_arguments_of_tool_calls_are_objects():
    """Guards OpenAI's form, in which they are texts: a template would quote them twice."""

    def arguments(text):
        calls = [{"id": "1", "function": {"name": "f", "arguments": text}}]
        line = openai(
            messages=[{"role": "assistant", "tool_calls": calls}], tool_choice="auto", tools=[{"name": "f"}]
        )
        (found,) = asked(json.dumps(line).encode(), {"tiny"})
        if isinstance(found.request, Exception):
            return str(found.request)
        assert found.request["tools"] == [{"name": "f"}]
        return found.request["messages"][0]["tool_calls"][0]["function"]["arguments"]

    assert arguments('{"a": [1]}') == arguments({"a": [1]}) == {"a": [1]}
    assert "no JSON" in arguments("{")


def test_lines_of_openai_batch_files(batch):
    """Guards the second form: the same answers as the first, in OpenAI's names."""
    chat = [{"role": "user", "content": "hi"}]
    bias = {"65": 4.0, "66": -100}
    ours = [
        {"messages": chat, "max_new_tokens": 9},
        {"messages": chat, "max_new_tokens": 9, "stop": ["a"], "frequency_penalty": 0.5, "logit_bias": bias},
        {"prompt": "hi", "chat": False, "max_new_tokens": 5, "temperature": 0.9, "seed": 2},
        {"messages": chat},
    ]
    completion = {"prompt": "hi", "max_tokens": 5, "temperature": 0.9, "seed": 2}
    theirs = [
        openai(max_tokens=9, model="tiny"),
        openai(max_completion_tokens=9, stop=["a"], frequency_penalty=0.5, logit_bias=bias, n=1, stream=False),
        {"custom_id": "b", "url": "/v1/completions", "body": completion},
        openai(stop=None, seed=None, max_tokens=None),
    ]
    _, want, _ = batch(ours)
    _, found, _ = batch(theirs, "--overwrite")
    for entry in want + found:
        del entry["id"]
    assert found == want


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{broken", "line 2 is not JSON"),
        ("[1]", "line 2 is a list; it must be an object"),
        ('{"prompt": "\udcff"}', "line 2 is not JSON: 'utf-8' codec"),
        ("[" * 100_000, "line 2 is not JSON"),
        ('{"prompt": "a", "prompt": "b"}', "has a name twice"),
        ({}, "give either a prompt or messages"),
        ({"prompt": "a", "messages": []}, "give either"),
        ({"prompt": " "}, "the prompt is empty"),
        ({"prompt": "a" * 5000}, "this model's context is 4096"),
        ({"prompt": "a", "max_tokens": 5}, "no option max_tokens"),
        ({"prompt": "a", "temperature": "hot"}, "temperature is 'hot'"),
        ({"prompt": "a", "processors": ["x"]}, "processors has 'x'"),
        ({"prompt": "a", "logit_bias": {"5": 1, "05": 2}}, "logit_bias has 5 twice"),
        ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias has 'x'"),
        ({"prompt": "a", "id": 1.5}, "id is 1.5"),
        ({"prompt": "a", "id": 1, "custom_id": 2}, "id and custom_id are the same"),
        ({"prompt": "a", "draft": "magic"}, "drafter is 'magic'"),
        ({"prompt": "a", "system": 5}, "system is 5"),
        (openai(top_logprobs=2), "top_logprobs is 2, but logprobs is not true"),
        (openai(audio={}), "no option audio"),
        (openai(n=2), "n is 2; it must be 1"),
        (openai(stream=True), "stream is True; it must be false"),
        (openai(model="gpt-9"), "model is 'gpt-9'"),
        (openai(max_tokens=5, max_completion_tokens=5), "are the same; give one"),
        (openai() | {"extra": 1}, "has no extra"),
        (openai() | {"method": "GET"}, "method is 'GET'"),
        (openai() | {"url": "/v1/embeddings"}, "url is '/v1/embeddings'"),
        (openai() | {"url": "/v1/completions"}, "must have prompt"),
        ({"custom_id": "a", "body": []}, "body is []"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_a_wrong_line_is_recorded_and_the_others_are_done(batch, line, words):
    """Guards every mistake in a line: nothing is ignored, nothing stops the rest."""
    _, found, _ = batch([LINES[4], line, LINES[4]], code=1)
    assert words in found[1]["error"]["message"]
    assert len(found[0]["token_ids"]) == len(found[2]["token_ids"]) == 3


def test_blank_lines_and_a_byte_order_mark_are_no_lines(batch, call, tiny, tmp_path):
    """Guards files of Windows editors, and numbers that stay those of the file."""
    raw = '\ufeff{"prompt": "a"}\r\n\r\n{"prompt": "b"}'
    _, found, _ = batch([], text=raw)
    assert [(line["line"], len(line["token_ids"])) for line in found] == [(1, 12), (3, 12)]


@pytest.fixture
def killed(batch, monkeypatch):
    """Run `batch` up to its last moment."""

    def run():
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "finish", lambda self, numbers: (_ for _ in ()).throw(KeyboardInterrupt))
            batch(LINES, code=130)

    return run


@pytest.fixture
def cut(batch, killed, tmp_path):
    """A run that was killed at its last moment: its journal, and what OUT must become."""
    killed()
    partial = tmp_path / "out.jsonl.partial"
    assert not (tmp_path / "out.jsonl").exists()
    journal = partial.read_bytes()
    _, want, files = batch(LINES, code=1)
    assert files == ["in.jsonl", "out.jsonl"]
    (tmp_path / "out.jsonl").unlink()
    return partial, journal, want


def test_a_run_resumes_wherever_it_was_cut(batch, cut, monkeypatch, tmp_path):
    """Guards a kill at every line and inside lines: only what is missing is done, and OUT is the same."""
    partial, journal, want = cut
    asked = []
    whole = Engine.batch

    def counted(self, requests, **options):
        asked.append(len(requests))
        return whole(self, requests, **options)

    monkeypatch.setattr(Engine, "batch", counted)
    ends = [i + 1 for i, byte in enumerate(journal) if byte == ord("\n")]
    assert len(ends) == 1 + len(LINES)
    for cut_at in sorted({0, 5, *ends, *(end - 1 for end in ends), *(end + 9 for end in ends[:-1])}):
        partial.write_bytes(journal[:cut_at])
        result, found, files = batch(LINES, "--json", code=1)
        assert found == want
        assert files == ["in.jsonl", "out.jsonl"]
        done = max(sum(end <= cut_at for end in ends) - 1, 0)
        assert asked.pop() == len(LINES) - done
        assert json.loads(result.stdout)["resumed"] == done
        assert json.loads(result.stdout)["failed"] == 1
        (tmp_path / "out.jsonl").unlink()


def test_a_cut_line_is_gone_when_a_run_is_killed_again(batch, cut, killed):
    """Guards the repair: what is written after a cut line must not join it."""
    partial, journal, want = cut
    first = journal.index(b"\n") + 1
    for cut_at in (first - 1, first + 9):
        partial.write_bytes(journal[:cut_at])
        killed()
        result, found, _ = batch(LINES, code=1)
        assert "6 of 6 lines were done before" in result.stderr
        assert found == want
        partial.with_name("out.jsonl").unlink()


def test_another_run_is_not_mixed_in(batch, cut, tmp_path, refused, tiny):
    """Guards resuming with another input, model or option; --overwrite starts anew."""
    partial, journal, want = cut
    partial.write_bytes(journal)
    out = tmp_path / "out.jsonl"
    for lines, flags, word in (
        (LINES[:5], [], "another input"),
        (LINES, ["--temperature", "0.5"], "another options"),
        (LINES, ["--dtype", "float32"], "another model and options"),
    ):
        source = written(tmp_path / "in.jsonl", lines)
        assert word in refused("batch", source, out, "--model", tiny, *FLAGS, *flags)
        assert partial.read_bytes() == journal
        assert not out.exists()
    partial.write_bytes(journal[: journal.index(b"\n") + 1] + b"nonsense\n")
    source = written(tmp_path / "in.jsonl", LINES)
    assert "damaged" in refused("batch", source, out, "--model", tiny, *FLAGS)
    _, found, files = batch(LINES, "--overwrite", "--slots", "1", code=1)
    assert (found, files) == (want, ["in.jsonl", "out.jsonl"])


def test_slots_may_change_when_a_run_resumes(batch, cut):
    """Guards the way out of too little memory: the slots change no result."""
    partial, journal, want = cut
    partial.write_bytes(journal[: journal.index(b"\n") + 1])
    assert batch(LINES, "--slots", "1", code=1)[1] == want


def test_what_cannot_be_written_or_read_is_refused_before_anything_runs(refused, tiny, tmp_path):
    """Guards one line, exit code 2, and no file left behind."""
    source = written(tmp_path / "in.jsonl", LINES)
    other = written(tmp_path / "done.jsonl", ["old"])
    link = tmp_path / "link.jsonl"
    link.symlink_to(source)
    before = sorted(tmp_path.iterdir())
    for args, words in (
        ((tmp_path / "no.jsonl", tmp_path / "o"), "cannot be read"),
        ((tmp_path, tmp_path / "o"), "cannot be read"),
        ((source, tmp_path / "no" / "o"), "there is no folder"),
        ((source, tmp_path), "must be a file"),
        ((source, "-"), "must be a file"),
        ((source, source), "IN and OUT are both"),
        ((source, link), "IN and OUT are both"),
        ((source, other), "is there already"),
        ((source, tmp_path / "o", "--slots", "0"), "--slots is 0"),
        ((source, tmp_path / "o", "--draft", "magic"), "drafter is 'magic'"),
        ((source, tmp_path / "o", "--temperature", "-1"), "temperature is -1"),
        (
            (written(tmp_path / "in.jsonl", LINES), tmp_path / "o", "--model", tmp_path / "none"),
            "no folder or file",
        ),
        (("-", tmp_path / "o"), "has no lines"),
    ):
        assert words in refused("batch", *args, *([] if "--model" in args else ["--model", tiny]))
        assert sorted(tmp_path.iterdir()) == before
    assert other.read_text() == "old\n"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_process_resumes(spawn, batch, tiny, tmp_path, how):
    """Guards the real thing: Ctrl-C exits with 130, and after either signal the rest is done, once."""
    lines = [{"prompt": "a", "max_new_tokens": 2}, *[{"prompt": "b", "max_new_tokens": 500}] * 3]
    source, out = written(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    partial = tmp_path / "out.jsonl.partial"
    process = spawn("batch", source, out, "--model", tiny, *FLAGS)
    deadline = time.monotonic() + 60
    while not partial.exists() or partial.read_bytes().count(b"\n") < 2:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(how)
    assert partial.read_bytes().count(b"\n") == 2  # a result is on disk long before the next one
    error = process.communicate(timeout=60)[1].decode()
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "of 4 lines are done; run the same command again" in error
    result, found, files = batch(lines)
    assert files == ["in.jsonl", "out.jsonl"]
    assert "lines were done before" in result.stderr
    assert [len(line["token_ids"]) for line in found] == [2, 500, 500, 500]


def test_two_runs_do_not_write_one_file(batch, refused, tiny, tmp_path):
    """Guards the journal against a second process."""
    from filelock import FileLock

    source = written(tmp_path / "in.jsonl", LINES)
    with FileLock(tmp_path / "out.jsonl.partial.lock"):
        assert "another run is writing" in refused("batch", source, tmp_path / "out.jsonl", "--model", tiny, *FLAGS)
