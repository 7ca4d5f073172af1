"""``selfspec export``: a part of a model as a draft model of another engine, a trained head in its layout."""

from __future__ import annotations

from typing import Any

import click

from selfspec.cli.output import emit_json, examples

_EXAMPLES = examples(
    "selfspec export ./my-llama --draft early_exit:exit_layer=8 --format hf --out draft",
    'selfspec export ./my-llama --draft "layer_skip:skip=(9,12-17)" --format hf --out draft',
    "selfspec export llama.gguf --draft early_exit:exit_layer=8:gamma=3 --format gguf --out draft.gguf",
    "selfspec export ./my-llama --draft early_exit:head=exit-8.safetensors --format hf --out draft",
    "selfspec export ./my-llama --draft eagle:head=eagle.safetensors --format speculators --out head",
)


@click.command("export", epilog=_EXAMPLES)
@click.argument("model")
@click.option(
    "--draft",
    required=True,
    metavar="PLAN",
    help="early_exit:exit_layer=N, early_exit:head=FILE, layer_skip:skip=(LAYERS), eagle:head=FILE or "
    "medusa:head=FILE.",
)
@click.option(
    "--format",
    "kind",
    required=True,
    metavar="FORMAT",
    help="hf, gguf or openvino; of heads eagle3, speculators or medusa.",
)
@click.option("--out", required=True, metavar="PATH", help="The folder, or file, to make; it must not exist.")
@click.option(
    "--alpha-tokens",
    default=32,
    show_default=True,
    help="Tokens for each built-in prompt to measure α; 0 does not.",
)
@click.option(
    "--along",
    metavar="FILE",
    help="Measure α along texts that are there, an engine's say: JSON Lines with prompt and answer, texts or "
    "token ids.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of lines.")
def command(model: str, draft: str, kind: str, out: str, as_json: bool, **measured: Any) -> None:
    """Write a draft of MODEL, made of its own layers, that other engines load as a draft model.

    Whole layers that the draft leaves out are gone; single attentions and MLPs become zeros, which saves no time
    elsewhere. Vocabulary and tokenizer are the model's. Printed are the lines that use the draft, and α: how many
    draft tokens the model accepts here, answering the built-in prompts greedily.

    gguf takes a GGUF file and keeps its blocks; openvino needs optimum-intel. A trained exit head of the form layer
    or attention becomes the draft's last layer. Other heads are written as published ones are: eagle3 as EAGLE's
    authors do, speculators as vLLM does, medusa as Medusa's do.
    """
    from dataclasses import asdict

    from selfspec.cli.opening import Progress, with_offer
    from selfspec.export.drafts import export_draft

    progress, along = Progress(), measured["along"]
    tokens = measured["alpha_tokens"] if along is None else along
    made = with_offer(
        model,
        lambda: export_draft(model, draft, kind, out, tokens=tokens, told=(progress, progress.packed)),
    )
    progress.flush()
    if as_json:
        emit_json({**asdict(made), "path": str(made.path), "uses": {use.engine: use.line for use in made.uses}})
        return
    found = made.acceptance
    layers = f", {made.layers} layers, {made.silent} silent weights" if made.layers else ""
    click.echo(f"{made.path}: {made.plan}{layers}")
    if found is not None:
        click.echo(
            f"alpha {found.alpha:.3f} at gamma {made.gamma}: tau {found.mean_accepted_length:.2f}, {found.prompts} "
            f"{found.source}, at most {found.max_new_tokens} greedy tokens each"
        )
    for use in made.uses:
        click.echo(f"{use.engine}: {use.line}")
