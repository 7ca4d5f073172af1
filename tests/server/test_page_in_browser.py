"""The page in Chromium: what is seen, heard and sent (`pytest -m browser`)."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

import pytest
from served import Running, until

import selfspec
from selfspec.flight import Flight

pytestmark = pytest.mark.browser
ASKED = "abc abc abc abc"
TOKENS = 60


@pytest.fixture
def endless(tiny):
    """A server whose texts end at their length only."""
    running = Running(selfspec.load(tiny, draft="plain", ignore_eos=True), slots=2)
    yield running
    running.stop()


@pytest.fixture
def chat(visit, start):
    """Opens the page of a server; its requests for texts are in ``posts``."""

    def opened(server=None, ready=True, **options):
        server = server or start(slots=2)
        found = visit(f"http://127.0.0.1:{server.port}/", **options)
        found.server, found.posts = server, []
        found.page.on("request", lambda r: r.method == "POST" and found.posts.append(json.loads(r.post_data)))
        if ready:
            found.page.wait_for_selector("#send:enabled")
            if not found.page.evaluate("document.querySelector('#settings').open"):
                found.page.click("#settings > summary")
            found.page.fill("#max-tokens", str(TOKENS))
        return found

    return opened


def ask(page, text=ASKED, waits=".verdict"):
    page.fill("#question", text)
    page.press("#question", "Enter")
    if waits:
        page.wait_for_selector(waits)


def written(page, answer=0):
    """The text of an answer, and who wrote what of it."""
    found = page.evaluate(
        "n => [...document.querySelectorAll('.answer')][n].querySelector('.text')"
        ".childNodes.values().map(s => [s.className.slice(3), s.textContent]).toArray()",
        answer,
    )
    return "".join(text for _, text in found), [(by, text) for by, text in found]


def tokens(page, answer=0):
    """How many tokens there are of an answer that may have none yet."""
    return page.locator(".answer").count() > answer and int(figures(page, answer)["tokens"].replace("–", "0"))


def figures(page, answer=0):
    names = page.locator(".answer").nth(answer).locator("dt").all_inner_texts()
    return dict(zip(names, page.locator(".answer").nth(answer).locator("dd").all_inner_texts(), strict=True))


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 1280), (False, 375), (True, 375)])
def test_an_answer_is_coloured_measured_and_compared(chat, engine, dark, width, tmp_path):
    """Guards all that the page is for, by day and night, on desk and phone, and readers of all kinds."""
    visit = chat(dark=dark, width=width, height=800)
    page = visit.page
    page.select_option("#draft", "early_exit")
    page.fill("#option-exit_layer", "3")
    page.fill("#option-gamma", "3")
    assert visit.violations() == []
    ask(page)
    asked = {
        "messages": [{"role": "user", "content": ASKED}],
        "max_new_tokens": TOKENS,
        "temperature": 0,
        "seed": 1,
    }
    drafts = {"draft": "early_exit", "exit_layer": 3, "gamma": 3}
    chunks = list(engine.stream(**asked, **drafts))
    want = engine.generate(**asked, **drafts)
    text, spans = written(page)
    assert text == written(page, 1)[0] == "".join(chunk.text for chunk in chunks) == want.text
    authors = {"draft": [], "bonus": [], "plain": []}
    for by, piece in spans:
        authors[by].append(piece)
    drafted = "".join(chunk.text for chunk in chunks if chunk.source == "draft")
    assert "".join(authors["draft"]) == drafted != ""
    assert authors["bonus"]
    assert {by for by, _ in written(page, 1)[1]} == {"plain"}
    seen = figures(page)
    assert seen["α"] == f"{want.stats.acceptance_rate:.2f}"
    assert seen["τ"] == f"{want.stats.mean_accepted_length:.2f}"
    assert seen["tokens"] == figures(page, 1)["tokens"] == str(len(want.token_ids))
    assert float(seen["against plain"].rstrip("×")) > 0
    assert page.get_attribute(".verdict", "data-same") == "true"
    assert page.inner_text(".verdict").startswith("The same words")
    assert page.locator(".chart path").count() == 3
    background = "s => getComputedStyle(document.querySelector('.text ' + s)).backgroundColor"
    colours = [page.evaluate(background, f".by-{by}") for by in ("draft", "bonus", "plain")]
    assert len(set(colours)) == 3
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper.strip("rgb()").split(","))) < 384) == dark
    assert visit.violations() == []
    assert not visit.is_wider_than_screen()
    assert visit.errors == []
    assert {urlsplit(request.split()[1]).netloc for request in visit.requests} == {f"127.0.0.1:{visit.server.port}"}
    page.screenshot(path=tmp_path / "page.png", full_page=True)


def test_texts_that_differ_are_found_to_differ(chat):
    """Guards the comparison: where texts part, one that is a part of the other, answers that were stopped."""
    compare = (
        "async ([one, other, ends]) => (await import('./page/run.js')).compared("
        "{text: one, finish: ends, rate: 3}, {text: other, finish: 'stop', rate: 2})"
    )
    page = chat(ready=False).page
    for one, other, ends, at in (
        ("river", "river", "stop", -1),
        ("river", "rider", "stop", 2),
        ("river", "rivers", "stop", 5),
        ("river", "rivers", "stopped", -1),
        ("rider", "rivers", "stopped", 2),
    ):
        found = page.evaluate(compare, [one, other, ends])
        assert found == {"at": at, "isWhole": ends == "stop", "speed": 1.5}


def test_controls_are_made_from_what_the_server_offers(chat):
    """Guards every control: it is there for each option, what is set is sent, what is not set is not."""
    visit = chat()
    page, server = visit.page, visit.server
    offers = server.send("/v1/drafters", b"", "GET")[2]
    assert page.locator("#draft option").evaluate_all("found => found.map(o => o.value)") == [
        entry["id"] for entry in offers["data"]
    ]
    assert page.input_value("#draft") == offers["default"]
    for entry in offers["data"]:
        page.select_option("#draft", entry["id"])
        controls = page.locator("#main-options input, #more-options input")
        assert sorted(controls.evaluate_all("found => found.map(input => input.name)")) == sorted(
            option["name"] for option in entry["options"]
        )
    page.select_option("#draft", "ngram")
    page.fill("#option-gamma", "3")
    page.click("#more > summary")
    page.click("#option-adaptive")
    page.fill("#temperature", "0.8")
    page.fill("#seed", "5")
    ask(page)
    page.select_option("#draft", "early_exit")
    page.fill("#option-exit_layer", "2")
    page.select_option("#draft", "ngram")  # what was set for it is still there
    assert page.input_value("#option-gamma") == "3"
    page.uncheck("#compare")
    page.fill("#temperature", "0")
    ask(page, waits="article:nth-child(2) .ended:not(:empty)")
    first, second, third = visit.posts
    assert first["speculative"] == third["speculative"] == {"draft": "ngram", "gamma": 3, "adaptive": True}
    assert second["speculative"] == {"enabled": False}
    for post in (first, second):
        assert (post["temperature"], post["seed"], post["coupled"], post["max_tokens"]) == (0.8, 5, True, TOKENS)
    assert (third["temperature"], "coupled" in third) == (0, False)
    answer = written(page)[0].strip()
    assert [turn["content"].strip() for turn in third["messages"]] == [ASKED, answer, ASKED]
    assert visit.errors == []


def test_wrong_options_are_told_and_the_question_can_be_asked_again(chat):
    """Guards mistakes: the server's line is shown and announced, and the next question stands alone."""
    visit = chat()
    page = visit.page
    page.select_option("#draft", "early_exit")
    page.fill("#option-exit_layer", "99")
    ask(page, waits="#alert:not(:empty)")
    assert "99" in page.inner_text("#alert")
    page.fill("#option-exit_layer", "")
    page.fill("#seed", "-1")  # the page says so itself
    ask(page, waits=None)
    assert page.evaluate("document.activeElement.id") == "seed"
    page.fill("#seed", "1")
    ask(page)
    assert page.inner_text("#alert") == ""
    assert len(visit.posts[-1]["messages"]) == 1
    assert [error for error in visit.errors if "400" not in error] == []  # the browser's own line


