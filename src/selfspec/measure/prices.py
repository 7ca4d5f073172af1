"""What drafters hold beyond plain decoding, and what a draft step reads, counted from sizes alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from selfspec.drafters import available, drafter_class
from selfspec.drafters.buffers import draft_buffers
from selfspec.drafters.trained import shipped_for
from selfspec.errors import OptionError
from selfspec.measure.heads import Module, attached, eagle
from selfspec.measure.sizes import Sizes, native_sizes, sizes_of
from selfspec.model.head_file import read_head
from selfspec.model.load import config_of, locate
from selfspec.runtime.cpu_model import lacking
from selfspec.runtime.packing import BITS
from selfspec.types import Sampling

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from selfspec.drafters.base import Drafter
    from selfspec.model.config import ModelConfig

SECOND = "a second checkpoint"
HEAD = "a trained head"
NOTHING = "nothing"


@dataclass(frozen=True)
class Price:
    """What a drafter holds beyond plain decoding, and what a draft step reads, as a share of a full step.

    ``weights`` and ``kv_per_token`` are bytes. ``c`` is None where that is known only when it runs. ``keeps`` is
    what must be kept besides the model's own files.
    """

    drafter: str
    runs: str
    weights: int
    kv_per_token: int
    c: float | None
    keeps: str

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def prices(model: str, sizes: Sizes, draft_model: str | None = None, draft_bits: int | None = None) -> list[Price]:
    """Drafters of the model's own layers, then those with weights of their own."""
    own = [
        Price(drafter.name, drafter.runs, 0, 0, share(drafter, sizes), NOTHING)
        for drafter in drafting(sizes.config)
        if drafter.name not in ("quantized", "eagle")
    ]
    own += _trained(model, sizes)
    lighter = [
        Price("quantized", light.precision, light.total, 0, light.whole_step / sizes.whole_step, NOTHING)
        for light in in_fewer_bits(model, sizes)
    ]
    if draft_model is None:
        return [*own, *lighter]
    held = sizes_of(draft_model, config_of(draft_model), draft_bits)
    c = held.whole_step / sizes.whole_step
    return [
        *own,
        *lighter,
        Price("draft_model", f"{draft_model} {held.precision}", held.total, held.kv, c, SECOND),
    ]


def _trained(model: str, sizes: Sizes) -> Iterator[Price]:
    """An EAGLE-3 head, beside a model that can have one."""
    if sizes.config.recurrences:
        return
    (module, keeps), layers = eagle_of(model, sizes), sizes.config.num_layers
    c = module.reads / sizes.whole_step
    yield Price("eagle", "EAGLE-3, one layer", module.weights, module.kv_layers * sizes.kv // layers, c, keeps)


def eagle_of(model: str, sizes: Sizes) -> tuple[Module, str]:
    """The EAGLE-3 head that comes with the package for a model, else one of published shape; what is to be kept."""
    ready = shipped_for(locate(model)[2], "eagle")
    return (eagle(sizes), HEAD) if ready is None else (attached(sizes, read_head(ready)), NOTHING)


def keeps(draft: str, options: Mapping[str, Any]) -> str:
    """What a drafter, as it is named and with its options, needs besides the model's own files."""
    if "draft_model" in draft or options.get("draft_model"):
        return SECOND
    return HEAD if "head=" in draft or options.get("head") else NOTHING


def in_fewer_bits(model: str, sizes: Sizes) -> list[Sizes]:
    """The same model as the native core holds it in 8 and 4 bits, where that is fewer than it has."""
    own = BITS.get(sizes.precision.partition(",")[0], 64)
    config = sizes.config
    if lacking(config) or not can_pack(model):
        return []
    return [native_sizes(model, config, bits) for bits in (8, 4) if bits < own]


def can_pack(model: str) -> bool:
    """Whether the native core can hold a model in other bits; a folder of packed weights has its own."""
    return locate(model)[0] != "packed"


def share(drafter: Drafter, sizes: Sizes) -> float | None:
    """The c of a drafter of the model's own layers; None where it is known only when it runs."""
    plan = drafter.plan
    if plan is None:
        return None if drafter.samples else 0.0
    return None if plan.experts is not None else sizes.step(plan.row_layers) / sizes.whole_step


def drafting(config: ModelConfig) -> Iterator[Drafter]:
    """Those that can be made from defaults and that draft."""
    for name in available():
        try:
            kind = drafter_class(name)
            drafter = kind(kind.Options(), config)
        except OptionError:  # broken, or for Python only
            continue
        if drafter.options.gamma:
            yield drafter


def buffers(config: ModelConfig, width: int) -> Iterator[dict[str, Any]]:
    """What each drafter holds in a round beyond plain decoding, at its default options."""
    for drafter in drafting(config):
        for sampling in (Sampling(), Sampling(temperature=1.0)):
            parts = draft_buffers(config, drafter, sampling, width)
            yield {
                "drafter": drafter.name,
                "gamma": drafter.options.gamma,
                "sampling": "greedy" if sampling.is_greedy else "sampled",
                "parts": parts,
                "bytes": sum(parts.values()),
            }
