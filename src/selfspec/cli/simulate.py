"""``selfspec simulate``: what a way of drafting would give on machines that are not here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from selfspec.cli.output import emit_json, examples, facts, table
from selfspec.measure.estimate import row_costs_of

if TYPE_CHECKING:
    from selfspec.measure.simulate import Simulated

_EXAMPLES = examples(
    "selfspec simulate overlap --alpha 0.8 --c 0.1",
    "selfspec simulate overlap --alpha 0.7 --c 0.3 --gamma 3 --v 1.2 --slowdown 1.4 --json",
)


@click.group("simulate", invoke_without_command=True, epilog=_EXAMPLES)
@click.pass_context
def command(ctx: click.Context) -> None:
    """What a way of drafting would give on machines that are not here, by a model of its rounds."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command("overlap", epilog=_EXAMPLES)
@click.option("--alpha", type=float, required=True, help="Acceptance rate α: accepted ÷ drafted tokens.")
@click.option("--gamma", type=int, default=4, show_default=True, help="Draft length γ.")
@click.option(
    "--c", type=float, default=0.1, show_default=True, help="A draft step ÷ a target pass, both of a row."
)
@click.option("--outcomes", type=int, default=8, show_default=True, help="Outcomes of a verification to draft for.")
@click.option("--spread", type=float, help="r: the F likeliest tokens miss as F^-r.  [default: 0.7]")
@click.option("--v", default="1.0", show_default=True, metavar="V", help="v(T) of the target, as in `estimate`.")
@click.option(
    "--draft-row",
    type=float,
    default=0.0,
    show_default=True,
    help="What a further row costs the drafter, in draft steps.",
)
@click.option(
    "--slowdown",
    type=float,
    default=1.0,
    show_default=True,
    help="How much longer a verification takes beside drafts; 1 on another device.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the table.")
def overlap(v: str, as_json: bool, spread: float | None, **given: Any) -> None:
    """What drafting while the target verifies is worth (--draft overlap).

    \b
    round = (1 - h) γ c + max(s v(γ+1), a)   h hit rate, s slowdown, a drafts ahead
    a     = c (1 + d γ) + γ c (1 + d (B-1))  d draft row, B outcomes

    Times are in target passes of one row. Measure α, c and v with `selfspec profile` or `bench`.
    """  # noqa: D301 (click keeps the line breaks after a backspace)
    from selfspec.measure.simulate import simulate

    stated = {} if spread is None else {"spread": spread}
    made = simulate(v=row_costs_of(v), **stated, **given)
    if as_json:
        emit_json(made.to_dict())
    else:
        click.echo(_page(made))


def _page(made: Simulated) -> str:
    found = made.found
    pairs = [
        ("fan-out", " ".join(map(str, made.setting.fan))),
        ("hit rate", f"{found.hit_rate:.2f}"),
        ("tokens per round", f"{found.tokens:.2f}"),
        ("drafts ahead take", f"{found.ahead:.2f} passes"),
        ("speedup", f"{found.speedup:.2f}x"),
        ("without overlap", f"{found.speedup_without:.2f}x"),
        ("drafting ahead", f"{'gains' if found.gain > 1.0 else 'does not pay:'} {found.gain:.2f}x"),
    ]
    return f"{facts(pairs)}\n\n{table([('outcomes', 'hits', 'ahead', 'speedup'), *made.rows])}"
