"""What happens around the texts: wrong requests, too many, clients that leave, failures, keys, the end."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading

import openai
import pytest
from served import until

from selfspec.flight import Flight

HI = [{"role": "user", "content": "hi"}]
ENDLESS = {"model": "tiny", "prompt": "hi", "max_tokens": 4000, "temperature": 0}
ON = {"ignore_eos": True, "speculative": {"enabled": False}}


@pytest.mark.parametrize(
    ("change", "words", "param"),
    [
        ({"functions": [{"name": "f"}]}, "no field functions here", "functions"),
        ({"\ud800": 1}, "no field ? here", "?"),
        ({"magic": 1, "audio": {}}, "no field magic, audio here", "magic"),
        ({"response_format": {"type": "xml"}}, 'it must be {"type": "text"}', "response_format"),
        ({"num_beams": 4}, "num_beams is not offered: beam search", "num_beams"),
        ({"temperature": -1}, "temperature is -1.0; it must be 0", "temperature"),
        ({"messages": [None]}, "messages.0 is null; it must be an object", "messages.0"),
        ({"messages": [{"role": "king", "content": "a"}]}, "message 0 has role 'king', which", "messages"),
        ({"max_tokens": 10**30}, "max_tokens is a number beyond 2^63", "max_tokens"),
        ({"logit_bias": {"5": 1e308}}, "logit_bias has the bias 1e+308; it must be", "logit_bias"),
        ({"best_of": 2}, "best_of is not offered: ask for n texts", "best_of"),
        ({"temperature": "hot"}, "temperature is 'hot'; it must be a number", "temperature"),
        ({"top_p": 0}, "top_p is 0.0", "top_p"),
        ({"max_tokens": 0}, "max_tokens is 0; it must be at least 1", "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "are the same; give one", None),
        ({"n": 0}, "n is 0", "n"),
        ({"n": 1000}, "asks for 1000 texts; this server holds 104", "n"),
        ({"seed": -1}, "seed is -1", "seed"),
        ({"seed": 2**70}, "seed is", "seed"),
        ({"stop": ""}, "stop is", "stop"),
        ({"stop": 5}, "stop is 5; it must be", "stop"),
        ({"stop": {"a": 1}}, "stop is {'a': 1}; it must be", "stop"),
        ({"min_tokens": 9, "max_tokens": 5}, "it must be at most max_tokens (5)", "min_tokens"),
        ({"stop": ["x"] * 17}, "stop has 17 texts; it may have 16", "stop"),
        ({"prediction": "a" * 5000}, "prediction is of 5000 tokens; this model's texts have 4096", "prediction"),
        ({"logit_bias": {"x": 1}}, "logit_bias has 'x'", "logit_bias"),
        ({"logit_bias": {"999": 1}}, "logit_bias has token 999", "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs is 2, but logprobs is not true", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs is 21", "top_logprobs"),
        ({"messages": []}, "messages are []", "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "message 0 has content 5", "messages"),
        ({"messages": [{"role": "user", "content": "a" * 5000}]}, "this model's context is 4096", "messages"),
        ({"stream_options": {"include_usage": True}}, "stream_options needs stream", "stream_options"),
        (
            {"stream_options": {"continuous_usage_stats": True}, "stream": True},
            "continuous_usage_stats needs include_usage",
            "stream_options",
        ),
        ({"stream_options": {"x": 1}, "stream": True}, "no field stream_options.x here", "stream_options.x"),
        ({"deadline": 0}, "deadline is 0", "deadline"),
        ({"prediction": {"type": "content"}}, "prediction must be a text", "prediction"),
        ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs has 'x'", "chat_template_kwargs"),
        (
            {"chat_template_kwargs": {"m": 1}},
            "chat_template_kwargs has 'm'",
            "chat_template_kwargs",
        ),  # a loop's own
        ({"speculative": {"draft": "draft_model"}}, "speculative.draft is 'draft_model'", "speculative.draft"),
        ({"speculative": {"draft": ["x"]}}, "speculative.draft is ['x']", "speculative.draft"),
        (
            {"speculative": {"draft": "suffix", "corpus": ["/etc/passwd"]}},
            "corpus is for whoever starts the server",
            "speculative.corpus",
        ),
        ({"speculative": {"draft": "auto", "candidates": "plain"}}, "is for whoever", "speculative.candidates"),
        (
            {"speculative": {"exit_layer": 2}},
            "speculative.exit_layer is no option of ngram",
            "speculative.exit_layer",
        ),
        ({"speculative": {"enabled": False, "gamma": 3}}, "leave out gamma", "speculative"),
        ({"speculative": {"gamma": 999}}, "speculative.gamma is 999", "speculative.gamma"),
        ({"speculative": 5}, "speculative is 5", "speculative"),
        ({"logit_bias": {str(token): -1e400 for token in range(259)}}, "no token is left for new token 1", None),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_a_wrong_request_is_told_what_is_wrong(server, change, words, param):
    """Guards every mistake: status 400, one line, the field by its name; nothing is ignored."""
    body = {"model": "tiny", "messages": HI, "max_tokens": 3} | change
    status, _, found = server.send("/v1/chat/completions", body)
    assert status == 400, found
    assert words in found["error"]["message"]
    assert "\n" not in found["error"]["message"]
    assert (found["error"]["type"], found["error"]["param"]) == ("invalid_request_error", param)


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/completions", {"prompt": []}, 400, "prompt is []"),
        ("/v1/completions", {"prompt": [1, "a"]}, 400, "prompt is [1, 'a']"),
        ("/v1/completions", {"prompt": [[1], [True]]}, 400, "holds 'True'"),
        ("/v1/completions", {"prompt": [5000]}, 400, "token id 5000 is outside"),
        ("/v1/completions", {}, 400, "prompt is missing"),
        ("/v1/completions", b"null", 400, "the body is null"),
        ("/v1/completions", {"prompt": "a", "max_tokens": -1}, 400, "max_tokens is -1"),
        ("/v1/completions", {"prompt": "a", "model": "gpt-9"}, 404, "model is 'gpt-9'"),
        ("/v1/completions", b"{broken", 400, "the body is not JSON"),
        ("/v1/completions", b"[" * 90_000, 400, "the body is not JSON"),
        ("/v1/completions", b'{"prompt": "a", "prompt": "b"}', 400, "a name twice"),
        ("/v1/completions", b"\xff", 400, "the body is not JSON"),
        ("/v1/completions", b"5", 400, "the body is a number"),
        ("/v1/embeddings", {}, 404, "POST /v1/embeddings is not there"),
        ("/v1/models", {}, 405, "POST /v1/models is not offered"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_what_is_no_request_is_refused_in_json(server, path, body, status, words):
    """Guards bodies and paths that no client sends."""
    found = server.send(path, body)
    assert (found[0], list(found[2])) == (status, ["error"])
    assert words in found[2]["error"]["message"]


def test_keys_types_and_sizes_are_checked_first(start):
    """Guards the door: the key on all but /health, JSON by its type only, and no body over the limit."""
    server = start(api_key="sesame", max_body=300)
    with server.client("sesame") as client:
        assert client.completions.create(model="tiny", prompt="a", max_tokens=1).choices
    for key in ("none", "sesam", "sesame2", "ä"):
        headers = {"authorization": f"Bearer {key}".encode("latin-1")}
        assert server.send("/v1/models", b"", "GET", **headers)[0] == 401
    with server.client("wrong") as client, pytest.raises(openai.AuthenticationError, match="the API key is wrong"):
        client.models.list()
    assert server.send("/metrics", b"", "GET")[0] == 401
    assert server.send("/health", b"", "GET")[0] == 200
    right = {"authorization": "Bearer sesame"}
    assert server.send("/v1/completions", {"prompt": "a"}, **right, **{"content-type": "text/plain"})[0] == 415
    assert server.send("/v1/completions", {"prompt": "a" * 400}, **right)[0] == 413
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        pieces = iter([b" " * 200] * 3)  # sent in chunks, without a length
        connection.request("POST", "/v1/completions", pieces, right | {"content-type": "application/json"})
        assert connection.getresponse().status == 413


@pytest.mark.usefixtures("slow")
def test_more_requests_than_may_wait_are_sent_away(start):
    """Guards the queue: 429 with Retry-After, and those that wait are answered in turn."""
    server = start(slots=1, queue=1)
    with server.client() as client:
        running = client.completions.create(**ENDLESS, extra_body=ON, stream=True)
        next(running)
        answers = []
        brief = ENDLESS | {"max_tokens": 3}
        waiting = threading.Thread(target=lambda: answers.append(client.completions.create(**brief)))
        waiting.start()
        server.has(running=1, waiting=1)
        with pytest.raises(openai.RateLimitError, match="1 texts are being written and 1 wait") as full:
            client.completions.create(**ENDLESS)
        assert full.value.response.headers["retry-after"] == "1"
        running.close()
        waiting.join(20)
        assert answers[0].usage.completion_tokens <= 3


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_leaves_frees_its_slot(start, caplog, streams):
    """Guards the slot: within a round of hearing of it, the text is gone, and most of it was never written."""
    server = start(slots=1)
    with server.client(timeout=30 if streams else 0.5) as client:
        if streams:
            with client.completions.create(**ENDLESS, extra_body=ON, stream=True) as stream:
                next(iter(stream))
        else:
            with pytest.raises(openai.APITimeoutError):
                client.completions.create(**ENDLESS, extra_body=ON)
    until(lambda: server.metric("selfspec:texts_total") == 1)
    server.has(running=0, waiting=0)
    assert server.metric("vllm:generation_tokens_total") < 2000
    assert 'reason="GoneError"' in server.service.metrics.text().decode()
    assert server.send("/v1/completions", ENDLESS | {"max_tokens": 2})[0] == 200
    assert [record.message for record in caplog.records if record.levelname != "INFO"] == []  # nor by a failure


@pytest.mark.usefixtures("slow")
def test_time_that_is_over_ends_a_text(start):
    """Guards deadlines, of the server and of a request, before and after the first chunk."""
    server = start(slots=1, deadline=0.8)
    with server.client() as client:
        with pytest.raises(openai.InternalServerError, match="the text was not finished") as late:
            client.completions.create(**ENDLESS, extra_body=ON | {"deadline": 0.05})
        assert (late.value.status_code, late.value.response.headers["x-should-retry"]) == (504, "false")
        stream = client.completions.create(**ENDLESS, extra_body=ON, stream=True)
        with pytest.raises(openai.APIError, match="the text was not finished"):
            list(stream)
    server.has(running=0, waiting=0)


def test_a_round_that_fails_ends_what_was_in_flight_and_nothing_more(start, monkeypatch):
    """Guards the worker: out of memory, or a bug of ours, is said, the slot is free, and the next request runs."""
    server = start(slots=2)
    turn, raised = Flight.turn, [MemoryError(), KeyError("ours")]

    def failing(flight):
        if raised:
            raise raised.pop(0)
        return turn(flight)

    monkeypatch.setattr(Flight, "turn", failing)
    for status, code in ((503, "out_of_memory"), (500, "internal_error")):
        found = server.send("/v1/completions", ENDLESS)
        assert (found[0], found[2]["error"]["code"]) == (status, code)
        assert "ours" not in found[2]["error"]["message"]
    assert server.send("/v1/completions", ENDLESS | {"max_tokens": 2})[0] == 200


@pytest.mark.usefixtures("slow")
def test_a_text_that_fails_touches_no_other(start):
    """Guards the neighbours of a text that has no token left to choose."""
    server = start(slots=3)
    asked = ENDLESS | {"max_tokens": 60}
    with server.client() as client:
        want = client.completions.create(**asked, extra_body=ON).choices[0].text
        stream = client.completions.create(**asked, extra_body=ON, stream=True)
        pieces = [next(stream).choices[0].text]
        banned = {str(token): -1e400 for token in range(259)}
        status, _, found = server.send("/v1/completions", ENDLESS | {"logit_bias": banned})
        assert (status, found["error"]["message"][:16]) == (400, "no token is left")
        assert server.scheduler.num_running == 1
        pieces += [chunk.choices[0].text for chunk in stream]
        assert "".join(pieces) == want


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("grace", [10.0, 0.0])
def test_the_end_finishes_or_fails_every_request(start, grace):
    """Guards the shutdown: with time left all texts are finished; without, each is told, and so is who waits."""
    server = start(slots=1, grace=grace)
    found = {}

    def ask(client, name, **options):
        try:
            done = client.completions.create(**ENDLESS | {"max_tokens": 80}, extra_body=ON, **options)
            found[name] = "".join(c.choices[0].text for c in done) if options else done.choices[0].text
        except openai.APIError as error:
            found[name] = error

    with server.client() as one, server.client() as two:
        threads = [threading.Thread(target=ask, args=(one, "stream"), kwargs={"stream": True})]
        threads[0].start()
        until(lambda: server.metric("vllm:generation_tokens_total"))
        threads.append(threading.Thread(target=ask, args=(two, "waits")))
        threads[1].start()
        server.has(running=1, waiting=1)
        server.stop()
        for thread in threads:
            thread.join(10)
    if grace:
        assert found["stream"] == found["waits"]
    else:
        told = {name: "the server shut down" in str(error) for name, error in found.items()}
        assert told == {"stream": True, "waits": True}
        assert found["waits"].status_code == 503
    with pytest.raises(ConnectionError):
        server.send("/health", b"", "GET")


def test_every_request_is_a_line_in_the_log(server, caplog):
    """Guards the log: JSON with the id of the request, what it took, and who asked."""
    caplog.set_level("INFO", "selfspec.server")
    body = {"prompt": "hi", "max_tokens": 3, "user": "ann", **ON}
    server.send("/v1/completions", body, **{"x-request-id": "abc"})
    until(lambda: any('"abc"' in record.message for record in caplog.records))  # the answer is out before
    (line,) = [json.loads(record.message) for record in caplog.records if '"abc"' in record.message]
    assert {**line, "seconds": 0} == {
        "id": "abc",
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "stream": False,
        "texts": 1,
        "user": "ann",
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "seconds": 0,
    }
