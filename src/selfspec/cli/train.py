"""``selfspec train``: what drafts better than a model's own shallow layers do, step by step."""

from __future__ import annotations

import click

from selfspec.cli.lazy import Lazy
from selfspec.cli.output import examples

# verb -> its line in `selfspec train --help`; the module selfspec.cli.train_<verb> has its `command`
VERBS = {
    "data": "The model answers prompts: texts from which a head learns to draft.",
    "eagle": "An EAGLE-3 head, which drafts on three of the model's states and its own outputs.",
    "medusa": "Medusa heads, which say the next tokens at once from the model's last state.",
    "exit-head": "Heads with which drafts leave the model after some of its layers.",
    "distill": "A smaller model, made of some of its layers, for draft_model.",
    "layerskip": "The whole model, so that its own early layers draft well: LayerSkip.",
}

_EXAMPLES = examples(
    "selfspec train data --prompts prompts.jsonl --out answers",
    "selfspec train data --prompts prompts.jsonl --out answers --tokens 400000 --json",
    "selfspec train eagle --data answers --out eagle",
    "selfspec train medusa --data answers --out medusa --heads 4",
    "selfspec train exit-head --data answers --out exits --layers 8",
    "selfspec train distill --data answers --out small --layers 6",
    "selfspec train layerskip --data mine --out skipping --layers 4,6,8",
)


class _Steps(Lazy):
    verbs = VERBS
    prefix = "selfspec.cli.train_"


@click.group("train", cls=_Steps, invoke_without_command=True, epilog=_EXAMPLES)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Train what drafts better than the model's own shallow layers: a small head beside it, or the model itself.

    All but `layerskip` leave the model as it is.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
