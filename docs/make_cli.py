"""Write docs/cli.md from the help of every verb; a test keeps the two equal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from selfspec.cli.main import VERBS, cli

PAGE = Path(__file__).with_name("cli.md")


def page() -> str:
    """The page, as Markdown."""
    parts = ["# Command line\n\nMade from `--help` by `make docs`.\n"]
    settings = {**cli.context_settings, "terminal_width": 100}
    with click.Context(cli, info_name="selfspec", **settings) as context:
        parts += [_part(cli, context), *(part for verb in VERBS for part in _parts(cli, verb, context))]
    return "\n".join(parts)


def _parts(group: click.Group, name: str, parent: click.Context) -> Iterator[str]:
    """A command, and those that it consists of."""
    command = group.get_command(parent, name)
    assert command is not None
    with click.Context(command, info_name=name, parent=parent, terminal_width=100) as context:
        yield _part(command, context)
        if isinstance(command, click.Group):
            for inner in command.list_commands(context):
                yield from _parts(command, inner, context)


def _part(command: click.Command, context: click.Context) -> str:
    return f"## {context.command_path}\n\n```\n{command.get_help(context).strip()}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
