"""The cpu runtime: our own native core, whose rows are independent of each other.

A row's result is the same to the last bit whatever rows run beside it, however the prefill is cut, and on any
number of threads: every sum has one fixed order. So speculation changes no bit of the logits.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from selfspec.errors import OptionError, OutOfMemoryError
from selfspec.model.config import DTYPE_BYTES
from selfspec.runtime.base import Cache, Runtime
from selfspec.runtime.cores import available_processors
from selfspec.runtime.cpu_attached import CpuAttached, Place
from selfspec.runtime.cpu_blocks import CpuBlocks
from selfspec.runtime.cpu_model import active_bytes, built, packed, precision_of, require_supported
from selfspec.runtime.packing import BITS, Packed, floats, native
from selfspec.runtime.parts import head_of, part_of, parts_of
from selfspec.runtime.rings import Rings, run_in_parts, split
from selfspec.types import MOST_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from selfspec.model.config import ModelConfig
    from selfspec.model.head_file import HeadFile
    from selfspec.runtime.attached import Attached
    from selfspec.types import Integers, LayerPlan, Rows, SubLayer

    Floats = NDArray[np.float32]

_MOST_THREADS = 1024
KV = ("float16", "bfloat16", "float32", "int8")
"""Precisions of keys and values."""


class Best(NamedTuple):
    """Of each row [R]: the token with the largest logit, that logit, and log-sum-exp of all logits."""

    tokens: Integers
    logits: Floats
    log_sum_exp: Floats


class CpuCache(Cache):
    """Keys and values in a precision of `KV`. Memory appears when it is written.

    A layer with a window has the cells of its ring, in whole segments of 128, or no more than a text has.
    """

    def __init__(self, config: ModelConfig, size: tuple[int, int], kv: str, rings: Rings) -> None:
        self.slots, self.length = size
        self._config, self._kv, self._rings = config, kv, rings
        cells = [0 if cells == self.length else cells for cells in rings.sizes(self.length)]
        try:
            self.native = native().Cache(cells, *size, config.num_kv_heads, config.head_dim, kv)
        except (MemoryError, TypeError) as error:  # a length beyond 32 bits is no memory either
            raise OutOfMemoryError(
                f"there is not enough memory for a KV cache of {self.slots} x {self.length:,} tokens; "
                "ask for fewer tokens"
            ) from error

    @property
    def nbytes(self) -> int:
        """Bytes held; lengths are padded to 16 cells and head widths to 8 numbers."""
        return int(self.native.nbytes)

    @property
    def has_rings(self) -> bool:
        """Whether some layer has fewer cells than a text may have."""
        return bool(self.native.smallest_ring)

    def rewinds(self, written: int, to: int) -> bool:
        """See `Cache.rewinds`."""
        return self._rings.rewinds(self.native.smallest_ring, written, to)

    def longer(self, length: int) -> CpuCache:
        """A longer copy."""
        new = CpuCache(self._config, (self.slots, length), self._kv, self._rings)
        new.native.copy_from(self.native)
        return new


class CpuRuntime(Runtime):
    """Runs plans of a decoder of any known family in the native core.

    Hidden states and logits are float32 NumPy arrays.

    Parameters
    ----------
    config
        Sizes and switches.
    weights
        Key of a part (`runtime.parts`; the canonical name, where a weight is not fused) -> `Packed` matrix, or
        float32 array for norms, biases, sinks and positions, which alone are copied. A tied model needs no
        ``lm_head.weight``: the embedding is read from the packed head.
    threads
        By default one for each processor that this process may use.
    kv
        Precision of the cache, one of `KV`; by default float16 for all but float32 weights. "int8": 8 bits and
        one scale (fp16) for the key and for the value of a head.
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
    most_rows = MOST_ROWS  # of a slot in one pass, where a layer has a window; longer passes are cut

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
        self._head = packed(weights, head_of(config))
        self.precision = precision_of(config, weights)
        self.kv = default_kv(self.precision) if kv is None else kv
        if self.kv not in KV:
            raise OptionError(f"kv is {self.kv!r}; it must be one of {', '.join(KV)}")
        ends = parts_of(config)[0]
        self._model = built(config, weights, self.kernels, self.threads)
        self._embedding = packed(weights, ends["embedding"]).matrix()
        self._positions = np.asarray(weights[ends["positions"].key]) if config.has_positions else None

    @property
    def runs_on(self) -> str:
        """The core, its kernels and threads."""
        return described(self.kernels, self.threads)

    @property
    def pass_bytes(self) -> int:
        """Bytes of packed weights that a full pass of one row reads."""
        sizes = {key: w.data.nbytes if isinstance(w, Packed) else 0 for key, w in self._weights.items()}
        return active_bytes(self.config, sizes) + self._head.data.nbytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of all packed weights; the embedding of a tied model is its head."""
        return sum((w.data if isinstance(w, Packed) else w).nbytes for w in self._weights.values())

    @property
    def placement(self) -> dict[str, Any]:
        """The core, with as many threads and such a cache where that was chosen."""
        chosen: dict[str, Any] = {} if self.threads == available_processors() else {"threads": self.threads}
        if self.kv != default_kv(self.precision):
            chosen["kv"] = self.kv
        return {"runtime": self.name, **chosen}

    @property
    def fewer_bits(self) -> tuple[int, ...]:
        """Of the two that are rounded, those below what most weights have; a cache is laid out alike for all."""
        own = BITS[self.precision.partition(",")[0]]
        return tuple(bits for bits in (8, 4) if bits < own)

    @property
    def expert_reads(self) -> int:
        """Experts whose weights all passes so far have read: in each pass and layer every distinct one once."""
        return int(self._model.expert_reads)

    def weight(self, role: str, layer: int | None = None) -> Floats | None:
        """What the packed numbers stand for; see `Runtime.weight`."""
        part = part_of(self.config, role, layer)
        found = None if part is None else self._weights[part.key]
        return found.unpack() if isinstance(found, Packed) else found

    def head_rows(self, tokens: Integers) -> Floats:
        """See `Runtime.head_rows`; the others stay packed."""
        return self._head.unpack(_integers(tokens))

    def vectors(self) -> Iterator[tuple[str, Floats]]:
        """See `Runtime.vectors`."""
        for parts in parts_of(self.config)[1:]:
            for role, part in parts.items():
                if role.endswith("norm"):
                    yield part.key, np.asarray(self._weights[part.key])

    def attach(self, head: HeadFile, bits: int | None = None) -> Attached:
        """See `Runtime.attach`; 8 bits by default, whatever the model has."""
        kind = CpuBlocks if head.facts.form == "blocks" else CpuAttached
        return kind(head, self, self._head, bits, Place(self.kernels, self.threads, self.kv))

    def embed(self, tokens: Sequence[int], positions: Integers | None = None) -> Floats:
        """Hidden states [R, d] that enter layer 0."""
        out = np.empty((len(tokens), self.config.hidden_size), dtype=np.float32)
        native().unpack_rows(self._embedding, np.asarray(tokens, dtype=np.int64), out)
        if self.config.embedding_scale != 1.0:
            out *= np.float32(self.config.embedding_scale)
        if self._positions is not None:
            assert positions is not None, "the positions of this model are learned vectors"
            out += self._positions[positions + (self.config.position_offset or 0)]
        return out

    def run(
        self, hidden: Any, plan: LayerPlan, rows: Rows, cache: Cache, taps: Sequence[SubLayer] = ()
    ) -> tuple[Floats, Mapping[SubLayer, Floats]]:
        """Run the sub-layers of ``plan`` in one call of the core."""
        assert isinstance(cache, CpuCache)
        self._check(plan)
        if cache.has_rings and (parts := split(rows, self.most_rows)):
            return run_in_parts(lambda part, own: self.run(part, plan, own, cache, taps), hidden, rows, parts)
        out = np.array(hidden, dtype=np.float32, order="C")
        steps, places, reached = _steps(plan, tuple(taps))
        tapped = np.empty((len(taps), *out.shape), dtype=np.float32)
        if len(steps):
            where = (_integers(rows.slots), _integers(rows.positions), _lineage(rows))
            self._model.run(out, (steps, places, tapped, plan.experts or 0), where, cache.native)
        return out, {taps[i]: tapped[i] for i in reached}

    def _check(self, plan: LayerPlan) -> None:
        """Raise OptionError for parts of sub-layers, or a number of experts that the plan's layers do not have."""
        if reason := self.refuses(plan):
            raise OptionError(reason)
        if plan.experts is None:
            return
        for layer in plan.mlp:
            experts = self.config.layer(layer).experts
            if experts is not None and not 1 <= plan.experts <= experts.count:
                raise OptionError(
                    f"experts is {plan.experts}; this model has {experts.count}, so it must be 1 to that"
                )

    def logits(self, hidden: Any, head: Packed | None = None) -> Floats:
        """Final norm and LM head over ``hidden`` [R, d]: logits [R, V], or of the rows of a trimmed ``head``."""
        used = self._head if head is None else head
        out = np.empty((hidden.shape[0], used.rows), dtype=np.float32)
        self._model.logits(floats(hidden), out, None if head is None else head.matrix())
        return out

    def best(self, hidden: Any, head: Packed | None = None) -> Best:
        """What greedy decoding needs of the logits of ``hidden`` [R, d], without storing them."""
        rows = hidden.shape[0]
        found = Best(np.empty(rows, np.int64), np.empty(rows, np.float32), np.empty(rows, np.float32))
        self._model.best(floats(hidden), *found, None if head is None else head.matrix())
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
        return CpuCache(self.config, (slots, length), self.kv, Rings.of(self.config, self.most_rows))

    def cache_bytes(self, slots: int, length: int) -> int:
        """See `Runtime.cache_bytes`."""
        from selfspec.runtime.cache_sizes import packed_cache_bytes

        return packed_cache_bytes(self.config, self.kv, slots, length)

    def keep(self, cache: Cache, rows: Rows) -> None:
        """Move the keys and values of ``rows`` to the cells of their positions, in every layer."""
        assert isinstance(cache, CpuCache)
        # in order of position: a cell that is written was read before, or belongs to no row that is kept
        order = np.argsort(rows.positions, kind="stable")
        where = (_integers(values[order]) for values in (rows.slots, rows.cells, rows.positions))
        cache.native.move(*where)


