"""The page's files, and what it asks of the server; test_page_in_browser.py looks at it in Chromium."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from selfspec.drafters import drafter_class

FOLDER = files("selfspec.server") / "assets"
FILES = {file.name: file.read_text("utf-8") for file in FOLDER.iterdir()}
SCRIPTS = {name: text for name, text in FILES.items() if name.endswith(".js")}
HI = [{"role": "user", "content": "abc abc abc"}]


class Tags(HTMLParser):
    """The tags of a page, and what stands in scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.found, self.within = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.found and self.found[-1][0] in ("script", "style") and data.strip():
            self.within.append(data)


TAGS = Tags(FILES["index.html"])


def test_nothing_in_the_page_needs_more_than_its_policy_allows():
    """Guards the strict policy: no script, style or handler in the markup, nothing from elsewhere."""
    assert [tag for tag, _ in TAGS.found if tag in ("style", "iframe", "object", "embed")] == TAGS.within == []
    assert all("src" in attrs for tag, attrs in TAGS.found if tag == "script")
    names = [name for _, attrs in TAGS.found for name in attrs]
    assert [name for name in names if name == "style" or name.startswith("on")] == []
    own = ("http://www.w3.org/2000/svg",)  # a name, which nothing is asked of
    for name, text in FILES.items():
        assert [url for url in re.findall(r"https?://[^\"'\s>]+", text) if url not in own] == [], name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|@import|Storage", text
        )


def test_the_parts_of_the_page_fit_together():
    """Guards names: files, modules, elements, labels and descriptions that are referred to are there."""
    loaded = [attrs.get("src") or attrs.get("href") for tag, attrs in TAGS.found if tag in ("script", "link")]
    imported = [f"page/{name}" for text in SCRIPTS.values() for name in re.findall(r'from "\./(.+?)"', text)]
    assert {*loaded, *imported} == {f"page/{name}" for name in FILES} - {"page/index.html"}
    ids = [attrs["id"] for _, attrs in TAGS.found if "id" in attrs]
    assert len(ids) == len(set(ids))
    used = {
        name
        for text in SCRIPTS.values()
        for name in re.findall(r'(?:\bat|getElementById|swap)\("([\w-]+)"(?:, "[\w-]+")?\)', text)
    }
    described = {attrs["aria-describedby"] for _, attrs in TAGS.found if "aria-describedby" in attrs}
    labelled = {attrs["for"] for tag, attrs in TAGS.found if tag == "label"}
    assert used | described | labelled <= set(ids)
    assert {attrs["id"] for tag, attrs in TAGS.found if tag in ("input", "select", "textarea")} == labelled
    for text in SCRIPTS.values():  # every token has a class that the style knows
        for name in re.findall(r"by-(\w+)", text):
            assert name in ("draft", "bonus", "plain")


def test_the_page_is_open_and_its_files_are_typed(start):
    """Guards the door: the page opens without the key, which is typed in there; its policy goes with every file."""
    server = start(api_key="sesame", slots=1)
    for name, text in FILES.items():
        status, headers, raw = server.fetch("/" if name == "index.html" else f"/page/{name}")
        assert (status, raw.decode()) == (200, text)
        assert "default-src 'none'; script-src 'self'" in headers["content-security-policy"]
        assert headers["content-type"].split(";")[0] in (
            "text/html",
            "text/css",
            "text/javascript",
            "image/svg+xml",
        )
        assert headers["x-content-type-options"] == "nosniff"
    for path in ("/v1/drafters", "/page", "//", "/page/../v1/drafters", "/page%2f..%2fv1/models"):
        assert server.fetch(path)[0] in (401, 404), path


def test_drafters_are_offered_as_requests_may_choose_them(server, engine):
    """Guards the controls: every option on offer may be set, and those of the operator are not on offer."""
    status, _, found = server.send("/v1/drafters", b"", "GET")
    assert (status, found["default"], found["layers"]) == (200, "ngram", engine.config.num_layers)
    offered = {entry["id"]: entry for entry in found["data"]}
    assert {"auto", "early_exit", "ngram", "plain", "suffix"} <= set(offered)
    for name, entry in offered.items():
        kind = drafter_class(name)
        assert entry["summary"] == kind.summary
        assert {option["type"] for option in entry["options"]} <= {"integer", "number", "boolean", "string"}
        assert not {"corpus", "candidates", "profile"} & {option["name"] for option in entry["options"]}
        given = {option["name"]: option["default"] for option in entry["options"] if option["default"] is not None}
        if name in ("ngram", "suffix", "early_exit", "auto"):
            body = {"messages": HI, "max_tokens": 1, "speculative": {"draft": name} | given}
            assert server.send("/v1/chat/completions", body)[0] == 200, name
    defaults = {option["name"]: option["default"] for option in offered["ngram"]["options"]}
    assert defaults["adaptive"] is False  # what the server was started with, not what the class has


@pytest.mark.parametrize("drafts", [{"draft": "early_exit", "exit_layer": 3}, {"gamma": 5}, {"enabled": False}])
def test_a_stream_says_who_wrote_what_where_it_is_asked(client, engine, drafts):
    """Guards `include_drafts`: each token's author is the engine's; who does not ask sees OpenAI's form."""
    asked = {"model": "tiny", "messages": HI, "stream": True, "max_tokens": 40, "temperature": 0}
    extra = {"speculative": drafts, "ignore_eos": True}
    mine = {"draft": "plain"} if drafts.get("enabled") is False else drafts
    made = list(engine.stream(messages=HI, max_new_tokens=40, temperature=0, ignore_eos=True, **mine))
    chunks = list(
        client.chat.completions.create(**asked, stream_options={"include_drafts": True}, extra_body=extra)
    )
    rounds = [chunk.selfspec for chunk in chunks if "selfspec" in chunk.model_extra]
    tokens = [token for written in rounds for token in written["tokens"]]
    assert [token["text"] for token in tokens] == [chunk.text for chunk in made]
    assert [token["by"] == "draft" for token in tokens] == [chunk.source == "draft" for chunk in made]
    for written in rounds:
        by = [token["by"] for token in written["tokens"]]
        own = ["bonus" if written["drafted"] else "plain"]
        assert by == ["draft"] * written["accepted"] + own[: len(by) - written["accepted"]]
    assert "".join(token["text"] for token in tokens) == "".join(
        chunk.choices[0].delta.content or "" for chunk in chunks
    )
    if drafts.get("enabled") is not False:
        assert sum(written["accepted"] for written in rounds) > 0
    plain = list(client.chat.completions.create(**asked, extra_body=extra))
    assert not any("selfspec" in chunk.model_extra for chunk in plain)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in plain) == "".join(c.text for c in made)
