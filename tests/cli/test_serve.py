"""`selfspec serve`: what it says, what it refuses before a model is loaded, and how it ends."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
import urllib.request

import pytest


def test_a_signal_ends_it_after_the_answers_are_out(spawn, tiny):
    """Guards the process: the address on stderr, an answer that is under way at SIGTERM, exit code 0."""
    process = spawn("serve", tiny, "--port", 0, "--name", "mine", "--slots", 2)
    line = process.stderr.readline().decode()
    while " at http" not in line:
        assert line, "it ended"
        line = process.stderr.readline().decode()
    url = re.search(r"mine at (http://localhost:[0-9]+/v1)", line)[1]
    body = {"prompt": "hi", "max_tokens": 500, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(
        f"{url}/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.readline()
        process.send_signal(signal.SIGTERM)
        events = [line for line in answer.read().decode().splitlines() if line]
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert process.wait(20) == 0
    assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--slots", 0], "slots is 0; it must be at least 1"),
        (["--queue", -1], "queue is -1"),
        (["--deadline", "nan"], "deadline is nan"),
        (["--port", 70000], "port is 70000"),
        (["--drafts", "ngram,magic"], "drafter is 'magic'"),
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--host", "256.1.1.1"], "cannot listen on 256.1.1.1:8000"),
    ],
)
def test_mistakes_are_one_line(refused, tiny, arguments, words):
    """Guards flags that would be noticed when the first request comes."""
    assert words in refused("serve", tiny, *arguments)


def test_a_port_in_use_is_said_before_the_model_is_loaded(refused, tmp_path):
    """Guards the commonest mistake; a folder without a model would be the next one."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1:{port}" in refused("serve", tmp_path, "--port", port)


def test_without_the_extra_it_says_what_to_install(refused, tiny, monkeypatch):
    """Guards the base installation, which has none of it."""
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "selfspec.server.run", raising=False)
    assert "pip install 'selfspec[serve]'" in refused("serve", tiny)


def test_a_key_with_spaces_is_refused(refused, tiny, monkeypatch):
    """Guards a key that no header could carry."""
    monkeypatch.setenv("SELFSPEC_API_KEY", "a ")
    assert "SELFSPEC_API_KEY has spaces" in refused("serve", tiny)
