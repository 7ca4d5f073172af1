"""Trained heads beside a target: the part of the runtime's seam that runs them.

A head is one layer, or products, over states of the target, and an LM head over its draft vocabulary. It has keys
and values of its own, in a cache of one layer that it makes; slots, positions and cells are arguments, as in every
pass. The mathematics are in docs/heads.md.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from selfspec.errors import OptionError
from selfspec.model.config import Layer, ModelConfig, Rope
from selfspec.model.head_file import EMBEDDING, weight_shapes
from selfspec.types import namespace, on_host

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from selfspec.model.head_file import HeadFacts, HeadFile
    from selfspec.runtime.base import Cache, Runtime
    from selfspec.types import Array, Integers, Rows


_COMPARED = 256  # rows of an embedding


class Likeliest(NamedTuple):
    """The token of the largest logit of a row, and its raw probability."""

    token: int
    probability: float


class Attached(ABC):
    """A head that is ready to run. R rows, d hidden width, D draft vocabulary, V vocabulary of the target.

    ``config`` is the head as a model of one layer; ``weight_bytes`` what it holds beside the target's own weights.
    """

    weight_bytes: int

    def __init__(self, head: HeadFile, target: Runtime) -> None:
        require_fits(head, target.config)
        self.facts, self.vocabulary = head.facts, head.vocabulary
        self._size = target.config.vocab_size
        self.config = config_of(head, target.config)

    @abstractmethod
    def features(self, states: Array) -> Array:
        """What enters the head [R, d], from the target's states [R, taps * d]."""

    @abstractmethod
    def run(self, entering: Array, tokens: Sequence[int], rows: Rows, cache: Cache | None) -> Array:
        """Its own states [R, d], from features or from what it gave for the row before (EAGLE).

        ``tokens`` are those that follow the rows (EAGLE; else nobody looks at them); ``cache`` is one of
        `new_cache`, None for a head without attention.
        """

    @abstractmethod
    def logits(self, states: Array) -> Array:
        """Logits [R, D] over the draft vocabulary, from what `run` gave."""

    @abstractmethod
    def new_cache(self, slots: int, length: int) -> Cache:
        """An empty cache of one layer."""

    def best(self, states: Array) -> list[Likeliest]:
        """What greedy drafts need of the logits; tokens of the target's vocabulary, the first of equals."""
        return self.named(*_best(self.logits(states)))

    def named(self, places: Integers, probabilities: Sequence[float]) -> list[Likeliest]:
        """Places in the draft vocabulary as tokens."""
        tokens = places if self.vocabulary is None else self.vocabulary[places]
        return [Likeliest(token, float(p)) for token, p in zip(tokens.tolist(), probabilities, strict=True)]

    def wide(self, logits: Array) -> Array:
        """Logits [R, D] as [R, V]: a token that it cannot draft has no mass."""
        if self.vocabulary is None:
            return logits
        xp = namespace(logits)
        everywhere = xp.full_like(logits[:, :1], -math.inf)
        out = xp.asarray(xp.broadcast_to(everywhere, (logits.shape[0], self._size)), copy=True)
        out[:, self._columns(logits)] = logits
        return out

    def _columns(self, _like: Array) -> Array:
        """The draft vocabulary, to index arrays such as this one."""
        return self.vocabulary


def _best(logits: Array) -> tuple[Integers, list[float]]:
    xp = namespace(logits)
    top = xp.max(logits, axis=1, keepdims=True)
    totals = on_host(xp.sum(xp.exp(logits - top), axis=1))
    return on_host(xp.argmax(logits, axis=1)), [1.0 / float(total) for total in totals]


