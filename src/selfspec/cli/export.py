"""``selfspec export``: a part of a model as an ordinary draft model of another engine."""

from __future__ import annotations

import click

from selfspec.cli.output import emit_json, examples

_EXAMPLES = examples(
    "selfspec export ./my-llama --draft early_exit:exit_layer=8 --format hf --out draft",
    'selfspec export ./my-llama --draft "layer_skip:skip=(9,12-17)" --format hf --out draft',
    "selfspec export llama.gguf --draft early_exit:exit_layer=8:gamma=3 --format gguf --out draft.gguf",
)


@click.command("export", epilog=_EXAMPLES)
@click.argument("model")
@click.option("--draft", required=True, metavar="PLAN", help="early_exit:exit_layer=N or layer_skip:skip=(LAYERS).")
@click.option("--format", "kind", required=True, metavar="FORMAT", help="hf, gguf, openvino or speculators.")
@click.option("--out", required=True, metavar="PATH", help="The folder, or file, to make; it must not exist.")
@click.option(
    "--alpha-tokens",
    default=32,
    show_default=True,
    help="Tokens for each built-in prompt to measure α; 0 does not.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of lines.")
def command(model: str, draft: str, kind: str, out: str, alpha_tokens: int, as_json: bool) -> None:
    """Write a draft of MODEL, made of its own layers, that other engines load as a draft model.

    Whole layers that the draft leaves out are gone; single attentions and MLPs become zeros, which saves no time
    elsewhere. Vocabulary and tokenizer are the model's. Printed are the lines that use the draft, and α: how many
    draft tokens the model accepts here, answering the built-in prompts greedily.

    gguf takes a GGUF file and keeps its blocks; openvino needs optimum-intel; speculators is for trained heads.
    """
    from dataclasses import asdict

    from selfspec.cli.opening import Progress, with_offer
    from selfspec.export.drafts import export_draft

    progress = Progress()
    made = with_offer(
        model,
        lambda: export_draft(model, draft, kind, out, tokens=alpha_tokens, told=(progress, progress.packed)),
    )
    progress.flush()
    if as_json:
        emit_json({**asdict(made), "path": str(made.path), "uses": {use.engine: use.line for use in made.uses}})
        return
    found = made.acceptance
    click.echo(f"{made.path}: {made.plan}, {made.layers} layers, {made.silent} silent weights")
    if found is not None:
        click.echo(
            f"alpha {found.alpha:.3f} at gamma {made.gamma}: tau {found.mean_accepted_length:.2f}, {found.prompts} "
            f"built-in prompts, {found.max_new_tokens} greedy tokens each"
        )
    for use in made.uses:
        click.echo(f"{use.engine}: {use.line}")
