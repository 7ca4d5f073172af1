"""How far a long run is: a bar where somebody watches, else a line a minute."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from selfspec.cli.output import note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EVERY = 60.0  # seconds between two lines


@contextmanager
def meter(label: str, total: int, done: int = 0) -> Iterator[Callable[[int, str], None]]:
    """Gives what is told how many of ``total`` are done by now, and a few words; it adds the time left.

    ``done`` were done before this run, which says nothing of its speed.
    """
    began = last = time.perf_counter()

    def described(now: int, words: str) -> str:
        left = (time.perf_counter() - began) * (total - now) / max(1, now - done)
        return f"{words}, {duration(max(0.0, left))} left"

    def log(now: int, words: str) -> None:
        nonlocal last
        if time.perf_counter() - last >= EVERY:
            last = time.perf_counter()
            note(f"{label}: {now} of {total}, {described(now, words)}")

    if sys.stderr is None or not sys.stderr.isatty():
        yield log
        return
    shown = ""
    bar: Any
    with click.progressbar(
        length=total, label=label, file=sys.stderr, show_eta=False, item_show_func=lambda _: shown
    ) as bar:
        bar.update(min(done, total))

        def move(now: int, words: str) -> None:
            nonlocal shown
            shown = described(now, words)
            bar.update(min(now, total) - bar.pos)

        yield move


def duration(seconds: float) -> str:
    """About how long: 40 s, 12 min, 3.4 h."""
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 90 else f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"
