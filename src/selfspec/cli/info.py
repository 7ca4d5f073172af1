"""``selfspec info``: the sizes of a model, and what a draft costs by them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from selfspec.cli.output import emit_json, examples, facts, size, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selfspec.drafters.base import Drafter
    from selfspec.model.config import ModelConfig


_PACKED = ("gguf", "packed")  # what the core holds as it is stored, with the padding of its matrices
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
    from selfspec.model.embedded import EMBEDDED
    from selfspec.model.load import config_of

    if draft["draft_bits"] is not None and draft["draft_model"] is None:
        raise OptionError("--draft-bits is for --draft-model; name one")
    if dtype is not None and bits is not None:
        raise OptionError("--dtype is for the torch runtime and --bits for the native core; leave one out")
    name = EMBEDDED if model is None else model
    config = with_offer(name, lambda: config_of(name))
    sizes = _sizes_of(name, config, bits, dtype)
    document = _document(name, config, sizes) | {"runs_on": default_runs_on(config)}
    document["drafters"] = [row.to_dict() for row in _prices(name, config, sizes, **draft)]
    if as_json:
        emit_json(document)
    else:
        click.echo(_page(document))


@dataclass(frozen=True)
class _Sizes:
    """Bytes in one precision; ``kv`` are those of a token in the cache, ``state_width`` of a number in a state."""

    precision: str
    layer: int
    active_layer: int  # what a row reads: of a mixture, its own experts only
    head: int
    embedding: int
    total: int
    kv: int
    state_width: int

    def step(self, layers: float) -> float:
        """Bytes that a step of so many layers reads."""
        return layers * self.active_layer + self.head


def _sizes_of(name: str, config: ModelConfig, bits: int | None, dtype: str | None = None) -> _Sizes:
    """As the model would be held by default, or as asked."""
    from selfspec.loading import default_runtime
    from selfspec.model.load import locate

    if bits is not None or (dtype is None and locate(name)[0] in _PACKED and default_runtime(config) == "cpu"):
        return _packed(name, config, bits)
    return _plain(config, config.dtype if dtype is None else dtype)


def _plain(config: ModelConfig, dtype: str) -> _Sizes:
    """All numbers in one precision, as in torch."""
    width = _width(dtype)
    return _Sizes(
        precision=dtype,
        layer=config.layer_parameters * width,
        active_layer=config.active_layer_parameters * width,
        head=config.head_parameters * width,
        embedding=config.vocab_size * config.hidden_size * width,
        total=config.parameters * width,
        kv=config.kv_values_per_token * width,
        state_width=width,
    )


def _packed(name: str, config: ModelConfig, bits: int | None) -> _Sizes:
    """As the native core holds it, with the padding of its matrices."""
    from selfspec.runtime.cpu import default_kv, kv_bytes_per_token
    from selfspec.runtime.cpu_model import active_bytes
    from selfspec.runtime.packed import packed_sizes
    from selfspec.runtime.parts import parts_of

    precision, sizes = packed_sizes(name, bits)
    ends = {role: sizes[part.key] for role, part in parts_of(config)[0].items()}
    layer = (sum(sizes.values()) - sum(ends.values())) // config.num_layers
    return _Sizes(
        precision=precision,
        layer=layer,
        active_layer=active_bytes(config, sizes) // config.num_layers,
        head=ends["embedding" if config.tied_head else "head"] + ends["final_norm"],
        embedding=ends["embedding"],
        total=sum(sizes.values()),
        kv=kv_bytes_per_token(config, default_kv(precision)),
        state_width=4,
    )


def _document(name: str, config: ModelConfig, sizes: _Sizes) -> dict[str, Any]:
    from selfspec.runtime.states import kept_bytes, plain_bytes

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
        "state_bytes": (states := kept_bytes(config, sizes.state_width)),
        "rollback_bytes": states - plain_bytes(config, sizes.state_width),
        "c_by_exit_layer": _costs(config, sizes),
        "draft_buffers": list(_buffers(config, sizes.state_width)),
    }


def _width(dtype: str) -> int:
    from selfspec.errors import OptionError
    from selfspec.model.config import DTYPE_BYTES

    if dtype not in DTYPE_BYTES:
        raise OptionError(f"dtype is {dtype!r}; it must be one of {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[dtype]


def _costs(config: ModelConfig, sizes: _Sizes) -> list[dict[str, Any]]:
    whole = sizes.step(config.num_layers)
    return [{"exit_layer": k, "c": sizes.step(k) / whole} for k in range(1, config.num_layers)]


@dataclass(frozen=True)
class _Price:
    """What a drafter holds beyond plain decoding, and what a draft step reads, as a share of a full step.

    ``c`` is None where that is known only when it runs.
    """

    drafter: str
    runs: str
    weights: int
    kv_per_token: int
    c: float | None
    keeps: str  # besides the model's own files

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def _prices(
    name: str, config: ModelConfig, sizes: _Sizes, draft_model: str | None, draft_bits: int | None
) -> Iterator[_Price]:
    """Drafters of the model's own layers, then those with weights of their own."""
    from selfspec.model.load import config_of, locate
    from selfspec.runtime.cpu_model import lacking
    from selfspec.runtime.packing import BITS

    whole = sizes.step(config.num_layers)
    for drafter in _drafters(config):
        if drafter.name != "quantized":
            yield _Price(drafter.name, drafter.runs, 0, 0, _share(drafter, sizes, whole), "nothing")
    own = BITS.get(sizes.precision.partition(",")[0], 64)
    for bits in (8, 4):
        if bits < own and not lacking(config) and locate(name)[0] != "packed":
            light = _packed(name, config, bits)
            yield _Price(
                "quantized", light.precision, light.total, 0, light.step(config.num_layers) / whole, "nothing"
            )
    if draft_model is not None:
        second = config_of(draft_model)
        held = _sizes_of(draft_model, second, draft_bits)
        c = held.step(second.num_layers) / whole
        yield _Price(
            "draft_model", f"{draft_model} {held.precision}", held.total, held.kv, c, "a second checkpoint"
        )


