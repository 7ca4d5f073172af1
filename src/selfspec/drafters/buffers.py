"""What a round with a draft holds beyond one without: the buffers that a drafter needs, in bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selfspec.drafters.base import Drafter
    from selfspec.model.config import ModelConfig
    from selfspec.types import Sampling


def draft_buffers(config: ModelConfig, drafter: Drafter, sampling: Sampling, hidden_bytes: int) -> dict[str, int]:
    """Bytes that a draft holds beyond plain decoding, each part with its formula.

    Kept hidden states: γ·d (drafts whose first layers are the target's). Draft distributions: V in float64 per
    token of the draft (where it samples, unless coupled). Target logits of the draft's rows: V in float32 or
    float64 per token. A chain has γ tokens, a comb γ·(1 + siblings). Where exits are watched, a state and logits
    for each of them and each row of the chain, the pending one too.
    """
    gamma, plans = drafter.options.gamma, [part.plan for part in drafter.parts]
    most = drafter.most_tokens
    keeps = any(plan is not None and plan.shared_prefix for plan in plans)
    sampled = drafter.samples and drafter.draws and not (sampling.is_greedy or sampling.coupled)
    logits_bytes = max(4, hidden_bytes)
    tokens = "gamma" if most == gamma else "gamma * (1 + siblings)"
    exits = sum(part.exits for part in drafter.parts)
    watched = exits * (gamma + 1) * (config.hidden_size * hidden_bytes + config.vocab_size * logits_bytes)
    return {
        "hidden = gamma * d": gamma * config.hidden_size * hidden_bytes if keeps else 0,
        f"laws = {tokens} * V": most * config.vocab_size * 8 if sampled else 0,
        f"logits = {tokens} * V": most * config.vocab_size * logits_bytes,
        **({f"exits = {exits} * (gamma + 1) * (d + V)": watched} if exits else {}),
    }
