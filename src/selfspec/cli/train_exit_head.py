"""``selfspec train exit-head``: heads for early exits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from selfspec.cli.flags import MeasuringCommand, asked_of
from selfspec.cli.output import examples
from selfspec.cli.training import run

if TYPE_CHECKING:
    from selfspec.train.options import ExitHeadOptions

_EXAMPLES = examples(
    "selfspec train exit-head --data answers --out exits --layers 8",
    "selfspec train exit-head --data answers --out exits --layers 4,8 --form attention",
)


class _Command(MeasuringCommand):
    section = "Training"

    def measured_by(self) -> type[ExitHeadOptions]:
        from selfspec.train.options import ExitHeadOptions

        return ExitHeadOptions


@click.command("exit-head", cls=_Command, epilog=_EXAMPLES)
@click.option("--out", metavar="DIR", required=True, help="Folder of the run; the same command goes on with it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document at the end.")
def command(out: str, as_json: bool, **options: Any) -> None:
    """Train heads that let a draft leave after layer k: one for each of --layers, in one run.

    A head turns the states after k layers into what the last layer would say. It learns the model's distributions
    along texts that the model wrote (`selfspec train data`). The model stays as it is. Stop it as you like: the
    same command goes on.
    """
    from selfspec.train.options import ExitHeadOptions

    asked, opening = asked_of(ExitHeadOptions, options)
    run(asked, opening, out, as_json)
