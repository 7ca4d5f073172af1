"""``selfspec generate``: one prompt, streamed, and one line that says how it was drafted."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from selfspec.cli.flags import ModelCommand, unwrapped, wrapping
from selfspec.cli.opening import open_engine
from selfspec.cli.output import (
    Painter,
    controller,
    emit_json,
    examples,
    explaining,
    explanation,
    has_colours,
    note,
    summary,
)
from selfspec.cli.reading import read_prompt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from selfspec.request import Chunk


_EXAMPLES = examples(
    'selfspec generate "Name three primary colours."',
    'selfspec generate "Name three primary colours." --draft early_exit --exit-layer 26 --gamma 2',
    'selfspec generate "Count to ten." --temperature 0.8 --seed 1 --show-drafts',
    'selfspec generate "Copy this list twice: red, green, blue." --draft auto --explain',
    'echo "Name three primary colours." | selfspec generate - --json',
)


@click.command("generate", cls=ModelCommand, epilog=_EXAMPLES)
@click.argument("prompt", required=False)
@click.option("--prompt-file", metavar="FILE", help="Read the prompt from a file (UTF-8).")
@wrapping
@click.option("--show-drafts", is_flag=True, help="Mark the tokens that were drafted and accepted.")
@explaining
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the text.")
def command(
    prompt: str | None,
    prompt_file: str | None,
    as_json: bool,
    show_drafts: bool,
    explain: bool,
    **options: Any,
) -> None:
    """Answer PROMPT; `-` reads it from stdin. A final newline of a file or of stdin is not part of it.

    The text goes to stdout as it is written, one summary line to stderr: speed, α (accepted ÷ drafted
    tokens), τ (tokens per round), rounds, drafter, plan and precision.
    """
    if as_json and show_drafts:
        raise click.UsageError("--show-drafts marks the text, and --json prints none; give one of them")
    options["draft"] = controller(explain, options)
    text = read_prompt(prompt, prompt_file)
    stream = open_engine(unwrapped(options)).stream(text)
    if not as_json:
        _write(stream, Painter(has_colours(sys.stdout)) if show_drafts else None)
    completion = stream.completion
    if as_json:
        emit_json(completion.to_dict() | ({"explanation": completion.explanation} if explain else {}))
    elif explain and completion.explanation:
        note(explanation(completion.explanation))
    note(summary(completion))


def _write(chunks: Iterable[Chunk], painter: Painter | None) -> None:
    """Write text as it becomes final; the line is ended however the generation ends."""
    if painter:
        note(painter.legend)
    is_begun = False
    try:
        for chunk in chunks:
            if text := painter.paint(chunk) if painter else chunk.text:
                is_begun = True
                click.echo(text, nl=False)
    finally:
        if is_begun:
            click.echo(painter.end() if painter else "")
