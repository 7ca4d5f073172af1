"""What the runtimes need to know of a decoder: sizes, and per layer the facts that tell families apart.

Read from a checkpoint by ``families``. The defaults are those of the Llama type, so a plain `ModelConfig` with
no ``layers`` is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from selfspec.model.families.base import Counts

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""The precisions of weights, and the bytes of one."""

NormKind: TypeAlias = Literal["rms", "rms_wide", "rms_plus_one", "layer", "layer_wide"]
Activation: TypeAlias = Literal["silu", "gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding; ``kind`` selects how the inverse frequencies are scaled.

    ``linear`` divides them by ``factor``; ``llama3`` divides the low ones by ``factor`` and blends between
    ``original_context / low_freq_factor`` and ``original_context / high_freq_factor`` (Llama 3.1); ``yarn``
    blends by rotations within ``original_context``, between ``beta_fast`` and ``beta_slow`` (arXiv 2309.00071),
    with whole dimensions as borders if ``truncate``; ``longrope`` divides each by its own of ``factors``
    (arXiv 2402.13753). ``attention_factor`` multiplies cosines and sines. ``share`` of each head is turned,
    from its start; the members of a pair are half of that apart, or neighbours if ``interleaved``. ``narrow``
    turns in float32 whatever the precision.
    """

    theta: float = 10_000.0
    kind: Literal["default", "linear", "llama3", "yarn", "longrope"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    factors: tuple[float, ...] = ()
    attention_factor: float = 1.0
    share: float = 1.0
    interleaved: bool = False
    narrow: bool = False

    def dims(self, head_dim: int) -> int:
        """How many dimensions of a head are turned."""
        return int(head_dim * self.share)


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in the place of an MLP.

    The router's ``per_token`` largest logits choose among ``count`` experts of ``width``. ``weighting``:
    "all" is the soft-max over all experts, "renormed" that, divided by the sum of the chosen, both in float32;
    "chosen" is the soft-max over the chosen logits, "chosen_float32" that in float32. ``shared_width`` is that of
    an expert that every token has, gated by a sigmoid; 0: none. ``clamp`` and ``sharpness`` are those of GPT-OSS'
    activation, (up + 1) * gate * sigmoid(sharpness * gate) with clamped inputs.
    """

    count: int
    per_token: int
    width: int
    weighting: Literal["all", "renormed", "chosen", "chosen_float32"] = "all"
    shared_width: int = 0
    clamp: float | None = None
    sharpness: float = 1.0


@dataclass(frozen=True, slots=True)
class Recurrence:
    """What stands in the place of attention and carries a state from position to position.

    All kinds begin with a causal convolution over the last ``taps`` inputs of each of its ``channels``. That is
    all of a "conv" (LFM2), between a gate before and one after it. A "delta" (gated delta net, arXiv 2412.06464)
    makes queries, keys and values of its output: the state of a value head is a matrix [key_dim, value_dim],
    and ``key_heads`` keys serve ``value_heads`` heads. ``conv_bias`` and ``proj_bias``: the convolution, and the
    matrices before and after it, have biases.
    """

    kind: Literal["conv", "delta"]
    taps: int
    value_heads: int
    value_dim: int
    key_heads: int = 0
    key_dim: int = 0
    conv_bias: bool = False
    proj_bias: bool = False

    @property
    def key_width(self) -> int:
        """Numbers in the keys of a row."""
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """Numbers in the values of a row."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values, or what there is of them."""
        return 2 * self.key_width + self.value_width


@dataclass(frozen=True, slots=True)
class Layer:
    """What one layer computes, beyond the sizes of the model.

    ``window``: a row sees its last ``window`` positions, its own included. ``rope`` None: positions do not
    enter. ``scale`` of the scores, None: head_dim ** -0.5; ``soft_cap`` c: c * tanh(score / c). ``sinks``: a
    learned score per head takes part in the soft-max, and has no value. ``qk_norm``: queries and keys are
    normed per head, or over all heads at once.

    ``norm_before``: each part norms what it reads; ``norm_after``: what it adds. ``parallel``: attention and
    MLP both read what enters the layer, through one norm ("shared") or each through its own ("separate").
    ``residual_scale`` multiplies what a part adds.

    ``recurrence`` stands in the place of attention, if there is one. ``output_gate``: what attention found is
    multiplied by the sigmoid of a gate, which comes with the queries.
    """

    rope: Rope | None = Rope()
    window: int | None = None
    scale: float | None = None
    soft_cap: float | None = None
    sinks: bool = False
    qk_norm: Literal["none", "head", "width"] = "none"
    norm: NormKind = "rms"
    norm_before: bool = True
    norm_after: bool = False
    parallel: Literal["no", "shared", "separate"] = "no"
    residual_scale: float = 1.0
    activation: Activation = "silu"
    experts: Experts | None = None
    recurrence: Recurrence | None = None
    output_gate: bool = False

    @property
    def attends(self) -> bool:
        """Whether there is attention, and so keys and values."""
        return self.recurrence is None

    @property
    def conv_bias(self) -> bool:
        """Whether the convolution of a recurrence has a bias."""
        return self.recurrence is not None and self.recurrence.conv_bias

    @property
    def proj_bias(self) -> bool:
        """Whether the matrices around it have biases."""
        return self.recurrence is not None and self.recurrence.proj_bias

    @property
    def own_mlp_norm(self) -> bool:
        """Whether the MLP has a norm of its own before it."""
        return self.norm_before and self.parallel != "shared"

    @property
    def is_sequential(self) -> bool:
        """Whether the MLP reads what attention has added to."""
        return self.parallel == "no"

    @property
    def separate_norms(self) -> bool:
        """Whether attention and MLP read the same, each through its own norm."""
        return self.parallel == "separate"

    @property
    def dense(self) -> bool:
        """Whether the MLP is one, and no mixture."""
        return self.experts is None

    @property
    def shared_expert(self) -> bool:
        """Whether every token has one expert more."""
        return self.experts is not None and self.experts.shared_width > 0


@dataclass(frozen=True, slots=True)
class Exits:
    """Exits that were trained (`model.exits`).

    ``layers``, the one to draft with first; ``vocabulary``, the ascending ids that drafts choose among, empty: all.
    """

    layers: tuple[int, ...]
    vocabulary: tuple[int, ...] = ()


@dataclass(frozen=True)  # with a __dict__, where what follows from the fields is kept
class ModelConfig:
    """One decoder-only transformer.

    ``layers`` are empty, one entry for all layers, or one for each; empty is the Llama type with ``rope``.
    ``layout`` is which of its family's lists of weight names the weights have. ``dtype`` is the precision of
    the stored weights ("float32", "bfloat16", "float16", "float64").

    ``position_offset``: positions are learned vectors, added to the embedding, and that of position p is row
    p + offset; None: no. ``embedding_scale`` multiplies the embedding, ``logit_scale`` the logits;
    ``logit_cap`` c makes c * tanh(logit / c) of them. ``exits`` are those that were trained, if it is noted.
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
    layers: tuple[Layer, ...] = ()
    layout: int = 0
    position_offset: int | None = None
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float | None = None
    exits: Exits | None = None

    def layer(self, index: int) -> Layer:
        """The facts of one layer."""
        if not self.layers:
            return Layer(rope=self.rope)
        return self.layers[0] if len(self.layers) == 1 else self.layers[index]

    @property
    def has_positions(self) -> bool:
        """Whether positions are learned vectors."""
        return self.position_offset is not None

    @cached_property
    def recurrences(self) -> tuple[Recurrence, ...]:
        """Those of all layers that have one, in order; such a model verifies chains only."""
        layers = self.layers if len(self.layers) > 1 else (self.layer(0),) * self.num_layers
        return tuple(layer.recurrence for layer in layers if layer.recurrence)

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that the KV cache holds per token, all layers with attention."""
        return 2 * (self.num_layers - len(self.recurrences)) * self.num_kv_heads * self.head_dim

    @property
    def parameters(self) -> int:
        """All weights; a tied head is counted once."""
        return self._counts.total

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer; the mean where layers differ."""
        return self._counts.layer

    @property
    def active_layer_parameters(self) -> int:
        """Weights of one layer that a row reads: of a mixture, only the experts that it has."""
        return self._counts.active_layer

    @property
    def head_parameters(self) -> int:
        """Weights that the LM head reads: the output matrix and the final norm."""
        return self._counts.head

    @property
    def pass_parameters(self) -> int:
        """Weights that a pass of one row reads: those of all layers and of the LM head."""
        return self.num_layers * self.active_layer_parameters + self.head_parameters

    @cached_property
    def _counts(self) -> Counts:
        from selfspec.model.families import counts  # the lists of weights know what there is

        return counts(self)
