"""``selfspec train layerskip``: a model whose early layers draft."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from selfspec.cli.flags import MeasuringCommand, asked_of, model_flags
from selfspec.cli.opening import open_checkpoint
from selfspec.cli.output import emit_json, examples, note
from selfspec.cli.training import about_corpus, follow, require_packages
from selfspec.measure.quantities import size

if TYPE_CHECKING:
    from selfspec.cli.flags import Flag
    from selfspec.train.layerskip.job import Setup
    from selfspec.train.options import LayerSkipOptions

_EXAMPLES = examples(
    "selfspec train data --text pairs.jsonl --out mine",
    "selfspec train layerskip --data mine --out skipping --layers 4,6,8 --draft-vocabulary 1024",
    "selfspec generate 'turn the lights off' --model skipping/model --draft early_exit",
    "selfspec train layerskip --data mine --out new --scratch --learning-rate 1e-3 --epochs 3",
)


class _Command(MeasuringCommand):
    section = "Training"

    def measured_by(self) -> type[LayerSkipOptions]:
        from selfspec.train.options import LayerSkipOptions

        return LayerSkipOptions

    def made_flags(self) -> list[Flag]:
        """Without those of a runtime: transformers trains it."""
        runs = {flag.name for flag in model_flags()} - {"model", "device"}
        return [flag for flag in super().made_flags() if flag.name not in runs]


@click.command("layerskip", cls=_Command, epilog=_EXAMPLES)
@click.option("--out", metavar="DIR", required=True, help="Folder of the run; the same command goes on with it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document at the end.")
def command(out: str, as_json: bool, **options: Any) -> None:
    """Train all weights of a model so that its early layers say what the last one says (LayerSkip).

    Layers are left out at random, later ones more often, and exits learn with the last layer. What is written is an
    ordinary Hugging Face folder, `model` in --out, with a note of its exits: early_exit and auto read it.
    transformers runs it, too. The model changes, so compare what it says: a run with --plain is the same without
    the recipe. Stop it as you like: the same command goes on.
    """
    from selfspec.train.options import LayerSkipOptions

    asked, opening = asked_of(LayerSkipOptions, options)
    require_packages("transformers", extra="train,hf")
    from selfspec.train.heads.trainer import accelerator_of
    from selfspec.train.layerskip.job import Setup

    setup = Setup(open_checkpoint(opening["model"]), asked, Path(out))
    for line in _about(setup):
        note(line)
    accelerator = accelerator_of(asked, opening["device"])
    result = follow(setup.job(accelerator.device), accelerator, ("last layer", "exits, mean of those that learn"))
    document = {"model": str(setup.model), **result}
    if as_json:
        emit_json(document)
    else:
        click.echo(setup.model)


def _about(setup: Setup) -> list[str]:
    config = setup.checkpoint.config
    exits = f"exits {', '.join(map(str, setup.exits))}" if setup.exits else "no exits"
    # weights, gradients and two moments, in float32
    room = 16 * config.parameters
    return [
        about_corpus(setup.corpus),
        f"{config.parameters:,} weights, {exits}: {size(room)} of memory and what the texts need, and on disk "
        f"{size(2 * 3 * room // 4)} for two checkpoints",
    ]
