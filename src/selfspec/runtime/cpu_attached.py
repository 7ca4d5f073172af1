"""Trained heads in the native core: a model of one layer, run by the same passes on a cache of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from selfspec.runtime.attached import Attached, embedding_of
from selfspec.runtime.packing import BITS, KIND_OF_BITS, PRECISIONS, floats, native, pack
from selfspec.runtime.rotary import inverse_frequencies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from selfspec.model.head_file import HeadFile
    from selfspec.runtime.attached import Likeliest
    from selfspec.runtime.base import Cache
    from selfspec.runtime.cpu import CpuRuntime
    from selfspec.runtime.packing import Packed
    from selfspec.types import Array, Integers, Rows

    Floats = NDArray[np.float32]

DEFAULT_BITS = 8  # a draft may be coarse, and a file in int8 is taken over as it is
_PRODUCTS = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj"} | {
    name: f"mlp.{name}_proj" for name in ("gate", "up", "down")
}


class Place(NamedTuple):
    """Where a head runs: kernels, threads, and the precision of its keys and values."""

    kernels: str
    threads: int
    kv: str


class CpuHead(Attached):
    """What the core's heads have in common: a core model with their LM head."""

    _model: Any

    def logits(self, states: Array) -> Floats:
        """See `Attached.logits`."""
        out = np.empty((len(states), self.config.vocab_size), dtype=np.float32)
        self._model.logits(floats(states), out, None)
        return out

    def best(self, states: Array) -> list[Likeliest]:
        """See `Attached.best`: no row of logits is stored."""
        rows = len(states)
        tokens, logits, sums = np.empty(rows, np.int64), np.empty(rows, np.float32), np.empty(rows, np.float32)
        self._model.best(floats(states), tokens, logits, sums, None)
        return self.named(tokens, np.exp(logits - sums).tolist())


class CpuAttached(CpuHead):
    """A head packed in ``bits``; ``lm_head`` is the target's, of which it takes rows, or rounds them to as few."""

    def __init__(self, head: HeadFile, target: CpuRuntime, lm_head: Packed, bits: int | None, place: Place) -> None:
        super().__init__(head, target)
        kind = KIND_OF_BITS[DEFAULT_BITS if bits is None else bits]
        self._target, self._place = target, place
        c, prefix, weights = self.config, head.facts.prefix, head.weights
        sizes = (1, c.hidden_size, c.intermediate_size, c.num_heads, c.num_kv_heads, c.head_dim, c.vocab_size)
        turn = (inverse_frequencies(c.rope, c.head_dim), False, c.rope.attention_factor)
        self._model = native().Model(sizes, c.norm_eps, [turn], place.kernels, place.threads)
        self._is_eagle = head.facts.kind == "eagle"
        self._model.set_facts(
            0, {"rope": 0, "scale": c.head_dim**-0.5, "beside": self._is_eagle, "norm_heads": True}
        )
        self.weight_bytes = 0
        for role, name in _PRODUCTS.items():
            if (weight := weights.get(f"{prefix}{name}.weight")) is not None:
                self._set(role, pack(weight, kind))
        for name in ("transform.weight", "fc.weight"):
            if name in weights:
                self._set("transform", pack(weights[name], kind))
        own_norm = "hidden_norm" if self._is_eagle else "input_layernorm"
        norms = {"attention": own_norm, "mlp": "post_attention_layernorm"}
        norms |= {"beside": "input_layernorm"} if self._is_eagle else {}
        norms |= {name: f"self_attn.{name}_norm" for name in "qk"}
        self._embedding, self._before = embedding_of(head, target), None
        if head.facts.norm_before_residual:  # the core norms what attention reads, and adds to what is not normed
            self._before = weights[f"{prefix}{norms.pop('attention')}.weight"]
        self.weight_bytes += 0 if self._embedding is None else self._embedding.nbytes
        for role, name in norms.items():
            if (weight := weights.get(f"{prefix}{name}.weight")) is not None:
                self._model.set_norm(0, role, weight, None)
        self._model.set_norm(0, "final", weights["norm.weight"], None)
        rows = lm_head_of(head.lm_head, self.vocabulary, lm_head, kind)
        self._set("head", rows, is_held=lm_head)
        steps = {"attention": (0,), "layer": (0, 1)}.get(head.facts.form, ())
        self._steps = np.asarray(steps, dtype=np.int64)
        self._places = np.full(len(steps), -1, dtype=np.int64)
        self._no_taps = np.empty((0, 1, c.hidden_size), dtype=np.float32)

    def _set(self, role: str, matrix: Packed, is_held: Packed | None = None) -> None:
        """Give the core a matrix, and count it unless the target holds it already."""
        self._model.set_linear(0, role, matrix.matrix(), None)
        self.weight_bytes += 0 if matrix is is_held else matrix.data.nbytes

    def features(self, states: Array) -> Floats:
        """See `Attached.features`."""
        if not self._is_eagle:
            return floats(states)
        out = np.empty((len(states), self.config.hidden_size), dtype=np.float32)
        self._model.transformed(floats(states), out, False)
        return out

    def run(self, entering: Array, tokens: Sequence[int], rows: Rows, cache: Cache | None) -> Floats:
        """See `Attached.run`."""
        out = np.array(entering, dtype=np.float32, order="C")
        if self.facts.form == "none":
            return out
        if self._before is not None:
            out *= self._before / np.sqrt(
                (out * out).mean(axis=1, keepdims=True) + np.float32(self.config.norm_eps)
            )
        if not len(self._steps):
            self._model.transformed(floats(entering), out, True)
            return out
        assert cache is not None
        where = (np.ascontiguousarray(rows.slots), np.ascontiguousarray(rows.positions), None)
        beside = None
        if self._is_eagle:
            own = self._embedding
            beside = self._target.embed(tokens) if own is None else floats(own[np.asarray(tokens)])
        plan = (self._steps, self._places, self._no_taps, 0)
        self._model.run(out, plan, where, cache.native, beside)  # type: ignore[attr-defined]
        return out

    def new_cache(self, slots: int, length: int) -> Cache:
        """See `Attached.new_cache`."""
        from selfspec.runtime.cpu import CpuCache
        from selfspec.runtime.rings import Rings

        return CpuCache(self.config, (slots, length), self._place.kv, Rings.of(self.config, 0))


def lm_head_of(own: Floats | None, vocabulary: Integers | None, target: Packed, kind: str) -> Packed:
    """The LM head of a head: its own, or rows of the target's, in no more bits than ``kind`` has."""
    if own is not None:
        return pack(own, kind)
    if BITS[PRECISIONS[target.kind]] > BITS[PRECISIONS[kind]]:
        return pack(target.unpack(vocabulary), kind)
    return target if vocabulary is None else target.take(vocabulary)
