"""The cpu runtime: our own native core, whose rows are independent of each other.

A row's result is the same to the last bit whatever rows run beside it, however the prefill is cut, and on any
number of threads: every sum has one fixed order. So speculation changes no bit of the logits.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from selfspec.errors import OptionError, OutOfMemoryError, UnsupportedModelError
from selfspec.model.config import Layer
from selfspec.model.families import weights_by_role
from selfspec.runtime.base import Cache, Runtime
from selfspec.runtime.cores import available_processors
from selfspec.runtime.packing import BITS, PRECISIONS, Packed, native
from selfspec.runtime.rotary import inverse_frequencies
from selfspec.types import SubLayer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from selfspec.model.config import ModelConfig
    from selfspec.types import Integers, LayerPlan, Rows

    Floats = NDArray[np.float32]

_MOST_THREADS = 1024
_ROLES = ("q", "k", "v", "o", "gate", "up", "down")
_KNOWN_ROLES = {*_ROLES, *(f"{role}_bias" for role in _ROLES), "attention_norm", "mlp_norm"}


class Best(NamedTuple):
    """Of each row [R]: the token with the largest logit, that logit, and log-sum-exp of all logits."""

    tokens: Integers
    logits: Floats
    log_sum_exp: Floats


class CpuCache(Cache):
    """Keys and values in fp16 or fp32. Memory appears when it is written."""

    def __init__(self, config: ModelConfig, slots: int, length: int, *, half: bool) -> None:
        self.slots, self.length = slots, length
        self._config, self._half = config, half
        try:
            self.native = native().Cache(
                config.num_layers, slots, length, config.num_kv_heads, config.head_dim, half
            )
        except (MemoryError, TypeError) as error:  # a length beyond 32 bits is no memory either
            raise OutOfMemoryError(
                f"there is not enough memory for a KV cache of {slots} x {length:,} tokens; ask for fewer tokens"
            ) from error

    @property
    def nbytes(self) -> int:
        """Bytes held; lengths are padded to 16 cells and head widths to 8 numbers."""
        return int(self.native.nbytes)

    def longer(self, length: int) -> CpuCache:
        """A longer copy."""
        new = CpuCache(self._config, self.slots, length, half=self._half)
        new.native.copy_from(self.native)
        return new


class CpuRuntime(Runtime):
    """Runs plans of a decoder in the native core, which has the operators of the Llama type (see `lacking`).

    Hidden states and logits are float32 NumPy arrays.

    Parameters
    ----------
    config
        Sizes and switches.
    weights
        Canonical name -> `Packed` matrix, or float32 array for norms and biases. Nothing is copied but norms
        and biases. A tied model needs no ``lm_head.weight``: the embedding is read from the packed head.
    threads
        By default one for each processor that this process may use.
    kv
        Precision of the cache: "float16" or "float32"; by default that of the weights, float16 for all but
        float32 weights.
    kernels
        One of `kernel_sets`; by default the fastest. All give the same bits.

    Raises
    ------
    OptionError
        A wrong option, or the core is not built.
    UnsupportedModelError
        The model needs what the core does not have.
    """

    name = "cpu"
    is_row_invariant = True
    value_bytes = 4

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Packed | Floats],
        threads: int | None = None,
        kv: str | None = None,
        kernels: str | None = None,
    ) -> None:
        self.config = config
        self._weights = weights
        self.threads = available_processors() if threads is None else threads
        self.kernels = native().kernel_sets()[0] if kernels is None else kernels
        if not 1 <= self.threads <= _MOST_THREADS:
            raise OptionError(f"threads is {self.threads}; it must be 1 to {_MOST_THREADS}")
        if self.kernels not in native().kernel_sets():
            raise OptionError(
                f"kernels is {self.kernels!r}; this processor has {', '.join(native().kernel_sets())}"
            )
        require_supported(config)
        self._ends = weights_by_role(config)
        self._head = _packed(weights, self._ends["embedding" if config.tied_head else "head"].name)
        self.precision = precision_of(weights, self._head)
        self.kv = default_kv(self.precision) if kv is None else kv
        if self.kv not in ("float16", "float32"):
            raise OptionError(f"kv is {self.kv!r}; it must be float16 or float32")
        self._model = _model(config, self.kernels, self.threads)
        self._embedding = _packed(weights, self._ends["embedding"].name).matrix()
        self._fill(weights)

    def _fill(self, weights: Mapping[str, Packed | Floats]) -> None:
        for layer in range(self.config.num_layers):
            names = {role: weight.name for role, weight in weights_by_role(self.config, layer).items()}
            for role in _ROLES:
                bias = weights[names[f"{role}_bias"]] if f"{role}_bias" in names else None
                self._model.set_linear(layer, role, _packed(weights, names[role]).matrix(), bias)
            self._model.set_norm(layer, "attention", weights[names["attention_norm"]])
            self._model.set_norm(layer, "mlp", weights[names["mlp_norm"]])
        self._model.set_norm(0, "final", weights[self._ends["final_norm"].name])
        self._model.set_linear(0, "head", self._head.matrix(), None)

    @property
    def runs_on(self) -> str:
        """The core, its kernels and threads."""
        return described(self.kernels, self.threads)

    @property
    def pass_bytes(self) -> int:
        """Bytes of packed weights that a full pass reads."""
        layers = [w for name, w in self._weights.items() if ".layers." in name and isinstance(w, Packed)]
        return sum(weight.data.nbytes for weight in [*layers, self._head])

    @property
    def weight_bytes(self) -> int:
        """Bytes of all packed weights; the embedding of a tied model is its head."""
        return sum((w.data if isinstance(w, Packed) else w).nbytes for w in self._weights.values())

    @property
    def placement(self) -> dict[str, Any]:
        """The core, with as many threads where that was chosen."""
        chosen = {} if self.threads == available_processors() else {"threads": self.threads}
        return {"runtime": self.name, **chosen}

    @property
    def fewer_bits(self) -> tuple[int, ...]:
        """Of the two that are rounded, those below what most weights have; a cache is laid out alike for all."""
        own = BITS[self.precision.partition(",")[0]]
        return tuple(bits for bits in (8, 4) if bits < own)

    def embed(self, tokens: Sequence[int], positions: Integers | None = None) -> Floats:  # noqa: ARG002
        """Hidden states [R, d] that enter layer 0."""
        out = np.empty((len(tokens), self.config.hidden_size), dtype=np.float32)
        native().unpack_rows(self._embedding, np.asarray(tokens, dtype=np.int64), out)
        return out

    def run(
        self, hidden: Any, plan: LayerPlan, rows: Rows, cache: Cache, taps: Sequence[SubLayer] = ()
    ) -> tuple[Floats, Mapping[SubLayer, Floats]]:
        """Run the sub-layers of ``plan`` in one call of the core."""
        assert isinstance(cache, CpuCache)
        out = np.array(hidden, dtype=np.float32, order="C")
        steps, places = _steps(plan, tuple(taps))
        tapped = np.empty((len(taps), *out.shape), dtype=np.float32)
        if len(steps):
            where = (_integers(rows.slots), _integers(rows.positions), _lineage(rows))
            self._model.run(out, (steps, places, tapped), where, cache.native)
        return out, {tap: tapped[i] for i, tap in enumerate(taps) if i in places}

    def logits(self, hidden: Any, head: Packed | None = None) -> Floats:
        """Final norm and LM head over ``hidden`` [R, d]: logits [R, V], or of the rows of a trimmed ``head``."""
        used = self._head if head is None else head
        out = np.empty((hidden.shape[0], used.rows), dtype=np.float32)
        self._model.logits(_floats(hidden), out, None if head is None else head.matrix())
        return out

    def best(self, hidden: Any, head: Packed | None = None) -> Best:
        """What greedy decoding needs of the logits of ``hidden`` [R, d], without storing them."""
        rows = hidden.shape[0]
        found = Best(np.empty(rows, np.int64), np.empty(rows, np.float32), np.empty(rows, np.float32))
        self._model.best(_floats(hidden), *found, None if head is None else head.matrix())
        return found

    def top(self, hidden: Any, k: int, head: Packed | None = None) -> tuple[Integers, Floats]:
        """The k largest logits of ``hidden`` [R, d] in falling order: tokens [R, k] and logits [R, k]."""
        logits = self.logits(hidden, head)
        tokens, values = np.empty((len(logits), k), np.int64), np.empty((len(logits), k), np.float32)
        native().largest(logits, tokens, values)
        return tokens, values

    def trimmed_head(self, tokens: Integers) -> Packed:
        """A head with only the rows of ``tokens``; its logits equal the full head's to the last bit."""
        return self._head.take(tokens)

    def new_cache(self, slots: int, length: int) -> CpuCache:
        """An empty cache of ``slots`` sequences of up to ``length`` cells."""
        return CpuCache(self.config, slots, length, half=self.kv == "float16")

    def keep(self, cache: Cache, rows: Rows) -> None:
        """Move the keys and values of ``rows`` to the cells of their positions, in every layer."""
        assert isinstance(cache, CpuCache)
        # in order of position: a cell that is written was read before, or belongs to no row that is kept
        order = np.argsort(rows.positions, kind="stable")
        where = (_integers(values[order]) for values in (rows.slots, rows.cells, rows.positions))
        self._model.move(cache.native, *where)


