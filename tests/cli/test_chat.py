"""Conversations: over a pipe, on a terminal, and interrupted."""

import json
import os
import pty
import select
import signal

import pytest

SHORT = ["--max-new-tokens", "8", "--ignore-eos"]


@pytest.fixture
def talk(call, tiny):
    """Run `chat` over a pipe on the tiny model."""

    def run(text, *flags):
        return call("chat", "--model", tiny, *SHORT, *flags, text=text)

    return run


def test_a_pipe_gives_answers_and_summaries_without_prompts(talk):
    """Guards scripts: stdout has nothing but the answers, and an unfinished last line counts."""
    result = talk("hello\n\nagain")
    assert result.exit_code == 0, result.stderr
    assert "> " not in result.stdout.splitlines()
    assert [line.split(" · ")[0] for line in result.stderr.splitlines()] == ["8 tokens", "8 tokens"]
    assert result.stdout.count("\n") >= 2


def test_json_has_one_document_with_all_turns(talk):
    """Guards --json: the turns see each other, a reset starts over, and commands are no turns."""
    result = talk("hello\n/help\nhello\n/reset\nhello\n/exit\nnever\n", "--json", "--system", "Be brief.")
    assert result.exit_code == 0, result.stderr
    assert len(result.stdout.splitlines()) == 1
    document = json.loads(result.stdout)
    assert document["model"] == "tiny"
    assert document["system"] == "Be brief."
    first, second, fresh = document["turns"]
    assert [turn["conversation"] for turn in (first, second, fresh)] == [0, 0, 1]
    assert second["prompt_tokens"] > first["prompt_tokens"] == fresh["prompt_tokens"]
    assert first["token_ids"] == fresh["token_ids"]
    assert not any(turn["interrupted"] for turn in document["turns"])


def test_explain_shows_what_was_decided_for_each_answer(talk):
    """Guards --explain: a table before each summary, the same in the document, and a refusal for other drafters."""
    assert talk("hello\nagain", "--explain").stderr.count("α by position") == 2
    document = json.loads(talk("hello", "--json", "--explain").stdout)
    assert document["turns"][0]["explanation"]["choices"][0]["drafter"] == "plain"
    assert "add --draft auto" in talk("hello", "--draft", "ngram", "--explain").stderr


def test_an_empty_pipe_is_an_empty_chat(talk):
    """Guards the end of input as the first thing."""
    result = talk("", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["turns"] == []


def test_only_words_are_commands(talk):
    """Guards messages that begin with a path."""
    result = talk("/usr/bin/env is what?\n", "--json")
    assert [turn["prompt"] for turn in json.loads(result.stdout)["turns"]] == ["/usr/bin/env is what?"]


@pytest.mark.parametrize(
    ("text", "flags", "says"),
    [
        ("/frobnicate\n", [], "no command /frobnicate; there are /exit, /reset and /help"),
        (b"gr\xf6\xdfe\n", [], "a message on stdin is not UTF-8"),
        ("x" * 5000, [], "this model's context is 4096"),
        ("hello\n", ["--gamma", "-1"], "gamma is -1"),
        ("hello\n", ["--draft", "plain", "--exit-layer", "2"], "drafter 'plain' has no --exit-layer"),
        ("hello\n", ["--model", "/nowhere"], "there is no folder or file"),
        ("hello\n", ["--no-chat"], "No such option '--no-chat'"),
    ],
)
def test_mistakes_over_a_pipe_end_the_chat(refused, tiny, text, flags, says):
    """Guards scripts against answers to half of their questions with exit code 0."""
    assert says in refused("chat", "--model", tiny, "--json", *SHORT, *flags, text=text)


def test_ctrl_c_stops_one_answer_only(spawn, tiny):
    """Guards the interrupt: the chat goes on with what was said so far."""
    flags = ["--max-new-tokens", "1500", "--ignore-eos", "--draft", "plain"]
    process = spawn("chat", "--model", tiny, *flags, stdin=-1)
    process.stdin.write(b"hello\n")
    process.stdin.flush()
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() == b"stopped\n"
    process.stdin.write(b"/reset\n/exit\n")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert errors == b"forgotten\n"


def read_until(terminal, wanted):
    seen = b""
    while wanted not in seen:
        assert select.select([terminal], [], [], 60)[0], seen
        seen += os.read(terminal, 4096)
    return seen.decode()


def test_a_terminal_has_a_prompt_and_survives_mistakes(spawn, tiny):
    """Guards the interactive side: prompt, marks in colour, and an error that does not end the chat."""
    ours, theirs = pty.openpty()
    try:
        spawned = spawn("chat", "--model", tiny, *SHORT, stdin=theirs, stdout=theirs, stderr=theirs)
        assert "/reset" in read_until(ours, b"> ")
        os.write(ours, b"/frobnicate\n")
        assert "error: no command /frobnicate" in read_until(ours, b"\n> ")
        os.write(ours, b"hello\n")
        assert "8 tokens · " in read_until(ours, b"\x1b[0m\r\n> ")
        os.write(ours, b"\x04")
        assert spawned.wait(timeout=60) == 0
    finally:
        os.close(ours)
        os.close(theirs)
