"""What is asked of one generation, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from selfspec.errors import OptionError
from selfspec.model.textstream import check_stop
from selfspec.types import FinishReason, Processor, Sampling, Stats, require_types

if TYPE_CHECKING:
    from collections.abc import Mapping

    from selfspec.drafters.base import Drafter
    from selfspec.model.config import ModelConfig


@dataclass(frozen=True)
class Request:
    """What may be asked of one generation; the command line takes its defaults from here.

    ``chat`` None wraps a text prompt in the model's chat template if it has one. ``seed`` None draws one.
    ``ignore_eos`` goes on past end-of-text tokens. ``draft`` None uses the drafter that the engine was loaded
    with.
    """

    system: str | None = None
    chat: bool | None = None
    max_new_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: str | Sequence[str] = ()
    ignore_eos: bool = False
    processors: Sequence[Processor] = ()
    draft: str | Drafter | None = None

    def __post_init__(self) -> None:
        require_types(self)
        if self.max_new_tokens < 1:
            raise OptionError(f"max_new_tokens is {self.max_new_tokens}; it must be at least 1")
        if self.seed is not None and self.seed < 0:
            raise OptionError(f"seed is {self.seed}; it must be 0 or a positive integer")
        check_stop(self.stops)
        if not isinstance(self.processors, Sequence) or not all(map(callable, self.processors)):
            raise OptionError("processors must be a list of callables (tokens, logits) -> logits")
        _ = self.sampling  # checks its own values

    @property
    def stops(self) -> Sequence[str]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) or not isinstance(self.stop, Sequence) else self.stop

    @property
    def sampling(self) -> Sampling:
        """How logits become probabilities."""
        return Sampling(self.temperature, self.top_k, self.top_p, tuple(self.processors))


@dataclass(frozen=True, slots=True)
class Chunk:
    """One new token.

    ``text`` is what is final with it, often empty while characters or stop strings are held back;
    ``source`` is who wrote it: an accepted draft, or the target (the bonus token of a round).
    """

    text: str
    token: int
    source: Literal["draft", "bonus"]


@dataclass(frozen=True)
class Completion:
    """A finished generation and how it came about."""

    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    finish_reason: FinishReason
    stats: Stats
    seed: int
    model: str
    runtime: str
    precision: str
    draft: str
    plan: str
    gamma: int
    kv_bytes: int
    buffers: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; speeds are new tokens per second of wall time."""
        stats = self.stats
        return {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "prompt_tokens": self.prompt_tokens,
            "finish_reason": self.finish_reason,
            "rounds": stats.rounds,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "acceptance_rate": stats.acceptance_rate,
            "mean_accepted_length": stats.mean_accepted_length,
            "drafted_per_position": stats.drafted_per_position,
            "accepted_per_position": stats.accepted_per_position,
            "tokens_per_second": stats.tokens_per_second,
            "decode_tokens_per_second": stats.decode_tokens_per_second,
            "ttft_seconds": stats.ttft_seconds,
            "seconds": stats.seconds,
            "draft_seconds": stats.draft_seconds,
            "draft_row_layers": stats.draft_row_layers,
            "verify_row_layers": stats.verify_row_layers,
            "prefill_row_layers": stats.prefill_row_layers,
            "model": self.model,
            "runtime": self.runtime,
            "precision": self.precision,
            "draft": self.draft,
            "plan": self.plan,
            "gamma": self.gamma,
            "seed": self.seed,
            "kv_bytes": self.kv_bytes,
            "buffers": dict(self.buffers),
        }


def draft_buffers(config: ModelConfig, drafter: Drafter, sampling: Sampling, hidden_bytes: int) -> dict[str, int]:
    """Bytes that a draft of γ tokens holds beyond plain decoding, each part with its formula.

    Kept hidden states: γ·d (early exit only). Draft distributions: γ·V in float64 (sampled drafts only).
    Target logits of the draft's rows: γ·V in float32 or float64.
    """
    gamma, plan = drafter.options.gamma, drafter.plan
    sampled = plan is not None and not sampling.is_greedy
    logits_bytes = max(4, hidden_bytes)
    return {
        "hidden = gamma * d": gamma * config.hidden_size * hidden_bytes if plan else 0,
        "laws = gamma * V": gamma * config.vocab_size * 8 if sampled else 0,
        "logits = gamma * V": gamma * config.vocab_size * logits_bytes,
    }