def lacking(config: ModelConfig) -> str:
    """What the core does not have and this model needs, in words; "" if it runs it."""
    facts = [config.layer(index) for index in range(config.num_layers)]
    plain, layer = Layer(), facts[0]
    windows = {f.window for f in facts if f.window is not None and f.window < config.context_length}
    ropes = {f.rope for f in facts}
    rope = next((f.rope for f in facts if f.rope), None)
    needs = {
        "mixtures of experts": any(f.experts for f in facts),
        "sliding windows": windows,
        "layers without rotary embeddings": None in ropes,
        "several rotary embeddings": len(ropes - {None}) > 1,
        "learned positions": config.has_positions,
        "parallel residuals": not layer.is_sequential,
        "norms after attention and MLP": layer.norm_after,
        "norms of queries and keys": layer.qk_norm != "none",
        f"norms of the kind {layer.norm}": layer.norm != plain.norm,
        f"the activation {layer.activation}": layer.activation != plain.activation,
        "scaled scores": any(f.scale not in (None, config.head_dim**-0.5) for f in facts),
        "soft caps": layer.soft_cap is not None or config.logit_cap is not None,
        "sinks": layer.sinks,
        "scaled embeddings, residuals or logits": {config.embedding_scale, config.logit_scale, layer.residual_scale}
        != {1.0},
        "rotary embeddings of a part of each head": rope is not None and rope.share != 1.0,
        "rotary embeddings of neighbouring pairs": rope is not None and rope.interleaved,
        f"the rope type {rope.kind if rope else ''}": rope is not None and rope.attention_factor != 1.0,
    }
    missing = [what for what, is_needed in needs.items() if is_needed]
    if not missing and set(weights_by_role(config, 0)) - _KNOWN_ROLES:
        missing = ["fused weights"]
    return ", ".join(missing)