def _share(drafter: Drafter, sizes: _Sizes, whole: float) -> float | None:
    """The c of a drafter of the model's own layers, of which a ``whole`` step reads so many bytes."""
    plan = drafter.plan
    if plan is None:
        return None if drafter.samples else 0.0
    return None if plan.experts is not None else sizes.step(plan.row_layers) / whole


def _buffers(config: ModelConfig, width: int) -> Iterator[dict[str, Any]]:
    """What each drafter holds in a round beyond plain decoding, at its default options."""
    from selfspec.request import draft_buffers
    from selfspec.types import Sampling

    for drafter in _drafters(config):
        for sampling in (Sampling(), Sampling(temperature=1.0)):
            parts = draft_buffers(config, drafter, sampling, width)
            yield {
                "drafter": drafter.name,
                "gamma": drafter.options.gamma,
                "sampling": "greedy" if sampling.is_greedy else "sampled",
                "parts": parts,
                "bytes": sum(parts.values()),
            }


def _drafters(config: ModelConfig) -> Iterator[Drafter]:
    """Those that can be made from defaults and that draft."""
    from selfspec.drafters import available, drafter_class
    from selfspec.errors import OptionError

    for name in available():
        try:
            kind = drafter_class(name)
            drafter = kind(kind.Options(), config)
        except OptionError:  # broken, or for Python only
            continue
        if drafter.options.gamma:
            yield drafter


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
    ]


def _states(document: dict[str, Any]) -> list[tuple[str, str]]:
    """What recurrent layers hold, where there are any."""
    if not document["state_bytes"]:
        return []
    held, extra = size(document["state_bytes"]), size(document["rollback_bytes"])
    return [("states", f"{held} per text, {extra} of it to roll drafts back")]


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
