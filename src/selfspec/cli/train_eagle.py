"""``selfspec train eagle``: an EAGLE-3 head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from selfspec.cli.flags import MeasuringCommand, asked_of
from selfspec.cli.output import examples
from selfspec.cli.training import run

if TYPE_CHECKING:
    from selfspec.train.options import EagleOptions

_EXAMPLES = examples(
    "selfspec train eagle --data answers --out eagle",
    "selfspec train eagle --data answers --out eagle --minutes 60 --vocabulary 8192",
)


class _Command(MeasuringCommand):
    section = "Training"

    def measured_by(self) -> type[EagleOptions]:
        from selfspec.train.options import EagleOptions

        return EagleOptions


@click.command("eagle", cls=_Command, epilog=_EXAMPLES)
@click.option("--out", metavar="DIR", required=True, help="Folder of the run; the same command goes on with it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document at the end.")
def command(out: str, as_json: bool, **options: Any) -> None:
    """Train an EAGLE-3 head: one layer that reads three of the model's states and its own last output.

    It learns the model's distributions along texts that the model wrote (`selfspec train data`), with as many steps
    of its own outputs as a draft has. The model stays as it is. Stop it as you like: the same command goes on.
    """
    from selfspec.train.options import EagleOptions

    asked, opening = asked_of(EagleOptions, options)
    run(asked, opening, out, as_json)
