"""Test doubles: tiny random models in torch, a toy Markov runtime in NumPy, and dice that explore every outcome."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from selfspec import drafters
from selfspec.context import Context, Text
from selfspec.decode import decode
from selfspec.model.config import ModelConfig
from selfspec.model.families import weight_shapes
from selfspec.runtime.base import Cache, Runtime
from selfspec.runtime.torch import TorchRuntime
from selfspec.sampling import Chance
from selfspec.types import Distribution, Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from selfspec.drafters.base import Drafter
    from selfspec.rounds import Round

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


def tiny_runtime(seed: int = 0, dtype: str = "float64", **changes: Any) -> TorchRuntime:
    """A random decoder whose exits often agree with its last layer, so that drafts are accepted now and then."""
    config = replace(TINY, **changes)
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in weight_shapes(config).items():
        scale = 0.15 if len(shape) == 2 and "layers" in name else 1.0
        weights[name] = (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(
            getattr(torch, dtype)
        )
    return TorchRuntime(config, weights)


class MarkovCache(Cache):
    """Nothing to keep: a Markov chain looks at one token."""

    def __init__(self, slots: int, length: int) -> None:
        self.slots, self.length = slots, length

    @property
    def nbytes(self) -> int:
        return 0

    def longer(self, length: int) -> MarkovCache:
        return MarkovCache(self.slots, length)


class MarkovRuntime(Runtime):
    """Logits that depend on the last token and on how many layers ran; every pass is nearly free."""

    name, precision, value_bytes = "toy", "float64", 8

    def __init__(self, vocab_size: int = 4, num_layers: int = 3, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.config = replace(
            TINY, vocab_size=vocab_size, hidden_size=vocab_size, num_layers=num_layers, context_length=10**6
        )
        self._embedding = random.normal(size=(vocab_size, vocab_size))
        self._layers = random.normal(size=(num_layers, vocab_size, vocab_size)) * 0.8

    def embed(self, tokens: Sequence[int]) -> Any:
        return self._embedding[list(tokens)]

    def run(self, hidden: Any, plan: Any, rows: Any, cache: Any, taps: Any = ()) -> Any:
        for step in plan.steps:
            if step.part == "mlp":
                hidden = hidden + np.tanh(hidden @ self._layers[step.layer])
        return hidden, {}

    def logits(self, hidden: Any) -> Any:
        return hidden

    def new_cache(self, slots: int, length: int) -> MarkovCache:
        return MarkovCache(slots, length)

    def keep(self, cache: Any, rows: Any) -> None:
        pass

    def transition(self, sampling: Sampling) -> np.ndarray:
        """P(next | last) [V, V] of plain decoding, in plain NumPy and by definition."""
        hidden = self._embedding
        for matrix in self._layers:
            hidden = hidden + np.tanh(hidden @ matrix)
        scaled = hidden / sampling.temperature
        ordered = -np.sort(-scaled, axis=1)
        if sampling.top_k:
            scaled = np.where(scaled >= ordered[:, sampling.top_k - 1 : sampling.top_k], scaled, -np.inf)
        law = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        law /= law.sum(axis=1, keepdims=True)
        if sampling.top_p < 1.0:
            for row in law:
                order = np.argsort(-row)
                better = np.cumsum(row[order]) - row[order]
                row[order[better >= sampling.top_p]] = 0.0
            law /= law.sum(axis=1, keepdims=True)
        return law


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
    for round_ in decode(context, texts, made):
        if each_round:
            each_round(context, texts, round_)
    return texts


class AllOutcomes:
    """Dice that replay every path of decisions once; iterate, and weigh each path by ``weight``."""

    def __init__(self) -> None:
        self._path: list[int] = []
        self._widths: list[int] = []

    def __iter__(self) -> Iterator[AllOutcomes]:
        while True:
            self._at, self.weight = 0, 1.0
            self._widths = self._widths[: len(self._path)]
            yield self
            while self._path and self._path[-1] + 1 == self._widths[len(self._path) - 1]:
                self._path.pop()
            if not self._path:
                return
            self._path[-1] += 1

    def _choose(self, masses: Sequence[float]) -> int:
        possible = [i for i, mass in enumerate(masses) if mass > 0.0]
        if self._at == len(self._path):
            self._path.append(0)
            self._widths = [*self._widths[: self._at], len(possible)]
        choice = possible[self._path[self._at]]
        self._at += 1
        self.weight *= masses[choice]
        return choice

    def accept(self, probability: float) -> bool:
        assert probability >= 0.0
        return self._choose([min(probability, 1.0), 1.0 - min(probability, 1.0)]) == 0

    def pick(self, law: Distribution, size: int = 4) -> int:
        return self._choose([law.probability(token) for token in range(size)])