@pytest.mark.usefixtures("slow")
def test_stopping_frees_the_slot_and_keeps_what_was_written(chat, endless):
    """Guards the stop button and Escape: text comes in pieces, the server lets go, the conversation goes on."""
    visit = chat(endless)
    page, server = visit.page, visit.server
    page.fill("#max-tokens", "3000")
    for stop in (lambda: page.click("#stop"), lambda: page.keyboard.press("Escape")):
        ask(page, waits=None)
        count = page.locator("article").count()
        until(lambda n=count: tokens(page, n - 1) > 50)
        server.has(running=1)
        seen = tokens(page, count - 1)
        until(lambda n=count, seen=seen: tokens(page, n - 1) > seen)  # it streams
        stop()
        server.has(running=0)
        page.wait_for_selector(f"article:nth-child({count}) .ended:not(:empty)")
        assert "Stopped" in page.inner_text(f"article:nth-child({count}) .ended")
        assert page.is_visible("#send")
        assert not page.is_visible("#stop")
        assert page.evaluate("document.activeElement.id") == "question"
    assert server.metric("vllm:generation_tokens_total") < 3000
    assert [turn["role"] for turn in visit.posts[1]["messages"]] == ["user", "assistant", "user"]
    assert len(visit.posts) == 2  # what was stopped is not compared
    page.click("#restart")
    page.fill("#max-tokens", "5")
    ask(page)
    assert len(visit.posts[-1]["messages"]) == 1
    assert visit.errors == []


