"""``selfspec estimate``: the cost model, at the numbers of the user."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import click

from selfspec import control
from selfspec.cli.output import emit_json, examples, facts, table
from selfspec.errors import OptionError
from selfspec.traffic import Traffic

_TABLE = 11  # γ = 0 .. 10
_MOST_TEXTS = 1_000_000


@dataclass(frozen=True)
class _Costs:
    """What the passes cost: c, v and f of the cost model."""

    c: float
    v: control.RowCosts
    f: float


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
def command(alpha: float, gamma: int, as_json: bool, **given: Any) -> None:
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
    costs = _costs(**given)
    document = _document(alpha, gamma, costs)
    if as_json:
        emit_json(document)
    else:
        click.echo(_page(document))


def row_costs(text: str) -> control.RowCosts:
    """v(T) as it is written: a number, or a list with commas. Raises OptionError."""
    try:
        values = [float(value) for value in text.split(",")]
    except ValueError:
        raise OptionError(f"v is {text!r}; it must be a number, or numbers with commas: v(1),v(2),...") from None
    return values if len(values) > 1 else values[0]


def _costs(
    v: str | None,
    c: float | None,
    draft_experts: int | None,
    layers: int | None,
    exit_layer: int | None,
    head: float | None,
    **passes: Any,
) -> _Costs:
    traffic, batch = _traffic(**passes), passes["batch"] or 1
    if traffic is not None and v is not None:
        raise OptionError("--v says what rows cost; leave it out, or --experts, --batch and --ridge")
    if draft_experts is not None:
        if passes["experts"] is None or c is not None or exit_layer is not None:
            raise OptionError("--draft-experts is a draft of its own: give --experts, and neither --c nor --exit")
        assert traffic is not None
        c = traffic.draft_cost(draft_experts, batch)
    rows = row_costs(v or "1.0") if traffic is None else traffic.row_costs(batch)
    return _draft_costs(rows, layers, exit_layer, head, c)


def _traffic(
    experts: int | None, per_token: int | None, expert_share: float | None, batch: int | None, ridge: float | None
) -> Traffic | None:
    """What passes read, if that is asked for."""
    mixture = {"--experts": experts, "--per-token": per_token, "--expert-share": expert_share}
    if missing := [name for name, value in mixture.items() if value is None]:
        if len(missing) < len(mixture):
            raise OptionError(f"{missing[0]} is missing; a mixture needs {', '.join(mixture)}")
        if batch is None and ridge is None:
            return None
    if batch is not None and not 1 <= batch <= _MOST_TEXTS:
        raise OptionError(f"batch is {batch}; it must be 1 to {_MOST_TEXTS} texts")
    one = (1 if experts is None else experts, 1 if per_token is None else per_token)
    return Traffic(expert_share or 0.0, *one, math.inf if ridge is None else ridge)


def _draft_costs(
    v: control.RowCosts, layers: int | None, exit_layer: int | None, head: float | None, c: float | None
) -> _Costs:
    if layers is None and exit_layer is None:
        if c is None:
            raise OptionError("no draft cost; give --layers and --exit, or --c")
        if head is not None:
            raise OptionError("--head says nothing beside --c alone; give --layers and --exit with it")
        return _Costs(c, v, 0.0)
    if layers is None or exit_layer is None:
        there, missing = ("--layers", "--exit") if exit_layer is None else ("--exit", "--layers")
        raise OptionError(f"{there} is given without {missing}; give both")
    share = control.shared_share(layers, exit_layer, head or 0.0)
    return _Costs(control.draft_cost(layers, exit_layer, head or 0.0) if c is None else c, v, share)


def _document(alpha: float, gamma: int, costs: _Costs) -> dict[str, Any]:
    row = _row(alpha, gamma, costs)
    known = len(costs.v) if isinstance(costs.v, list) else _TABLE
    best = control.best_gamma(alpha, costs.c, costs.v, costs.f)
    return {
        "alpha": alpha,
        "c": costs.c,
        "f": costs.f,
        "v": costs.v,
        **row,
        "ceiling": control.ceiling(alpha),
        "best_gamma": best,
        "best_speedup": control.speedup(alpha, best, costs.c, costs.v, costs.f),
        "table": [_row(alpha, length, costs) for length in range(min(known, _TABLE))],
    }


def _row(alpha: float, gamma: int, costs: _Costs) -> dict[str, Any]:
    return {
        "gamma": gamma,
        "expected_tokens": control.expected_tokens(alpha, gamma),
        "speedup": control.speedup(alpha, gamma, costs.c, costs.v, costs.f),
    }


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


def _listed(v: control.RowCosts) -> str:
    if not isinstance(v, list):
        return f"{v:g}"
    return ", ".join(f"{cost:.4g}" for cost in v[:_TABLE]) + ", ..." * (len(v) > _TABLE)