def require_supported(config: ModelConfig) -> None:
    """Raise UnsupportedModelError if the core cannot run the model."""
    if missing := lacking(config):
        raise UnsupportedModelError(f"the native core has no {missing}, which {config.family} needs; use torch")


def default_kv(precision: str) -> str:
    """The precision of keys and values beside weights of a `precision_of`."""
    return "float32" if precision == "float32" else "float16"


@lru_cache(maxsize=256)  # a drafter repeats its plans
def _steps(plan: LayerPlan, taps: tuple[SubLayer, ...]) -> tuple[Integers, Integers]:
    """The steps of a plan as the core wants them, and for each the index of its tap, or -1."""
    steps = [2 * layer + (part == "mlp") for layer, part in plan.steps]
    places = [taps.index(step) if step in taps else -1 for step in plan.steps]
    return np.asarray(steps, dtype=np.int64), np.asarray(places, dtype=np.int64)


def described(kernels: str | None = None, threads: int | None = None) -> str:
    """The core, its kernels and threads, for people; None stands for the defaults."""
    count = available_processors() if threads is None else threads
    return f"cpu ({kernels or native().kernel_sets()[0]}, {count} thread{'s' * (count > 1)})"


def _model(config: ModelConfig, kernels: str, threads: int) -> Any:
    sizes = (
        config.num_layers, config.hidden_size, config.intermediate_size, config.num_heads, config.num_kv_heads,
        config.head_dim, config.vocab_size,
    )  # fmt: skip
    rope = config.layer(0).rope
    assert rope is not None
    frequencies = inverse_frequencies(rope, config.head_dim)
    return native().Model(sizes, config.norm_eps, frequencies, kernels, threads)


def _packed(weights: Mapping[str, Packed | Floats], name: str) -> Packed:
    found = weights[name]
    assert isinstance(found, Packed), name
    return found


def precision_of(weights: Mapping[str, Packed | Floats], head: Packed) -> str:
    """Such as "int4", or "int4, head int8" where the head differs; the layers' commonest kind counts."""
    sizes: Counter[str] = Counter()
    for name, weight in weights.items():
        if isinstance(weight, Packed) and ".layers." in name:
            sizes[weight.kind] += weight.rows * weight.columns
    most, _ = sizes.most_common(1)[0]
    return PRECISIONS[most] + ("" if head.kind == most else f", head {PRECISIONS[head.kind]}")


def _floats(hidden: Any) -> Floats:
    return np.ascontiguousarray(hidden, dtype=np.float32)


def _integers(values: Integers) -> Integers:
    return np.ascontiguousarray(values, dtype=np.int64)


def _lineage(rows: Rows) -> Integers | None:
    return None if rows.lineage is None else _integers(rows.lineage)