def kv_bytes_per_token(config: ModelConfig, kv: str) -> int:
    """Bytes of keys and values of a token in a precision of `KV`, all layers; widths are padded to 8 numbers."""
    heads = config.kv_values_per_token // config.head_dim
    width = config.head_dim + -config.head_dim % 8
    return heads * (width + 2 if kv == "int8" else width * DTYPE_BYTES[kv])


def default_kv(precision: str) -> str:
    """The precision of keys and values beside weights of a `precision_of`."""
    return "float32" if precision == "float32" else "float16"


@lru_cache(maxsize=256)  # a drafter repeats its plans
def _steps(plan: LayerPlan, taps: tuple[SubLayer, ...]) -> tuple[Integers, Integers, tuple[int, ...]]:
    """The steps of a plan as the core wants them, of each the index of its tap or -1, and the taps among them."""
    steps = [2 * layer + (part == "mlp") for layer, part in plan.steps]
    places = [taps.index(step) if step in taps else -1 for step in plan.steps]
    reached = tuple(sorted(place for place in places if place >= 0))
    return np.asarray(steps, dtype=np.int64), np.asarray(places, dtype=np.int64), reached


def described(kernels: str | None = None, threads: int | None = None) -> str:
    """The core, its kernels and threads, for people; None stands for the defaults."""
    count = available_processors() if threads is None else threads
    return f"cpu ({kernels or native().kernel_sets()[0]}, {count} thread{'s' * (count > 1)})"


def _integers(values: Integers) -> Integers:
    return np.ascontiguousarray(values, dtype=np.int64)


def _lineage(rows: Rows) -> Integers | None:
    return None if rows.lineage is None else _integers(rows.lineage)
