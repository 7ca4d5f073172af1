"""Bytes of a model in a runtime and a precision, from its configuration alone: no weights are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec.context import PREFILL_ROWS
from selfspec.errors import OptionError
from selfspec.loading import default_runtime
from selfspec.model.config import DTYPE_BYTES
from selfspec.model.load import locate
from selfspec.runtime.cache_sizes import packed_cache_bytes, torch_cache_bytes
from selfspec.runtime.cpu import KV, default_kv, kv_bytes_per_token
from selfspec.runtime.cpu_model import active_bytes
from selfspec.runtime.held import HUGE
from selfspec.runtime.packed import packed_sizes
from selfspec.runtime.parts import parts_of

if TYPE_CHECKING:
    from selfspec.model.config import ModelConfig

_PACKED = ("gguf", "packed")  # what the core holds as it is stored, with the padding of its matrices


@dataclass(frozen=True)
class Sizes:
    """Bytes of a model as a runtime holds it.

    ``layer`` (the mean), ``head``, ``embedding`` and ``total`` are weights; ``active_layer`` is what a row reads of
    a layer: of a mixture, its own experts only. ``kv`` are keys and values of a token, whose precision is
    ``kv_precision``; ``width`` those of a number in a hidden state.
    """

    config: ModelConfig
    runtime: str
    precision: str
    layer: int
    active_layer: int
    head: int
    embedding: int
    total: int
    kv: int
    kv_precision: str
    width: int

    def step(self, layers: float) -> float:
        """Bytes that a step of so many layers reads."""
        return layers * self.active_layer + self.head

    @property
    def whole_step(self) -> float:
        """Bytes that a step of plain decoding reads."""
        return self.step(self.config.num_layers)

    def cache(self, slots: int, length: int) -> int:
        """Bytes of a cache of ``slots`` texts of ``length`` tokens, with the states of recurrent layers."""
        if self.runtime == "cpu":
            return packed_cache_bytes(self.config, self.kv_precision, slots, length)
        return torch_cache_bytes(self.config, self.width, slots, length)

    def rest_of_pages(self, cache: int) -> int:
        """Bytes that the core's weights, keys and values leave unused of the last huge page that each begins."""
        parts = (self.total, cache // 2, cache // 2) if self.runtime == "cpu" else ()
        return sum(-part % HUGE for part in parts if part >= HUGE)

    @property
    def head_precision(self) -> str:
        """That of the LM head."""
        layers, _, head = self.precision.partition(", head ")
        return head or layers

    def passes(self, rows: int = PREFILL_ROWS, length: int = 0) -> int:
        """About what a pass of ``rows`` rows holds for its time, at texts of ``length`` tokens.

        It was found for both runtimes by measuring (docs/memory.md); it is small beside weights and cache.
        """
        c = self.config
        queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        if self.runtime == "torch":
            numbers = 4 * c.intermediate_size + 8 * c.hidden_size + 2 * (queries + 2 * keys)
            return rows * (numbers * max(self.width, 4) + length)  # norms and products in float32; and a mask
        widest = max(c.intermediate_size, c.hidden_size, queries)
        numbers = widest + 2 * queries + 2 * keys + c.intermediate_size + 6 * c.hidden_size
        mixtures = [facts.experts for facts in map(c.layer, range(c.num_layers)) if facts.experts]
        pairs = max((2 * e.per_token * (e.width + c.hidden_size) for e in mixtures), default=0)
        return rows * (numbers + pairs) * self.width


def plain_sizes(config: ModelConfig, dtype: str | None = None) -> Sizes:
    """All numbers in one precision, by default the stored one, as in torch; raises OptionError for another."""
    chosen = config.dtype if dtype is None else dtype
    if chosen not in DTYPE_BYTES:
        raise OptionError(f"dtype is {chosen!r}; it must be one of {', '.join(DTYPE_BYTES)}")
    width = DTYPE_BYTES[chosen]
    return Sizes(
        config=config,
        runtime="torch",
        precision=chosen,
        layer=config.layer_parameters * width,
        active_layer=config.active_layer_parameters * width,
        head=config.head_parameters * width,
        embedding=config.vocab_size * config.hidden_size * width,
        total=config.parameters * width,
        kv=config.kv_values_per_token * width,
        kv_precision=chosen,
        width=width,
    )


def native_sizes(model: str, config: ModelConfig, bits: int | None = None, kv: str | None = None) -> Sizes:
    """As the native core holds it, with the padding of its matrices.

    Raises OptionError for other ``bits`` or ``kv``, UnsupportedModelError for what the core cannot run.
    """
    precision, sizes = packed_sizes(model, bits)
    chosen = default_kv(precision) if kv is None else kv
    if chosen not in KV:
        raise OptionError(f"kv is {chosen!r}; it must be one of {', '.join(KV)}")
    ends = {role: sizes[part.key] for role, part in parts_of(config)[0].items()}
    layer = (sum(sizes.values()) - sum(ends.values())) // config.num_layers
    return Sizes(
        config=config,
        runtime="cpu",
        precision=precision,
        layer=layer,
        active_layer=active_bytes(config, sizes) // config.num_layers,
        head=ends["embedding" if config.tied_head else "head"] + ends["final_norm"],
        embedding=ends["embedding"],
        total=sum(sizes.values()),
        kv=kv_bytes_per_token(config, chosen),
        kv_precision=chosen,
        width=4,
    )


def sizes_of(model: str, config: ModelConfig, bits: int | None = None, dtype: str | None = None) -> Sizes:
    """As asked; else GGUF files and packed folders as the native core holds them, and others as they are stored."""
    if bits is not None or (dtype is None and locate(model)[0] in _PACKED and default_runtime(config) == "cpu"):
        return native_sizes(model, config, bits)
    return plain_sizes(config, dtype)