def config_of(head: HeadFile, target: ModelConfig) -> ModelConfig:
    """A head as a decoder of one layer; of a linear one only widths and vocabulary mean something."""
    facts = head.facts
    return ModelConfig(
        family="llama",
        num_layers=1,
        hidden_size=facts.hidden_size,
        intermediate_size=max(facts.intermediate_size, 1),
        num_heads=max(facts.num_heads, 1),
        num_kv_heads=max(facts.num_kv_heads, 1),
        head_dim=max(facts.head_dim, 2),
        vocab_size=target.vocab_size if head.vocabulary is None else len(head.vocabulary),
        context_length=target.context_length,
        norm_eps=facts.eps,
        rope=(rope := rope_of_head(facts)),
        layers=(Layer(rope=rope, qk_norm="head"),) if facts.qk_norm else (),
        dtype=target.dtype,
    )


def rope_of_head(facts: HeadFacts) -> Rope:
    """The rotary embedding that a head's facts say."""
    more: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in facts.rope.items()}
    return Rope(facts.rope_theta, **more)


def parameters(head: HeadFile, target: ModelConfig) -> tuple[int, int]:
    """Weights that a row of a head reads: of the head itself, and of the LM head behind it."""
    own = sum(map(math.prod, weight_shapes(head.facts).values()))
    rows = target.vocab_size if head.vocabulary is None else len(head.vocabulary)
    return own, rows * target.hidden_size


def require_fits(head: HeadFile, target: ModelConfig) -> None:
    """Raise OptionError, in one line, where a head cannot stand beside a model."""
    facts, ids = head.facts, head.vocabulary
    if target.recurrences:
        raise OptionError(
            f"{target.family} has recurrent layers, for which there are no trained heads: use another drafter"
        )
    if target.logit_scale != 1.0 or target.logit_cap is not None:
        raise OptionError(
            f"{target.family} scales or caps its logits, which trained heads do not: use another drafter"
        )
    if target.has_positions and facts.kind == "eagle":
        raise OptionError(
            f"{target.family} has learned positions, which an eagle head does not read: use another drafter"
        )
    if facts.hidden_size != target.hidden_size:
        raise OptionError(
            f"the head is {facts.hidden_size} wide and this model {target.hidden_size}: it was trained for "
            "another one"
        )
    last = target.num_layers
    if facts.taps[-1] > last or {"exit_head": facts.taps[0] == last, "medusa": facts.taps[0] < last}.get(
        facts.kind
    ):
        raise OptionError(
            f"the head reads after layer {facts.taps[-1]}; this model has {target.num_layers}: it was trained for "
            "another one"
        )
    most = (head.lm_rows or target.vocab_size) if ids is None else int(ids[-1]) + 1
    if most > target.vocab_size or (ids is None and most != target.vocab_size):
        raise OptionError(
            f"the head drafts {most} tokens and this model has {target.vocab_size}: it was trained for another one"
        )


def embedding_of(head: HeadFile, target: Runtime) -> NDArray[np.float32] | None:
    """The embedding [V, d] that a head has of its own; None where it has none, or a copy of the target's.

    A copy is told by some of its rows, within the rounding of bfloat16: a draft may be wrong, and memory is dear.
    """
    own = head.weights.get(EMBEDDING)
    if own is None or len(own) < target.config.vocab_size or target.config.embedding_scale != 1.0:
        return own
    rows = np.linspace(0, target.config.vocab_size - 1, _COMPARED).astype(np.int64)
    theirs = on_host(target.embed(rows.tolist()))
    return None if np.allclose(theirs, own[rows], rtol=2.0**-7, atol=1e-7) else own


def identity_of(runtime: Runtime) -> str:
    """Tells checkpoints apart whatever runs them, in however many bits: sizes, and the vectors, as bfloat16.

    `HeadFacts.target` may be this or the fingerprint of an engine. It is "" where the runtime shows no vectors.
    """
    config = runtime.config
    sizes = (config.family, config.num_layers, config.hidden_size, config.intermediate_size, config.vocab_size)
    digest, count = hashlib.sha256(json.dumps(sizes).encode()), 0
    for name, vector in runtime.vectors():
        bits = np.ascontiguousarray(on_host(vector), dtype=np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        digest.update(name.encode() + rounded.astype("<u2").tobytes())
        count += 1
    return digest.hexdigest() if count else ""
