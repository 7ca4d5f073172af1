"""``selfspec info``: the sizes of a model, and what a draft costs by them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from selfspec.cli.output import emit_json, examples, facts, table
from selfspec.measure.quantities import size

if TYPE_CHECKING:
    from selfspec.measure.sizes import Sizes


_EXAMPLES = examples(
    "selfspec info",
    "selfspec info path/to/folder --dtype bfloat16",
    "selfspec info path/to/folder --bits 4",
    "selfspec info path/to/folder --draft-model path/to/smaller",
    "selfspec info --json",
)


@click.command("info", epilog=_EXAMPLES)
@click.argument("model", required=False)
@click.option(
    "--dtype",
    metavar="DTYPE",
    help="Count in this precision: float64, float32, bfloat16, float16.  [default: as stored]",
)
@click.option(
    "--bits",
    metavar="BITS",
    type=int,
    help="Count as the native core packs the weights: 4, 8, 16, 32.  [default for GGUF files: as stored]",
)
@click.option("--draft-model", metavar="MODEL", help="Count what this one costs as a draft model, too.")
@click.option("--draft-bits", metavar="BITS", type=int, help="Count it packed: 4, 8, 16, 32.  [default: as stored]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the tables.")
def command(model: str | None, dtype: str | None, bits: int | None, as_json: bool, **draft: Any) -> None:
    """Sizes of MODEL, and what a draft costs by them; without MODEL, of the embedded one.

    No weights are read. c(k) is the cost of a draft step that leaves at layer k, as a share of a full step,
    counted in the bytes that both read: (k layers + head) ÷ (L layers + head). A measured c differs.
    """
    from selfspec.cli.opening import with_offer
    from selfspec.errors import OptionError
    from selfspec.loading import default_runs_on
    from selfspec.measure.prices import prices
    from selfspec.measure.sizes import sizes_of
    from selfspec.model.embedded import EMBEDDED
    from selfspec.model.load import config_of

    if draft["draft_bits"] is not None and draft["draft_model"] is None:
        raise OptionError("--draft-bits is for --draft-model; name one")
    if dtype is not None and bits is not None:
        raise OptionError("--dtype is for the torch runtime and --bits for the native core; leave one out")
    name = EMBEDDED if model is None else model
    config = with_offer(name, lambda: config_of(name))
    sizes = sizes_of(name, config, bits, dtype)
    document = _document(name, sizes) | {"runs_on": default_runs_on(config)}
    document["drafters"] = [row.to_dict() for row in prices(name, sizes, **draft)]
    if as_json:
        emit_json(document)
    else:
        click.echo(_page(document))


def _document(name: str, sizes: Sizes) -> dict[str, Any]:
    from selfspec.measure.prices import buffers
    from selfspec.runtime.states import kept_bytes, plain_bytes

    config = sizes.config
    return {
        "model": name,
        "family": config.family,
        "layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "context_length": config.context_length,
        "tied_head": config.tied_head,
        "parameters": config.parameters,
        "dtype": sizes.precision,
        "bytes": {name: getattr(sizes, name) for name in ("layer", "head", "embedding", "total")},
        "kv_bytes_per_token": sizes.kv,
        "state_bytes": (states := kept_bytes(config, sizes.width)),
        "rollback_bytes": states - plain_bytes(config, sizes.width),
        "trained_exits": config.exits
        and {
            "layers": list(config.exits.layers),
            "vocabulary": len(config.exits.vocabulary),
        },
        "c_by_exit_layer": _costs(sizes),
        "draft_buffers": list(buffers(config, sizes.width)),
    }


def _costs(sizes: Sizes) -> list[dict[str, Any]]:
    exits = range(1, sizes.config.num_layers)
    return [{"exit_layer": k, "c": sizes.step(k) / sizes.whole_step} for k in exits]


# -- printing ---------------------------------------------------------------------------------------------


def _page(document: dict[str, Any]) -> str:
    costs = [(f"{row['exit_layer']}", f"{row['c']:.3f}") for row in document["c_by_exit_layer"]]
    parts = [
        facts(_sizes(document)),
        "c by exit layer k, counted in bytes\n" + table([("k", "c"), *costs]),
        _price_table(document["drafters"]),
        _buffer_table(document["draft_buffers"]),
    ]
    return "\n\n".join(part for part in parts if part)


def _sizes(document: dict[str, Any]) -> list[tuple[str, str]]:
    held = document["bytes"]
    tied = " (the head's, tied)" if document["tied_head"] else ""
    return [
        ("model", document["model"]),
        ("family", document["family"]),
        ("layers", f"{document['layers']}"),
        ("widths", f"hidden {document['hidden_size']}, MLP {document['intermediate_size']}"),
        (
            "heads",
            f"{document['heads']} of {document['head_dim']}, {document['kv_heads']} for keys and values",
        ),
        ("vocabulary", f"{document['vocab_size']}"),
        ("context", f"{document['context_length']} tokens"),
        ("parameters", f"{document['parameters']:,}"),
        ("precision", document["dtype"]),
        ("one layer", size(held["layer"])),
        ("head", size(held["head"])),
        ("embedding", f"{size(held['embedding'])}{tied}"),
        ("total", size(held["total"])),
        ("KV cache", f"{size(document['kv_bytes_per_token'])} per token"),
        *_states(document),
        *_exits(document),
    ]


def _states(document: dict[str, Any]) -> list[tuple[str, str]]:
    """What recurrent layers hold, where there are any."""
    if not document["state_bytes"]:
        return []
    held, extra = size(document["state_bytes"]), size(document["rollback_bytes"])
    return [("states", f"{held} per text, {extra} of it to roll drafts back")]


def _exits(document: dict[str, Any]) -> list[tuple[str, str]]:
    """What is noted of exits that were trained, where it is."""
    if not (found := document["trained_exits"]):
        return []
    most = f", drafts choose among {found['vocabulary']} tokens" if found["vocabulary"] else ""
    return [("trained exits", ", ".join(map(str, found["layers"])) + most)]


def _price_table(rows: list[dict[str, Any]]) -> str:
    header = ("drafter", "runs", "weights", "KV per token", "c", "to keep")
    lines = [
        (
            row["drafter"],
            row["runs"],
            size(row["weights"]),
            size(row["kv_per_token"]),
            "-" if row["c"] is None else f"{row['c']:.3f}",
            row["keeps"],
        )
        for row in rows
    ]
    return "what a drafter holds beyond plain decoding, and c of a draft step, counted in bytes\n" + table(
        [header, *lines]
    )


def _buffer_table(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return ""
    formulas = list(rows[0]["parts"])
    header = ("drafter", "γ", "sampling", *formulas, "bytes")
    lines = [
        (
            row["drafter"],
            f"{row['gamma']}",
            row["sampling"],
            *(size(row["parts"][formula]) for formula in formulas),
            size(row["bytes"]),
        )
        for row in rows
    ]
    return "extra buffers of a draft round\n" + table([header, *lines])
