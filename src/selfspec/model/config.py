"""What the runtimes need to know of a decoder: sizes and switches, read from a checkpoint by ``families``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""The precisions of weights, and the bytes of one."""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding; ``kind`` selects how the inverse frequencies are scaled.

    ``linear`` divides them by ``factor``; ``llama3`` divides the low ones by ``factor`` and blends between
    ``original_context / low_freq_factor`` and ``original_context / high_freq_factor`` (Llama 3.1).
    """

    theta: float = 10_000.0
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder-only transformer of the Llama type.

    ``dtype`` is the precision of the stored weights ("float32", "bfloat16", "float16", "float64").
    """

    family: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float = 1e-5
    rope: Rope = Rope()
    tied_head: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    dtype: str = "float32"
    eos_token_ids: tuple[int, ...] = ()

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer."""
        d, q, kv = self.hidden_size, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = 2 * d * q + 2 * d * kv + (q + 2 * kv + d) * self.attention_bias
        mlp = 3 * d * self.intermediate_size + (2 * self.intermediate_size + d) * self.mlp_bias
        return attention + mlp + 2 * d

    @property
    def head_parameters(self) -> int:
        """Weights that the LM head reads: the output matrix and the final norm."""
        return self.vocab_size * self.hidden_size + self.hidden_size

    @property
    def parameters(self) -> int:
        """All weights; a tied head is counted once."""
        embedding = 0 if self.tied_head else self.vocab_size * self.hidden_size
        return self.num_layers * self.layer_parameters + self.head_parameters + embedding

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that the KV cache holds per token, all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim
