"""Write docs/cli.md from the help of every verb; a test keeps the two equal."""

from __future__ import annotations

from pathlib import Path

import click

from selfspec.cli.main import VERBS, cli

PAGE = Path(__file__).with_name("cli.md")


def page() -> str:
    """The page, as Markdown."""
    parts = ["# Command line\n\nMade from `--help` by `make docs`.\n"]
    for verb in (None, *VERBS):
        name = "selfspec" if verb is None else f"selfspec {verb}"
        parts.append(f"## {name}\n\n```\n{_help(verb)}\n```\n")
    return "\n".join(parts)


def _help(verb: str | None) -> str:
    settings = {**cli.context_settings, "terminal_width": 100}
    with click.Context(cli, info_name="selfspec", **settings) as parent:
        if verb is None:
            return cli.get_help(parent).strip()
        command = cli.get_command(parent, verb)
        assert command is not None
        with click.Context(command, info_name=verb, parent=parent, **settings) as context:
            return command.get_help(context).strip()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
