"""``selfspec bundle``: a model and all that runs it in one folder, for boxes without a network."""

from __future__ import annotations

import click

from selfspec.cli.output import emit_json, examples
from selfspec.measure.quantities import size

_EXAMPLES = examples(
    "selfspec bundle smollm2-135m --out river",
    "selfspec generate 'Name three rivers.' --model river/model",
    "selfspec bundle ./my-llama --out box --bits 4 --profile profile.json",
    "selfspec bundle ./my-llama --out box --draft quantized:draft_bits=4",
)


@click.command("bundle", epilog=_EXAMPLES)
@click.argument("model")
@click.option("--out", required=True, metavar="DIR", help="The folder to make; it must not exist.")
@click.option("--bits", type=int, help="4, 8, 16 or 32 a weight.  [default: as stored]")
@click.option(
    "--profile", metavar="FILE", help="Add what `selfspec profile --out` measured on this model and bits."
)
@click.option(
    "--draft",
    metavar="SPEC",
    help="Who drafts on the box where nobody says; adds the model in the bits that it drafts in.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a line.")
def command(model: str, out: str, bits: int | None, profile: str | None, draft: str | None, as_json: bool) -> None:
    """Put MODEL and all that runs it into one folder, for boxes without a network.

    \b
    wheels/   selfspec and what it requires, made of what is installed here; no torch
    model/    packed weights and tokenizer; `selfspec generate --model DIR/model` reads it anywhere
    run.sh    installs itself once beside it, then: ./run.sh "A prompt", ./run.sh chat, ./run.sh VERB

    The boxes need the same system, processor family and Python version as this machine, and neither a network nor a
    compiler. Nothing is downloaded here either, unless MODEL is a hub id.
    """  # noqa: D301 (click keeps the line breaks after a backspace)
    from dataclasses import asdict

    from selfspec.cli.opening import Progress, with_offer
    from selfspec.export.bundle import Extras, make_bundle

    progress = Progress()
    told = (progress, progress.packed)
    made = with_offer(model, lambda: make_bundle(model, out, bits, Extras(profile, draft), told=told))
    progress.flush()
    if as_json:
        emit_json({**asdict(made), "folder": str(made.folder)})
    else:
        also = "".join(f", and in {each} bits for drafts" for each in made.draft_bits)
        click.echo(
            f"{made.folder}: {made.model} {made.precision}{also}, {len(made.wheels)} wheels, {size(made.bytes)}; "
            f"copy it to a box and start {made.folder.name}/run.sh"
        )
