"""A Markov chain behind the runtime's seam: the real loop over it is fast enough for statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.model.config import ModelConfig
from selfspec.runtime.base import Cache, Runtime

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.types import Array, Integers, LayerPlan, Rows, Sampling


class MarkovCache(Cache):
    """Nothing to keep: a Markov chain looks at one token."""

    def __init__(self, slots: int, length: int) -> None:
        self.slots, self.length = slots, length

    @property
    def nbytes(self) -> int:
        """None."""
        return 0

    def longer(self, length: int) -> MarkovCache:
        """The same."""
        return MarkovCache(self.slots, length)


class MarkovRuntime(Runtime):
    """Logits that depend on the last token and on how many layers ran; every pass is nearly free."""

    name, precision, value_bytes = "toy", "float64", 8

    def __init__(self, vocab_size: int = 4, num_layers: int = 3, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.config = ModelConfig(
            family="llama",  # whose weights can be counted
            num_layers=num_layers,
            hidden_size=vocab_size,
            intermediate_size=vocab_size,
            num_heads=1,
            num_kv_heads=1,
            head_dim=vocab_size,
            vocab_size=vocab_size,
            context_length=10**6,
            dtype="float64",
        )
        self._embedding = random.normal(size=(vocab_size, vocab_size))
        self._layers = random.normal(size=(num_layers, vocab_size, vocab_size)) * 0.8

    def embed(self, tokens: Sequence[int], positions: Integers | None = None) -> Array:  # noqa: ARG002
        """A random vector [V] per token."""
        return self._embedding[list(tokens)]

    def run(
        self,
        hidden: Array,
        plan: LayerPlan,
        rows: Rows | None,  # noqa: ARG002
        cache: Cache | None,  # noqa: ARG002
        taps: Sequence[Any] = (),
    ) -> tuple[Array, dict[Any, Array]]:
        """Add the hyperbolic tangent of a random matrix product for every MLP of ``plan``."""
        tapped: dict[Any, Array] = {}
        for step in plan.steps:
            if step.part == "mlp":
                hidden = hidden + np.tanh(hidden @ self._layers[step.layer])
            if step in taps:
                tapped[step] = hidden
        return hidden, tapped

    def logits(self, hidden: Array) -> Array:
        """The hidden states themselves."""
        return hidden

    def new_cache(self, slots: int, length: int) -> MarkovCache:
        """An empty one."""
        return MarkovCache(slots, length)

    def keep(self, cache: Cache, rows: Rows) -> None:
        """Nothing is kept."""

    def transition(self, sampling: Sampling) -> np.ndarray[Any, np.dtype[np.float64]]:
        """P(next | last) [V, V] of plain decoding, in plain NumPy and by definition; knows top-k and top-p."""
        hidden: np.ndarray[Any, np.dtype[np.float64]] = self._embedding
        for matrix in self._layers:
            hidden = hidden + np.tanh(hidden @ matrix)
        scaled = hidden / sampling.temperature
        ordered = -np.sort(-scaled, axis=1)
        if sampling.top_k:
            scaled = np.where(scaled >= ordered[:, sampling.top_k - 1 : sampling.top_k], scaled, -np.inf)
        law: np.ndarray[Any, np.dtype[np.float64]] = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        law /= law.sum(axis=1, keepdims=True)
        if sampling.top_p < 1.0:
            for row in law:
                order = np.argsort(-row)
                better = np.cumsum(row[order]) - row[order]
                row[order[better >= sampling.top_p]] = 0.0
            law /= law.sum(axis=1, keepdims=True)
        return law
