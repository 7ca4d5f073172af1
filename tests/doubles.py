"""Test doubles: tiny random models in torch, and texts through the real loop."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from selfspec import drafters
from selfspec.context import Context, Text
from selfspec.decode import decode
from selfspec.drafters.base import Loaded
from selfspec.model.config import Layer, ModelConfig, Recurrence
from selfspec.model.families import weight_shapes
from selfspec.runtime.cpu import CpuRuntime
from selfspec.runtime.packing import pack
from selfspec.runtime.torch import TorchRuntime
from selfspec.runtime.torch_compiled import CompiledTorch
from selfspec.runtime.torch_compiler import Compiler
from selfspec.sampling import Chance
from selfspec.types import Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from selfspec.drafters.base import Drafter
    from selfspec.rounds import Round
    from selfspec.runtime.base import Runtime

GREEDY = Sampling()
TINY = ModelConfig(
    family="llama",
    num_layers=5,
    hidden_size=32,
    intermediate_size=48,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=61,
    context_length=96,
    dtype="float64",
)


def tiny_runtime(seed: int = 0, dtype: str = "float64", idle: Sequence[str] = (), **changes: Any) -> TorchRuntime:
    """A random decoder whose exits often agree with its last layer, so that drafts are accepted now and then.

    ``idle`` sub-layers ("attention 3", "mlp 0") add nothing.
    """
    config = replace(TINY, **changes)
    weights = {n: w.to(getattr(torch, dtype)) for n, w in _weights(config, seed).items()}
    for part, layer in map(str.split, idle):
        last = {"attention": "self_attn.o_proj", "mlp": "mlp.down_proj"}[part]
        weights[f"model.layers.{layer}.{last}.weight"].zero_()
    return TorchRuntime(config, weights)


def tiny_static(backend: Any = None, **changes: Any) -> CompiledTorch:
    """The same in passes of few shapes, compiled by ``backend``; None runs them as they are."""
    like = tiny_runtime(**changes)
    runtime = CompiledTorch(like.config, like.weights)
    runtime.compiler = Compiler(backend)
    return runtime


STATES = {
    "conv": ("lfm2", "rms", Recurrence("conv", 3, 1, 32)),
    "delta": ("qwen3_5_text", "rms_plus_one", Recurrence("delta", 4, 4, 6, key_heads=2, key_dim=8)),
}


def tiny_hybrid(kind: str, block: int = 8, **changes: Any) -> TorchRuntime:
    """The same sizes with recurrent layers around one with attention; no draft may be longer than ``block``."""
    family, norm, recurrence = STATES[kind]
    state = Layer(rope=None, norm=norm, recurrence=recurrence)
    attention = Layer(norm=norm, qk_norm="head", output_gate=kind == "delta")
    layers = (state, state, attention, state, state)
    runtime = tiny_runtime(family=family, layers=layers, **changes)
    runtime.block = block
    return runtime


def tiny_core(kind: str, seed: int = 0, **changes: Any) -> CpuRuntime:
    """The same decoder in the native core, its matrices packed as ``kind``."""
    config = replace(TINY, **changes)
    weights = {name: weight.float().numpy() for name, weight in _weights(config, seed).items()}
    packed = {name: pack(array, kind) if array.ndim == 2 else array for name, array in weights.items()}
    return CpuRuntime(config, packed, threads=1)


def _weights(config: ModelConfig, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        * (0.15 if len(shape) == 2 and "layers" in name else 1.0)
        for name, shape in weight_shapes(config).items()
    }


class Host:
    """What an engine is to a drafter: ``models`` by name, the target's own checkpoint in fewer bits by its bits."""

    def __init__(self, runtime: Runtime, models: dict[Any, Runtime], tokenizer: Any = None) -> None:
        self.runtime, self.tokenizer, self.fingerprint = runtime, tokenizer, "f"
        self.models = models
        self.opened: list[Any] = []

    def open_model(self, model: Any = None, *, bits: int | None = None, **_placement: Any) -> Loaded:
        key = bits if model is None else model
        self.opened.append(key)
        return Loaded(self.models[key], self.tokenizer, str(key), str(key))

    def notify(self, line: str) -> None:
        raise AssertionError(line)

    def kept(self, _key: Any, make: Callable[[], Any]) -> Any:
        return make()


class Keeping(Host):
    """One that keeps what drafters share."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime, {})
        self.memory: dict[Any, Any] = {}

    def kept(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self.memory:
            self.memory[key] = make()
        return self.memory[key]


def run(
    runtime: Runtime,
    prompts: Sequence[Sequence[int]],
    drafter: str | Drafter = "plain",
    options: dict[str, Any] | None = None,
    *,
    new_tokens: int | Sequence[int] = 24,
    sampling: Sampling = GREEDY,
    seed: int = 0,
    ends: Callable[[int], bool] | Sequence[Callable[[int], bool]] = lambda _: False,
    each_round: Callable[[Context, Sequence[Text], Round], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Text]:
    """Generate from ``prompts`` as one ragged batch through the real loop; ``ends`` is one for all, or one each."""
    counts = [new_tokens] * len(prompts) if isinstance(new_tokens, int) else list(new_tokens)
    limits = [len(p) + n for p, n in zip(prompts, counts, strict=True)]
    stops = [ends] * len(prompts) if callable(ends) else ends
    texts = [
        Text(i, i, list(p), limit, sampling, Chance(seed, i), stop)
        for i, (p, limit, stop) in enumerate(zip(prompts, limits, stops, strict=True))
    ]
    context = Context(runtime, runtime.new_cache(len(texts), max(limits)))
    made = drafters.create(drafter, runtime.config, options or {})
    for round_ in decode(context, texts, made, clock):
        if each_round:
            each_round(context, texts, round_)
    return texts