@pytest.mark.usefixtures("slow")
def test_a_screen_reader_hears_sentences_not_tokens(chat):
    """Guards the live region: few announcements for many tokens, the whole answer in them; the text is mute."""
    visit = chat()
    page = visit.page
    page.evaluate(
        "heard = []; new MutationObserver(() => heard.push(document.querySelector('#spoken').textContent))"
        ".observe(document.querySelector('#spoken'), {childList: true, characterData: true, subtree: true})"
    )
    page.fill("#max-tokens", "400")
    ask(page)
    heard = page.evaluate("heard")
    assert len(heard) <= 6, heard
    assert heard[0] == "Writing."
    assert "".join(heard[1:]).replace(" The answer is complete.", "").startswith(written(page)[0].rstrip("\n"))
    assert heard[-1].strip().startswith("The same words")
    live = "#turns [aria-live], #turns [role=log], #turns [role=status], #turns[aria-live], #turns [role=alert]"
    assert page.locator(live).count() == 0
    assert visit.errors == []


def test_the_keyboard_reaches_everything(chat):
    """Guards who has no mouse: the question comes first, the rest follows by Tab, and the focus is seen."""
    visit = chat()
    page = visit.page
    page.focus(".skip")
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0  # it shows itself
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "question"
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    assert page.input_value("#question") == "one\ntwo"
    reached = []
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid" or reached[-1] == "BODY"
    assert {"send", "draft", "option-gamma", "max-tokens", "temperature", "seed", "compare"} <= set(reached)


def test_the_key_is_typed_in_and_kept_in_memory_only(chat, start):
    """Guards the key: asked for, sent in the header, nowhere else, and gone with the page."""
    visit = chat(start(slots=1, api_key="sesame"), ready=False)
    page = visit.page
    page.wait_for_selector("#key")
    assert "no API key" in page.inner_text("#alert")
    for key in ("wrong", "sesame"):
        page.fill("#key", key)
        page.press("#key", "Enter")
        if key == "wrong":
            until(lambda: "wrong" in page.inner_text("#alert"))
            assert page.is_disabled("#send")
    page.wait_for_selector("#send:enabled")
    page.fill("#max-tokens", "5")
    ask(page)
    assert "sesame" not in page.content()
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    assert not [request for request in visit.requests if "sesame" in request]
    page.reload()
    page.wait_for_selector("#key")
    assert [error for error in visit.errors if "401" not in error] == []


def test_markup_is_text_and_the_policy_holds(chat):
    """Guards against what a model or a prompt may write; a script that gets in anyway does not run."""
    visit = chat()
    page = visit.page
    nasty = "<img src=x onerror='window.bad=1'><script>window.bad=1</script>"
    ask(page, nasty)
    assert page.inner_text("article h2") == nasty
    assert page.locator("article img, article script").count() == 0
    assert visit.errors == []
    page.evaluate(
        "() => { const s = document.createElement('script'); s.append('window.bad = 1'); document.head.append(s);"
        "const t = document.createElement('p'); t.setAttribute('style', 'color: red'); document.body.append(t);"
        "const i = new Image(); i.src = 'https://example.com/x.png'; document.body.append(i); }"
    )
    page.wait_for_timeout(200)
    assert page.evaluate("window.bad") is None
    for words in ("TrustedScript", "style-src", "img-src"):
        assert any(words in error for error in visit.errors), words
    assert not [request for request in visit.requests if "example.com" in request and "GET" not in request]


def test_a_server_that_fails_is_told(chat, monkeypatch):
    """Guards errors in mid-stream, and a server that is gone."""
    visit = chat()
    page, turn, rounds = visit.page, Flight.turn, []

    def failing(flight):
        rounds.append(1)
        if len(rounds) == 20:
            raise MemoryError
        return turn(flight)

    monkeypatch.setattr(Flight, "turn", failing)
    page.select_option("#draft", "plain")
    ask(page, waits="#alert:not(:empty)")
    assert "out of memory" in page.inner_text("#alert")
    assert "out of memory" in page.inner_text("article .wrong")
    ask(page, waits="article:nth-child(2) .verdict")
    visit.server.stop()
    until(lambda: not visit.server.thread.is_alive())
    ask(page, waits="article:nth-child(3) .wrong")
    assert "cannot be reached" in page.inner_text("#alert")
    assert page.is_visible("#send")
