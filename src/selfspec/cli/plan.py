"""``selfspec plan``: what fits into a memory, with which draft, and whether to speculate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from selfspec.cli.output import emit_json, examples, facts, table
from selfspec.errors import OptionError
from selfspec.measure.quantities import size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_EXAMPLES = examples(
    "selfspec plan --memory 1GB --context 4k --concurrency 4",
    "selfspec plan path/to/folder --memory 24GB --context 32k --concurrency 4 --draft-size 0.5B",
    "selfspec plan --memory 1GB --profile profile.json",
    "selfspec plan path/to/folder --memory 24GB --runtime torch --dtype bfloat16 --alpha eagle=0.8",
)


@click.command("plan", epilog=_EXAMPLES)
@click.argument("model", required=False)
@click.option("--memory", metavar="SIZE", required=True, help="What there is, such as 24GB or 24GiB.")
@click.option("--reserve", metavar="SIZE", help="What must be left of it for everything else.  [default: 0B]")
@click.option(
    "--context", metavar="TOKENS", help="Of a text, prompt included, such as 32k.  [default: the model's]"
)
@click.option("--concurrency", type=int, metavar="TEXTS", help="Texts at once.  [default: 1]")
@click.option("--gamma", type=int, help="Most tokens of a draft.  [default: 4]")
@click.option("--runtime", help="cpu, torch, or auto: what would run it here.  [default: auto]")
@click.option("--bits", type=int, help="cpu: 4, 8, 16 or 32 a weight.  [default: as stored]")
@click.option("--kv", help="cpu: keys and values in float16, bfloat16, float32 or int8.  [default: float16]")
@click.option("--dtype", help="torch: float64, float32, bfloat16, float16.  [default: as stored]")
@click.option("--draft-model", metavar="MODEL", help="Count this one as a draft model.")
@click.option("--draft-bits", type=int, help="cpu: count it in 4, 8, 16 or 32 bits.  [default: as stored]")
@click.option("--draft-size", metavar="WEIGHTS", help="Count any draft model of this size, such as 0.5B.")
@click.option(
    "--alpha", multiple=True, metavar="[WAY=]α", help="Acceptance rate, of one way or of all; several times."
)
@click.option("--c", multiple=True, metavar="[WAY=]C", help="Cost of a draft step.  [default: counted in bytes]")
@click.option("--v", metavar="V", help="Cost of a pass of several rows: a number, or v(1),v(2),...")
@click.option("--ridge", type=float, metavar="R", help="Rows that take as long to compute as weights to be read.")
@click.option("--profile", metavar="FILE", help="Take α, c and v from this file of selfspec profile.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the tables.")
def command(model: str | None, as_json: bool, **options: Any) -> None:
    """What fits into a memory with every way to draft, what it would gain, and which to take.

    MODEL may be a folder with nothing but its config.json; without MODEL, the embedded one. No weights are read.

    \b
    weights  as the runtime holds them           cache   keys and values of all texts at once
    states   of recurrent layers, as the cache   passes  a prefill of 512 rows, and logits
    draft    weights, cache and buffers that a way to draft adds

    The program itself (Python, libraries, tokenizer; torch) is not counted: --reserve is for it. S comes
    from --profile or --alpha, as in selfspec estimate; where α is not known, S is not. Exit heads and EAGLE-3
    are counted from their published shapes.
    """  # noqa: D301 (click keeps the line breaks after a backspace)
    from selfspec.cli.opening import with_offer
    from selfspec.measure.estimate import row_costs_of
    from selfspec.measure.plan import plan
    from selfspec.model.embedded import EMBEDDED

    given = {name: value for name, value in options.items() if value not in (None, ())}
    for name in ("alpha", "c"):
        if name in given:
            given[name] = dict(_by_way(name, text) for text in given[name])
    if "v" in given:
        given["v"] = row_costs_of(given["v"])
    name = EMBEDDED if model is None else model
    document = with_offer(name, lambda: plan(name, **given)).to_dict()
    if as_json:
        emit_json(document)
    else:
        click.echo(_page(document))


def _by_way(name: str, text: str) -> tuple[str, float]:
    """WAY=NUMBER, or a number for all ways."""
    way, _, number = text.rpartition("=")
    try:
        return way, float(number)
    except ValueError:
        raise OptionError(f"--{name} is {text!r}; it must be a number, or WAY=NUMBER, such as eagle=0.8") from None


def _page(document: Mapping[str, Any]) -> str:
    parts = [facts(_head(document)), _table(document["ways"]), _costs(document["ways"])]
    parts += ["\n".join(document["notes"]), document["recommendation"]]
    return "\n\n".join(part for part in parts if part)


def _head(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    reserve = f", {size(document['reserve'])} of it left" if document["reserve"] else ""
    return [
        ("model", f"{document['model']}, {document['parameters']:,} parameters"),
        ("runs", f"{document['precision']} on {document['runtime']}, keys and values in {document['kv']}"),
        ("texts", f"{document['concurrency']} at once, of up to {document['context']} tokens"),
        ("memory", f"{size(document['memory'])}{reserve}"),
        ("without a draft", ", ".join(_parts(document["ways"][0]["parts"]))),
    ]


def _parts(parts: Mapping[str, int]) -> list[str]:
    return [f"{name} {size(held)}" for name, held in parts.items() if held]


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    header = ("way", "runs", "memory", "fits", "largest context", "texts", "S")
    lines = [
        (
            _name(row),
            row["runs"],
            size(row["total"]),
            "yes" if row["fits"] else f"{size(row['short'])} too much",
            f"{row['largest_context'] or '-'}",
            f"{row['largest_concurrency'] or '-'}",
            _gain(row["expected"]),
        )
        for row in rows
    ]
    return "what fits; the largest context at these texts, and the most texts at this context\n" + table(
        [header, *lines]
    )


def _costs(rows: Sequence[Mapping[str, Any]]) -> str:
    header = ("way", "weights", "cache", "buffers", "to keep", "c", "α")
    lines = [
        (
            _name(row),
            *(size(row["parts"][f"draft {part}"]) for part in ("weights", "cache", "buffers")),
            row["keeps"],
            "-" if row["c"] is None else f"{row['c']:.3f}",
            "-" if row["expected"] is None else f"{row['expected']['alpha']:.2f}",
        )
        for row in rows[1:]
    ]
    return "what each draft adds\n" + table([header, *lines])


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['way']}" if row["is_built"] else f"{row['way']} *"


def _gain(expected: Mapping[str, Any] | None) -> str:
    return "-" if expected is None else f"{expected['speedup']:.2f}x (γ {expected['gamma']})"
