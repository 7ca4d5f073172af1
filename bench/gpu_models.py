"""Shapes and random weights for `gpu.py`, and what the cost model expects of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from selfspec.control import best_gamma, draft_cost, expected_tokens, shared_share
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


# -- predictions ------------------------------------------------------------------------------------------

GPUS = {"H200": 4.8e12, "RTX 4090": 1.01e12}  # bytes a second, by their data sheets
REACHED = 0.82  # share of it that a plain token gets
ROWS = 1.03  # v(8): the rows are there in plain decoding, too; what is left is the head's and attention's
HOST = 0.15e-3  # seconds of a round in which the device waits for the host


def predictions() -> str:
    """Tokens per second and speedups that the cost model expects, as a table."""
    lines = ["| GPU | model | plain ms | plain tokens/s | look-up, α 0.8 | exit L/4: α 0.6 | 0.7 | 0.8 | 0.9 |"]
    lines.append("|" + "---|" * 9)
    for gpu, bandwidth in GPUS.items():
        for name, shape in SHAPES.items():
            lines.append(f"| {gpu} | {name} | " + " | ".join(_cells(shape, bandwidth)) + " |")
    return "\n".join(lines)


def _cells(shape: Shape, bandwidth: float) -> list[str]:
    config = shape.config("bfloat16")
    head = config.head_parameters
    layers = config.num_layers * config.active_layer_parameters
    whole = 2 * (layers + head) / (REACHED * bandwidth)
    share = head / (layers + head)
    k = shape.layers // 4
    c, f = draft_cost(shape.layers, k, share), shared_share(shape.layers, k, share)
    plain = whole + HOST
    made = [f"{plain * 1e3:.2f}", f"{1 / plain:.0f}", _expected(0.8, 7, (0.0, 0.0), (whole, plain))]
    for alpha in (0.6, 0.7, 0.8, 0.9):
        gamma = best_gamma(alpha, c, ROWS, f, 7)
        made.append(_expected(alpha, gamma, (c, f), (whole, plain)))
    return made


def _expected(alpha: float, gamma: int, costs: tuple[float, float], seconds: tuple[float, float]) -> str:
    """S with γ, the host's share counted in both rounds."""
    (c, f), (whole, plain) = costs, seconds
    rows = 1.0 if gamma == 0 else ROWS
    drafted = whole * (gamma * c + f + (1.0 - f) * rows) + HOST
    return f"{expected_tokens(alpha, gamma) * plain / drafted:.2f} (γ {gamma})"
