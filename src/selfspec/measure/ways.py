"""The ways to decode with a model, and what each holds beyond the model alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from selfspec.context import PREFILL_ROWS
from selfspec.drafters import available, drafter_class
from selfspec.drafters.buffers import draft_buffers
from selfspec.engine import DEFAULT_DRAFT
from selfspec.errors import OptionError
from selfspec.feeds import MOST_PENDING
from selfspec.measure.heads import exit_head
from selfspec.measure.prices import HEAD, NOTHING, SECOND, eagle_of, in_fewer_bits, share
from selfspec.measure.sizes import Sizes, native_sizes, plain_sizes
from selfspec.model.load import config_of
from selfspec.runtime.cpu import default_kv
from selfspec.runtime.states import kept_bytes
from selfspec.types import Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from selfspec.drafters.base import Drafter

_SHARE = 4  # a trained exit is counted after a quarter of the layers
PLAIN = "none"
_OWN = ("ngram", "early_exit", "layer_skip")


def _nothing(_slots: int, _length: int) -> int:
    return 0


@dataclass(frozen=True)
class Way:
    """How drafts are made, and the bytes that this takes beyond the model's weights and cache.

    ``cache`` gives those of a cache of its own for (texts, tokens of each), ``buffers`` are those of one text in a
    round, the largest that any sampling takes. ``c`` and ``f`` are those of the cost model, counted in bytes; ``c``
    None: nothing is drafted. ``note`` says what about these numbers is no count.
    """

    name: str
    runs: str
    keeps: str = NOTHING
    weights: int = 0
    buffers: int = 0
    passes: int = 0
    c: float | None = None
    f: float = 0.0
    cache: Callable[[int, int], int] = _nothing
    exit_layer: int | None = None
    note: str = ""

    @property
    def is_built(self) -> bool:
        """Whether this version has it; an exit head drafts as `early_exit`."""
        return self.name in (PLAIN, "exit_head") or self.name in available()


@dataclass(frozen=True)
class Second:
    """A draft model: named, and in which bits; or only so many ``weights``."""

    model: str | None = None
    bits: int | None = None
    weights: int | None = None


def needs(sizes: Sizes, way: Way, length: int, slots: int, gamma: int) -> dict[str, int]:
    """Bytes of each part, for ``slots`` texts at once of up to ``length`` tokens."""
    config = sizes.config
    states = kept_bytes(config, sizes.width) * slots if sizes.runtime == "torch" else 0
    rows, cache = max(min(PREFILL_ROWS, length), slots * (gamma + 1)), sizes.cache(slots, length)
    logits = slots * config.vocab_size * max(4, sizes.width)
    return {
        "weights": sizes.total,
        "cache": cache - states,
        "states": states,
        "passes": sizes.passes(rows, length) + logits + sizes.rest_of_pages(cache),
        "draft weights": way.weights,
        "draft cache": way.cache(slots, length),
        "draft buffers": way.passes + slots * way.buffers,
    }


def ways(model: str, sizes: Sizes, gamma: int, second: Second, exit_layer: int | None = None) -> list[Way]:
    """Those that this model and runtime can have, the model alone first. Raises SelfspecError as `load`."""
    trained = list(_trained(model, sizes, gamma))
    found = [Way(PLAIN, f"{sizes.config.num_layers} layers"), _chosen(sizes, gamma, trained)]
    for name in _OWN:
        options = {} if exit_layer is None or name != "early_exit" else {"exit_layer": exit_layer}
        drafter = _drafter(name, sizes, gamma=gamma, **options)
        if drafter is not None:
            found.append(_own_layers(drafter, sizes))
    found += _lighter(model, sizes, gamma) if sizes.runtime == "cpu" else ()
    found += trained
    return [*found, *_seconds(sizes, gamma, second)]


def _drafter(name: str, sizes: Sizes, **options: Any) -> Drafter | None:
    """One with these options; None where the model can have none."""
    kind = drafter_class(name)
    try:
        return kind.for_options(kind.Options(**options), sizes.config)
    except OptionError:
        return None


def _buffers(drafter: Drafter | None, sizes: Sizes) -> int:
    if drafter is None:
        return 0
    return sum(draft_buffers(sizes.config, drafter, Sampling(temperature=1.0), sizes.width).values())


def _own_layers(drafter: Drafter, sizes: Sizes) -> Way:
    plan = drafter.plan
    shared = plan.shared_prefix if plan is not None else 0
    return Way(
        drafter.name,
        drafter.runs,
        buffers=_buffers(drafter, sizes),
        c=share(drafter, sizes),
        f=shared * sizes.active_layer / sizes.whole_step,
        exit_layer=shared if drafter.name == "early_exit" else None,
    )


def _chosen(sizes: Sizes, gamma: int, trained: Sequence[Way]) -> Way:
    """The default: a drafter anew in every round, and what its candidates hold."""
    drafter = _drafter(DEFAULT_DRAFT, sizes, gamma=gamma)
    assert drafter is not None
    heads = [way for way in trained if way.keeps == NOTHING]
    return Way(
        DEFAULT_DRAFT,
        " or ".join(dict.fromkeys([*(part.name for part in drafter.parts), *(way.name for way in heads)])),
        weights=sum(way.weights for way in heads),
        buffers=max([*(_buffers(part, sizes) for part in drafter.parts), *(way.buffers for way in heads)]),
        cache=lambda slots, length: sum(way.cache(slots, length) for way in heads),
    )


def _lighter(model: str, sizes: Sizes, gamma: int) -> Iterator[Way]:
    buffers = _buffers(_drafter("quantized", sizes, gamma=gamma), sizes)
    for light in in_fewer_bits(model, sizes):
        c = light.whole_step / sizes.whole_step
        yield Way("quantized", light.precision, weights=light.total, buffers=buffers, c=c)


def _trained(model: str, sizes: Sizes, gamma: int) -> Iterator[Way]:
    """Heads that are trained for this model, or come with the package."""
    config = sizes.config
    each = sizes.kv // max(config.num_layers - len(config.recurrences), 1)

    def cells(slots: int, length: int) -> int:
        return each * slots * length

    waiting = MOST_PENDING * config.hidden_size * sizes.width  # states that a head has not read yet
    buffers = _buffers(_drafter("early_exit", sizes, gamma=gamma), sizes) + waiting
    if config.num_layers > 1:
        depth = max(config.num_layers // _SHARE, 1)
        head = exit_head(sizes)
        yield Way(
            "exit_head",
            f"exit {depth}/{config.num_layers}, an attention block",
            HEAD,
            head.weights,
            buffers,
            c=(sizes.step(depth) + head.reads) / sizes.whole_step,
            f=depth * sizes.active_layer / sizes.whole_step,
            cache=cells,
        )
    module, keeps = eagle_of(model, sizes)
    buffers = _buffers(_drafter("quantized", sizes, gamma=gamma), sizes) + 3 * waiting
    c = module.reads / sizes.whole_step
    yield Way("eagle", "EAGLE-3, one layer", keeps, module.weights, buffers, c=c, cache=cells)


def _seconds(sizes: Sizes, gamma: int, second: Second) -> Iterator[Way]:
    buffers = _buffers(_drafter("draft_model", sizes, gamma=gamma, draft_model="named"), sizes)
    if second.model is not None:
        held = _placed(sizes, second)
        limit = held.config.context_length

        def cells(slots: int, length: int) -> int:
            return held.cache(slots, min(length, limit))

        yield Way(
            "draft_model",
            f"{second.model} {held.precision}",
            SECOND,
            held.total,
            buffers,
            held.passes(),
            held.whole_step / sizes.whole_step,
            cache=cells,
        )
    if second.weights is not None:
        yield _of_size(sizes, second.weights, buffers)


def _placed(sizes: Sizes, second: Second) -> Sizes:
    """A second model where it would run: as `DraftModelOptions.placement` says."""
    assert second.model is not None
    config = config_of(second.model)
    if sizes.runtime != "cpu" and second.bits is None:
        return plain_sizes(config)
    chosen = sizes.runtime == "cpu" and sizes.kv_precision != default_kv(sizes.precision)
    return native_sizes(second.model, config, second.bits, sizes.kv_precision if chosen else None)


def _of_size(sizes: Sizes, weights: int, buffers: int) -> Way:
    """A model of which only the size is known; small models have more keys and values than in proportion."""
    part = weights / sizes.config.parameters

    def cells(slots: int, length: int) -> int:
        return int(slots * length * sizes.kv * part**0.5)

    return Way(
        "draft_model",
        f"any of {weights:,} weights",
        SECOND,
        int(sizes.total * part),
        buffers,
        int(sizes.passes() * part**0.5),
        part,
        cache=cells,
        note="its KV is a guess: that of the model, times the root of the share of weights; name one to count it",
    )
