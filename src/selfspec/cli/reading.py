"""Prompts from the command line, a file or stdin."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import BinaryIO

import click

from selfspec.errors import PromptError


def stdin() -> BinaryIO:
    """Standard input as bytes, so that what is not UTF-8 can be refused in one sentence."""
    return io.BytesIO() if sys.stdin is None else sys.stdin.buffer  # None: closed by the caller


def read_prompt(prompt: str | None, file: str | None) -> str:
    """The text of the one source that was given.

    Raises PromptError if it is empty or cannot be read.
    """
    if (prompt is None) == (file is None):
        found = "no prompt" if prompt is None else "two prompts"
        raise click.UsageError(f"{found}; give one of PROMPT, - (stdin) or --prompt-file FILE")
    if file is not None:
        text = decoded(read_file(file, "the prompt file"), f"the prompt file {file!r}")
    elif prompt == "-":
        text = decoded(stdin().read(), "the prompt on stdin")
    else:
        assert prompt is not None
        text = prompt
    if not text.strip():
        raise PromptError("the prompt is empty; give some text")
    return text


def read_file(file: str, what: str) -> bytes:
    """The bytes of a file; raises PromptError if ``what`` cannot be read."""
    try:
        return Path(file).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        reason = getattr(error, "strerror", None) or error
        raise PromptError(f"{what} {file!r} cannot be read: {reason}") from error


def decoded(raw: bytes, source: str) -> str:
    """UTF-8 without its final newline; raises PromptError if ``source`` is something else."""
    try:
        text = raw.decode("utf-8-sig")  # some editors begin a file with a byte-order mark
    except UnicodeDecodeError as error:
        raise PromptError(
            f"{source} is not UTF-8: byte {error.start} is 0x{raw[error.start]:02x}; convert it to UTF-8"
        ) from error
    return text.removesuffix("\n").removesuffix("\r")
