"""Shapes of Llamas for `gpu.py`, and random weights for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from selfspec.model.config import Layer, ModelConfig, Rope
from selfspec.model.families import weight_shapes


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    width: int
    vocabulary: int = 128256
    tied: bool = True

    def config(self, dtype: str) -> ModelConfig:
        """As our own."""
        rope = Rope(theta=500000.0)
        return ModelConfig(
            family="llama",
            num_layers=self.layers,
            hidden_size=self.hidden,
            intermediate_size=self.inner,
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.width,
            vocab_size=self.vocabulary,
            context_length=4096,
            dtype=dtype,
            tied_head=self.tied,
            layers=(Layer(rope=rope),) * self.layers,
        )

    def for_transformers(self) -> dict[str, Any]:
        """As transformers names them."""
        return {
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.width,
            "vocab_size": self.vocabulary,
            "tie_word_embeddings": self.tied,
        }


SHAPES = {
    "1B": Shape(16, 2048, 8192, 32, 8, 64),
    "3B": Shape(28, 3072, 8192, 24, 8, 128),
    "8B": Shape(32, 4096, 14336, 32, 8, 128, tied=False),
}
TINY_SHAPES = {
    "1B": Shape(4, 64, 128, 4, 2, 16, 256),
    "3B": Shape(6, 64, 128, 4, 2, 16, 256),
    "8B": Shape(8, 64, 128, 4, 2, 16, 256, tied=False),
}


def random_weights(
    shape: Shape, device: torch.device, dtype: torch.dtype, idle_from: int | None = None
) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    """Weights of the usual sizes; layers from ``idle_from`` on add nothing, so an exit there is always right."""
    config = shape.config(str(dtype).removeprefix("torch."))
    generator = torch.Generator(device).manual_seed(0)
    weights = {}
    for name, size in weight_shapes(config).items():
        made = torch.empty(size, device=device, dtype=dtype)
        weights[name] = made.fill_(1.0) if len(size) == 1 else made.normal_(0.0, 0.02, generator=generator)
    for layer in range(idle_from or shape.layers, shape.layers):
        for part in ("self_attn.o_proj", "mlp.down_proj"):
            weights[f"model.layers.{layer}.{part}.weight"].zero_()
    return config, weights
