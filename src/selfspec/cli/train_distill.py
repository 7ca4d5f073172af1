"""``selfspec train distill``: a draft model of the model's own layers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from selfspec.cli.flags import MeasuringCommand, asked_of
from selfspec.cli.opening import open_checkpoint, open_engine
from selfspec.cli.output import emit_json, examples, note
from selfspec.cli.training import about_states, about_texts, alphas_of, follow, make_states, require_packages
from selfspec.measure.quantities import size

if TYPE_CHECKING:
    from selfspec.train.distill.job import Setup
    from selfspec.train.options import DistillOptions

_EXAMPLES = examples(
    "selfspec train distill --data answers --out small --layers 6",
    "selfspec train distill --data answers --out small --layers 0,1,2,15,28,29 --minutes 60",
    "selfspec generate 'Name three rivers.' --draft draft_model --draft-model small/model",
)


class _Command(MeasuringCommand):
    section = "Training"

    def measured_by(self) -> type[DistillOptions]:
        from selfspec.train.options import DistillOptions

        return DistillOptions


@click.command("distill", cls=_Command, epilog=_EXAMPLES)
@click.option("--out", metavar="DIR", required=True, help="Folder of the run; the same command goes on with it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document at the end.")
def command(out: str, as_json: bool, **options: Any) -> None:
    """Train a smaller model that drafts for this one: it begins with some of its layers.

    All weights of the draft learn the model's distributions along texts that the model wrote (`selfspec train
    data`); the model stays as it is. What is written is an ordinary Hugging Face folder, `model` in --out, for
    draft_model and for other engines. Stop it as you like: the same command goes on.
    """
    from selfspec.train.options import DistillOptions

    asked, opening = asked_of(DistillOptions, options)
    require_packages("transformers", extra="train,hf")
    from selfspec.train.distill.job import Setup
    from selfspec.train.heads.trainer import accelerator_of

    engine = open_engine(opening)
    setup = Setup(engine, open_checkpoint(opening["model"]), asked, Path(out))
    for line in [*about_texts(setup), _about(setup), *about_states(setup)]:
        note(line)
    make_states(setup)
    accelerator = accelerator_of(asked, opening.get("device"))
    result = follow(setup.job(accelerator.device), accelerator, ("divergence", "cross entropy"))
    if as_json:
        emit_json({"model": str(setup.model), "layers": list(setup.layers), **result})
    else:
        click.echo(f"{setup.model}  {alphas_of(result['held_out'].get('draft', {}))}")


def _about(setup: Setup) -> str:
    config = setup.engine.config
    each = config.num_layers * config.layer_parameters
    weights = config.parameters - each + each * len(setup.layers) // config.num_layers
    # weights, gradients and two moments, in float32
    return (
        f"layers {', '.join(map(str, setup.layers))} of {config.num_layers}: {weights:,} weights, "
        f"{size(16 * weights)} of memory and what the texts need"
    )
