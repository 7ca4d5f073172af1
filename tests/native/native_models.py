"""Tiny models with the same random weights in torch and in the native core."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from selfspec.model.config import ModelConfig
from selfspec.model.families import weight_shapes
from selfspec.runtime.cpu import CpuRuntime
from selfspec.runtime.packing import pack
from selfspec.runtime.torch import TorchRuntime
from selfspec.types import LayerPlan, Rows

KINDS = ("fp32", "bf16", "fp16", "int8", "int4")
# no width is a multiple of what the core pads to
ODD = ModelConfig(
    family="llama",
    num_layers=3,
    hidden_size=72,
    intermediate_size=100,
    num_heads=6,
    num_kv_heads=2,
    head_dim=20,
    vocab_size=203,
    context_length=512,
)


def random_weights(config, seed=0):
    random = np.random.default_rng(seed)
    weights = {}
    for name, shape in weight_shapes(config).items():
        scale = shape[-1] ** -0.5 if len(shape) == 2 and "layers" in name else 1.0
        weights[name] = (random.normal(size=shape) * scale).astype(np.float32)
    return weights


def packed(weights, kind):
    return {name: pack(array, kind) if array.ndim == 2 else array for name, array in weights.items()}


def core(kind="fp32", config=ODD, seed=0, **options):
    options.setdefault("threads", 2)
    return CpuRuntime(config, packed(random_weights(config, seed), kind), **options)


def both(config, kind="fp32", **options):
    """The core, and torch with exactly the values that the packed weights stand for."""
    weights = packed(random_weights(config), kind)
    unpacked = {n: w.unpack() if hasattr(w, "unpack") else w for n, w in weights.items()}
    tensors = {name: torch.from_numpy(array) for name, array in unpacked.items()}
    return CpuRuntime(config, weights, threads=2, **options), TorchRuntime(config, tensors)


def changed(**changes):
    return replace(ODD, **changes)


def tokens_of(count, config=ODD, seed=3):
    return np.random.default_rng(seed).integers(0, config.vocab_size, count).tolist()


def states(runtime, tokens, rows, cache, plan=None):
    plan = plan or LayerPlan.full(runtime.config.num_layers)
    return runtime.run(runtime.embed(tokens), plan, rows, cache)[0]


def chain(runtime, tokens, cache=None, start=0, slot=0):
    """Logits of a chain in one pass."""
    cache = cache or runtime.new_cache(slot + 1, start + len(tokens))
    rows = Rows.of([slot] * len(tokens), range(start, start + len(tokens)))
    return np.asarray(runtime.logits(states(runtime, tokens, rows, cache)))
