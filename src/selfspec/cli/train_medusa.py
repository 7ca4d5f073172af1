"""``selfspec train medusa``: heads side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from selfspec.cli.flags import MeasuringCommand, asked_of
from selfspec.cli.output import examples
from selfspec.cli.training import run

if TYPE_CHECKING:
    from selfspec.train.options import MedusaOptions

_EXAMPLES = examples(
    "selfspec train medusa --data answers --out medusa",
    "selfspec train medusa --data answers --out medusa --heads 3 --vocabulary 4096 --minutes 30",
)


class _Command(MeasuringCommand):
    section = "Training"

    def measured_by(self) -> type[MedusaOptions]:
        from selfspec.train.options import MedusaOptions

        return MedusaOptions


@click.command("medusa", cls=_Command, epilog=_EXAMPLES)
@click.option("--out", metavar="DIR", required=True, help="Folder of the run; the same command goes on with it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document at the end.")
def command(out: str, as_json: bool, **options: Any) -> None:
    """Train Medusa heads: each says, from the model's last state alone, one of the next tokens.

    They learn the model's distributions along texts that the model wrote (`selfspec train data`). The model stays
    as it is, and its LM head serves all of them. Stop it as you like: the same command goes on.
    """
    from selfspec.train.options import MedusaOptions

    asked, opening = asked_of(MedusaOptions, options)
    run(asked, opening, out, as_json)
