"""The self-test of the native core: at load, before anything is generated with it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from selfspec.errors import OptionError
from selfspec.model.config import Layer, ModelConfig, Rope
from selfspec.model.families import weight_shapes
from selfspec.runtime.cpu import CpuRuntime
from selfspec.runtime.packing import KINDS, native, pack
from selfspec.types import LayerPlan, Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

_CONFIG = ModelConfig(
    family="llama",
    num_layers=1,
    hidden_size=72,
    intermediate_size=100,
    num_heads=6,
    num_kv_heads=2,
    head_dim=20,
    vocab_size=75,
    context_length=64,
)
# the kinds of weights share the operators of all families
_FACTS = {
    "fp32": Layer(),
    "bf16": Layer(norm="layer", activation="gelu", rope=Rope(interleaved=True)),
    "fp16": Layer(activation="gelu_tanh", soft_cap=5.0, window=4),
    "int8": Layer(activation="relu", rope=Rope(share=0.5), residual_scale=0.5),
    "int4": Layer(rope=None),
}
_KV = {"fp32": "float32", "bf16": "bfloat16"}
_ROWS = 7


@lru_cache(maxsize=1)  # the processor and the code stay what they are
def self_test() -> None:
    """Compare, bit for bit, every kernel set with the portable one and rows together with single rows.

    One layer of odd sizes in every kind of weights, with other facts in each, some 50 ms once in a process.

    Raises
    ------
    OptionError
        They differ: this build of the core is not to be trusted on this processor.
    """
    random = np.random.default_rng(0)
    for kind in KINDS:
        config = replace(_CONFIG, layers=(_FACTS[kind],))
        weights = {
            name: (random.normal(size=shape) * shape[-1] ** -0.5).astype(np.float32)
            for name, shape in weight_shapes(config).items()
        }
        tokens = random.integers(0, _CONFIG.vocab_size, _ROWS).tolist()
        want: Floats | None = None
        for kernels in reversed(native().kernel_sets()):
            packed = {n: pack(w, kind) if w.ndim == 2 else w for n, w in weights.items()}
            runtime = CpuRuntime(config, packed, 1, _KV.get(kind), kernels)
            together = _logits(runtime, tokens, _ROWS)
            want = together if want is None else want
            if not (_same(together, want) and _same(_logits(runtime, tokens, 1), want)):
                raise OptionError(
                    f"the self-test of the native core failed ({kind}, {kernels} kernels): its results are wrong "
                    "on this processor; use the torch runtime, and report this"
                )


def _logits(runtime: CpuRuntime, tokens: list[int], chunk: int) -> Floats:
    cache, plan, parts = runtime.new_cache(1, _ROWS), LayerPlan.full(1), []
    for start in range(0, _ROWS, chunk):
        part = tokens[start : start + chunk]
        rows = Rows.of([0] * len(part), range(start, start + len(part)))
        parts.append(runtime.logits(runtime.run(runtime.embed(part), plan, rows, cache)[0]))
    return np.concatenate(parts)


def _same(one: Floats, other: Floats) -> bool:
    return bool(np.isfinite(one).all()) and np.array_equal(one.view(np.int32), other.view(np.int32))
