"""Headless Chromium for tests of pages: what a reader sees, what the page complains about, and what it asks for."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "microsoft-edge")
HOW = (
    "tests of pages need Playwright and Chromium: pip install -c constraints.txt -e '.[dev,browser]', and "
    "apt-get install chromium, or playwright install chromium; SELFSPEC_CHROMIUM names another one"
)


class Visit:
    """A page in a tab of its own.

    ``page`` is Playwright's. ``errors`` are what it wrote to the console as a warning or an error, and what was
    thrown; ``requests`` are the addresses it asked for, itself first (``data:`` and ``blob:`` are none).
    """

    def __init__(self, page):
        self.page, self.errors, self.requests = page, [], []
        page.on("console", lambda m: m.type in ("warning", "error") and self.errors.append(f"{m.type}: {m.text}"))
        page.on("pageerror", lambda error: self.errors.append(f"thrown: {error}"))
        page.on(
            "request", lambda r: r.url.startswith(("data:", "blob:")) or self.requests.append(f"{r.method} {r.url}")
        )

    def violations(self):
        """What axe-core finds wrong for readers with a screen reader, a keyboard or poor sight: rule and places."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        return [f"{v['id']}: {', '.join(str(node['target']) for node in v['nodes'][:5])}" for v in found]

    def is_wider_than_screen(self):
        """Whether the page as a whole must be scrolled sideways."""
        return self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")


@pytest.fixture(scope="session")
def chromium():
    """The browser. Fails, and says how to install it, where there is none."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        pytest.fail(HOW, pytrace=False)
    named = os.environ.get("SELFSPEC_CHROMIUM")
    # Chromium's sandbox refuses to run as root
    args = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        path = named or next(filter(None, map(shutil.which, NAMES)), own)
        try:
            browser = playwright.chromium.launch(executable_path=path, args=args)
        except Error as error:
            pytest.fail(f"{HOW}; {path}: {error.message.splitlines()[0]}", pytrace=False)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium):
    """Opens an address or a file: ``visit(where, dark=True, width=375, still=True)`` gives a `Visit`."""
    contexts = []

    def opened(where, dark=False, width=1280, height=900, still=False):
        context = chromium.new_context(
            color_scheme="dark" if dark else "light",
            viewport={"width": width, "height": height},
            reduced_motion="reduce" if still else "no-preference",
        )
        contexts.append(context)
        found = Visit(context.new_page())
        found.page.goto(where.as_uri() if isinstance(where, Path) else where)
        return found

    yield opened
    for context in contexts:
        context.close()
