"""Whether two models speak the same tokens, and logits of one in the width of the other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from selfspec.errors import UnsupportedModelError
from selfspec.types import namespace

if TYPE_CHECKING:
    from selfspec.drafters.base import Host, Loaded
    from selfspec.types import Array


def require_same_tokens(host: Host, draft: Loaded) -> None:
    """Raise UnsupportedModelError, with the first difference, unless token ids mean the same to both models.

    The number of embeddings may differ: tables are padded to suit hardware, and an id that only one of the
    tokenizers knows is padding to the other. Without both tokenizers nothing but that number is known.
    """
    ours, theirs = host.runtime.config.vocab_size, draft.runtime.config.vocab_size
    if host.tokenizer is None or draft.tokenizer is None:
        if ours != theirs:
            raise UnsupportedModelError(
                f"{draft.name} has {theirs} tokens and this model {ours}, and without both tokenizers they cannot "
                "be compared; load both from their folders"
            )
        return
    for token in range(min(ours, theirs)):
        here, there = host.tokenizer.piece(token), draft.tokenizer.piece(token)
        if here is not None and there is not None and here != there:
            raise UnsupportedModelError(
                f"{draft.name} has another vocabulary: token {token} is {there!r} there and {here!r} in this "
                "model; a draft model must share the target's tokenizer"
            )


def as_wide(logits: Array, size: int) -> Array:
    """Logits [R, size]: columns that are too many are cut, those that are missing have no mass."""
    xp, width = namespace(logits), logits.shape[1]
    if width >= size:
        return logits[:, :size]
    missing = xp.full_like(logits[:, :1], -math.inf)
    return xp.concat([logits, xp.broadcast_to(missing, (logits.shape[0], size - width))], axis=1)
