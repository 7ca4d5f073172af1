"""``selfspec chat``: a conversation on the terminal, or over a pipe."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from selfspec.cli.flags import ModelCommand
from selfspec.cli.opening import open_engine
from selfspec.cli.output import controller, emit_json, examples, explaining, explanation, note, summary
from selfspec.cli.reading import decoded, stdin
from selfspec.errors import PromptError, SelfspecError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selfspec.engine import Engine
    from selfspec.stream import Stream

_HELP = "/exit or end of input: leave · /reset: forget the conversation · Ctrl-C: stop an answer · /help: this"


_EXAMPLES = examples(
    "selfspec chat",
    'selfspec chat --system "Answer in French." --draft early_exit --gamma 2',
    "printf 'Hello.\\nWho are you?\\n' | selfspec chat --json --max-new-tokens 32",
)


@click.command("chat", cls=ModelCommand, epilog=_EXAMPLES)
@click.option("--system", metavar="TEXT", help="System message of the conversation.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print no answers, but one JSON document with all turns at the end.",
)
@explaining
def command(system: str | None, as_json: bool, explain: bool, **options: Any) -> None:
    """Talk with a model. One line is one message; /exit, /reset and /help are commands.

    Ctrl-C stops the answer that is being written and keeps the conversation. Over a pipe there is no
    prompt, and the first error ends the chat.
    """
    options["draft"] = controller(explain, options)
    chat = _Chat(open_engine(options), system, as_json, explain)
    is_terminal = sys.stdin is not None and sys.stdin.isatty()
    if is_terminal:
        note(_HELP)
    try:
        for line in _typed(as_json) if is_terminal else _piped():
            try:
                if not chat.take(line):
                    break
            except SelfspecError as error:
                if not is_terminal:
                    raise
                note(f"error: {error}")
    finally:  # the turns before an error are not lost
        if as_json and (chat.has_turns or sys.exc_info()[0] is None):
            emit_json(chat.document)


def _piped() -> Iterator[str]:
    for raw in stdin():
        yield decoded(raw, "a message on stdin")


def _typed(as_json: bool) -> Iterator[str]:
    """Lines from a terminal, with a prompt, and line editing where stdout is one too."""
    edits = sys.stdout is not None and sys.stdout.isatty() and not as_json
    if edits:
        with suppress(ImportError):
            import readline  # noqa: F401 (gives input() its history)
    while True:
        try:
            if not edits:
                click.echo("> ", nl=False, err=True)
            yield input("> " if edits else "")
        except EOFError:
            click.echo(err=not edits)
            return
        except UnicodeDecodeError:
            note("error: that was not UTF-8; type it again")


class _Chat:
    """The conversation, and the record of its turns."""

    def __init__(self, engine: Engine, system: str | None, as_json: bool, explain: bool) -> None:
        self._engine = engine
        self._system = system
        self._as_json = as_json
        self._explain = explain
        self._number = 0
        self._conversation = engine.chat(system)
        self._turns: list[dict[str, Any]] = []

    @property
    def has_turns(self) -> bool:
        """Whether anything was answered."""
        return bool(self._turns)

    @property
    def document(self) -> dict[str, Any]:
        """All turns, those before a reset too."""
        return {"model": self._engine.name, "system": self._system, "turns": self._turns}

    def take(self, line: str) -> bool:
        """Run a command or answer a message; False ends the chat."""
        line = line.strip()
        if re.fullmatch(r"/[a-z]+", line):
            return self._obey(line)
        if line:
            self._answer(line)
        return True

    def _obey(self, line: str) -> bool:
        if line == "/exit":
            return False
        if line == "/reset":
            self._conversation = self._engine.chat(self._system)
            self._number += 1
            note("forgotten")
        elif line == "/help":
            note(_HELP)
        else:
            raise PromptError(f"no command {line}; there are /exit, /reset and /help")
        return True

    def _answer(self, line: str) -> None:
        stream = self._conversation.say(line)
        pieces: list[str] = []
        is_complete = False
        try:
            self._write(stream, pieces)
            is_complete = True
        except KeyboardInterrupt:
            stream.close()
        finally:
            if pieces and not self._as_json:
                click.echo()
        turn: dict[str, Any] = {"conversation": self._number, "prompt": line, "interrupted": not is_complete}
        turn |= stream.completion.to_dict() if is_complete else {"text": "".join(pieces)}
        if is_complete and self._explain and (found := stream.completion.explanation):
            turn["explanation"] = found
            if not self._as_json:
                note(explanation(found))
        self._turns.append(turn)
        note(summary(stream.completion) if is_complete else "stopped")

    def _write(self, stream: Stream, pieces: list[str]) -> None:
        for chunk in stream:
            if chunk.text:
                pieces.append(chunk.text)
                if not self._as_json:
                    click.echo(chunk.text, nl=False)
