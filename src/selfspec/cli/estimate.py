"""``selfspec estimate``: the cost model, at the numbers of the user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from selfspec.cli.output import emit_json, examples, facts, table
from selfspec.measure.estimate import TABLE, estimate, row_costs_of

if TYPE_CHECKING:
    from selfspec.control import RowCosts

_EXAMPLES = examples(
    "selfspec estimate --layers 32 --exit 8 --alpha 0.7 --gamma 4",
    "selfspec estimate --c 0.1 --alpha 0.78",
    "selfspec estimate --layers 30 --exit 26 --head 0.2 --alpha 0.8 --v 1,1.05,1.1,1.2,1.3",
    "selfspec estimate --experts 64 --per-token 8 --expert-share 0.8 --c 0 --alpha 0.7 --batch 16",
)


@click.command("estimate", epilog=_EXAMPLES)
@click.option("--layers", type=int, metavar="L", help="Layers of the model.")
@click.option("--exit", "exit_layer", type=int, metavar="K", help="Layer at which the draft leaves.")
@click.option("--alpha", type=float, required=True, help="Acceptance rate α: accepted ÷ drafted tokens.")
@click.option("--gamma", type=int, default=4, show_default=True, help="Draft length γ.")
@click.option("--head", type=float, metavar="H", help="Share of the LM head in one full pass.  [default: 0]")
@click.option(
    "--c", type=float, help="Cost of one draft step ÷ one full step, measured; replaces the one of --exit."
)
@click.option(
    "--v",
    metavar="V",
    help="Cost of a pass of several rows ÷ a pass of one: a number, or the list v(1),v(2),... with v(1) = 1.  "
    "[default: 1]",
)
@click.option("--experts", type=int, metavar="E", help="Experts of a mixture; v follows from what rows read.")
@click.option("--per-token", type=int, metavar="K", help="Experts of each token.")
@click.option("--expert-share", type=float, metavar="X", help="Share of them in what a pass of one row reads.")
@click.option("--draft-experts", type=int, metavar="D", help="Draft with D experts a token (moe): c follows.")
@click.option("--batch", type=int, metavar="B", help="Texts that share each pass.  [default: 1]")
@click.option(
    "--ridge", type=float, metavar="R", help="Rows that take as long to compute as the weights of one to be read."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the table.")
def command(alpha: float, gamma: int, as_json: bool, v: str | None, **costs: Any) -> None:
    """What a draft is worth: expected tokens per round and speedup over plain decoding.

    \b
    E = (1 - α^(γ+1)) / (1 - α)          tokens per round
    S = E / (γ c + f + (1 - f) v(γ+1))   speedup; its ceiling is 1 / (1 - α)
    c = (1 - H) K/L + H                  a draft step: K of L layers, and the head
    f = (1 - H) K/L                      what verification does not repeat

    With --c alone, f is 0: verification runs all layers, as after a look-up or another model. With --c
    and --layers, --exit, the measured c is used and f still comes from the layers.

    With --experts, --batch or --ridge, v(T) comes from what T rows of each text read and compute: T rows that
    choose K of E experts each have E (1 - (1 - K/E)^T) different ones. That is arithmetic, not a measurement.
    """  # noqa: D301 (click keeps the line breaks after a backspace)
    document = estimate(alpha, gamma, v=None if v is None else row_costs_of(v), **costs).to_dict()
    if as_json:
        emit_json(document)
    else:
        click.echo(_page(document))


def _page(document: dict[str, Any]) -> str:
    rows = [
        (f"{row['gamma']}", f"{row['expected_tokens']:.2f}", f"{row['speedup']:.2f}x") for row in document["table"]
    ]
    ceiling = "none (α is 1)" if document["alpha"] == 1.0 else f"{document['ceiling']:.2f}x"
    v = document["v"]
    pairs = [
        ("draft", f"α {document['alpha']:g}, γ {document['gamma']}"),
        ("costs", f"c {document['c']:.3f}, f {document['f']:.3f}, v {_listed(v)}"),
        ("tokens per round", f"{document['expected_tokens']:.2f}"),
        ("speedup", f"{document['speedup']:.2f}x"),
        ("ceiling", ceiling),
        ("best γ", f"{document['best_gamma']} ({document['best_speedup']:.2f}x)"),
    ]
    return f"{facts(pairs)}\n\n{table([('γ', 'tokens', 'speedup'), *rows])}"


def _listed(v: RowCosts) -> str:
    if not isinstance(v, list):
        return f"{v:g}"
    return ", ".join(f"{cost:.4g}" for cost in v[:TABLE]) + ", ..." * (len(v) > TABLE)
