"""Groups of verbs that are imported when they are called, so that `--help` costs nothing."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

import click

if TYPE_CHECKING:
    from collections.abc import Mapping


class Lazy(click.Group):
    """A group whose verb ``a-b`` is the ``command`` of the module ``a_b`` behind its ``prefix``."""

    verbs: ClassVar[Mapping[str, str]] = {}  # verb -> its line in the help
    prefix: ClassVar[str] = "selfspec.cli."

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The verbs, in the order in which a user meets them."""
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import one verb."""
        if cmd_name not in self.verbs:
            return None
        command = import_module(self.prefix + cmd_name.replace("-", "_")).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the verbs without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.verbs.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the verbs there are when an unknown one is given."""
        if args[0] not in self.verbs and not args[0].startswith("-"):
            ctx.fail(f"no verb {args[0]!r}; it must be one of {', '.join(self.verbs)}")
        return super().resolve_command(ctx, args)
