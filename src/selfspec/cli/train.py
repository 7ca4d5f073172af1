"""``selfspec train``: what a small head that drafts needs, step by step."""

from __future__ import annotations

import click

from selfspec.cli.lazy import Lazy
from selfspec.cli.output import examples

# verb -> its line in `selfspec train --help`; the module selfspec.cli.train_<verb> has its `command`
VERBS = {
    "data": "The model answers prompts: texts from which a head learns to draft.",
}

_EXAMPLES = examples(
    "selfspec train data --prompts prompts.jsonl --out answers",
    "selfspec train data --prompts prompts.jsonl --out answers --tokens 400000 --json",
)


class _Steps(Lazy):
    verbs = VERBS
    prefix = "selfspec.cli.train_"


@click.group("train", cls=_Steps, invoke_without_command=True, epilog=_EXAMPLES)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Train a small head that drafts better than the model's own shallow layers; the model stays as it is."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
