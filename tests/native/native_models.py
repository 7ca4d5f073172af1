"""Tiny models with the same random weights in torch and in the native core."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import torch
from family_models import model_of

from selfspec.model.config import ModelConfig
from selfspec.model.families import config_from_hf, weight_shapes, with_layout_of
from selfspec.model.stored import Stored
from selfspec.runtime.cpu import CpuRuntime
from selfspec.runtime.packing import pack
from selfspec.runtime.parts import parts_by_name
from selfspec.runtime.torch import TorchRuntime
from selfspec.types import LayerPlan, Rows

MOST_ROWS = 40  # of a text in one pass where a family has windows, so that a ring has 128 cells
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
    return runtime.run(runtime.embed(tokens, rows.positions), plan, rows, cache)[0]


def chain(runtime, tokens, cache=None, start=0, slot=0):
    """Logits of a chain in one pass."""
    cache = cache or runtime.new_cache(slot + 1, start + len(tokens))
    rows = Rows.of([slot] * len(tokens), range(start, start + len(tokens)))
    return np.asarray(runtime.logits(states(runtime, tokens, rows, cache)))


def same(got, want):
    """Whether two arrays have the same bits."""
    return np.array_equal(np.asarray(got).view(np.int32), np.asarray(want).view(np.int32))


def in_chunks(runtime, tokens, size):
    """Logits of a chain in passes of ``size`` rows."""
    cache = runtime.new_cache(1, len(tokens))
    parts = range(0, len(tokens), size)
    return np.concatenate([chain(runtime, tokens[start : start + size], cache, start) for start in parts])


def random_tree(random, size):
    """Parents of a random tree, -1 for the pending token alone."""
    return [-1, *(int(random.integers(0, i)) for i in range(1, size))]


# -- models of every family -------------------------------------------------------------------------------


@cache
def family(case, kind="fp32"):
    """(config, weights by key of a part, tensors of exactly those values) of a case of `family_models`."""
    model = model_of(case)
    tensors = {name: tensor.float() for name, tensor in model.state_dict().items()}
    config = with_layout_of(config_from_hf(model.config.to_dict()), tensors)
    weights = {}
    for name, parts in parts_by_name(config).items():
        array = tensors[name].numpy()
        for part in parts:
            made = part.of(Stored("float32", array.shape, array, name)).dense()
            weights[part.key] = (
                np.ascontiguousarray(made) if part.is_vector else pack(made, "fp32" if part.is_exact else kind)
            )
    return config, weights, tensors


@cache
def family_core(case, kind="fp32", **options):
    """A case of `family_models` in the core, whose rings are small."""
    config, weights, _ = family(case, kind)
    options.setdefault("threads", 1)  # two would wait for each other on the cores of other tests
    runtime = CpuRuntime(config, weights, **options)
    runtime.most_rows = MOST_ROWS
    return runtime


@cache
def family_torch(case):
    """The same in torch, in float32."""
    config, _, tensors = family(case)
    return TorchRuntime(config, tensors)
