"""Everything that changes logits before they become probabilities, one small pure function each.

All have one signature, ``(logits [V], sampling, prefix) -> logits [V]``, never change what they are given, and
do what the processor of the same name in transformers does (``generation/logits_process.py``); the presence
and frequency penalties are OpenAI's, as in vLLM. They work on one row with the prefix of that row: applied to
a block of draft rows with the prefix of its first row, penalties and bans would miss the draft itself, which is
how LayerSkip's code departs from plain decoding.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from selfspec.errors import OptionError
from selfspec.types import Array, Integers, Prefix, Sampling, namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Step: TypeAlias = Callable[[Array, Sampling, Prefix], Array]


def process(logits: Array, sampling: Sampling, prefix: Prefix) -> Array:
    """All processors that ``sampling`` asks for, in the order of transformers' ``generate``."""
    for name in active(sampling):
        logits = ORDER[name](logits, sampling, prefix)
    return logits


def active(sampling: Sampling) -> list[str]:
    """The fields of ``sampling`` that change logits, in the order in which they are applied."""
    changed = sampling.changed
    return [name for name in ORDER if name in changed] if changed else []


# -- building blocks --------------------------------------------------------------------------------------


def _on_device(values: np.ndarray, logits: Array) -> Array:
    """``values`` as an array of the library and on the device of ``logits``."""
    if isinstance(logits, np.ndarray):
        return values
    return namespace(logits).asarray(values, device=logits.device)


def _with(logits: Array, ids: Integers, change: Callable[[Array], Array]) -> Array:
    """A copy of ``logits`` in which the entries at ``ids`` are changed; an id may be there several times."""
    if not len(ids):
        return logits
    at = _on_device(ids, logits)
    out = namespace(logits).asarray(logits, copy=True)
    out[at] = change(out[at])
    return out


def _without(logits: Array, ids: Integers) -> Array:
    """A copy of ``logits`` in which the entries at ``ids`` are minus infinity."""
    if not len(ids):
        return logits
    out = namespace(logits).asarray(logits, copy=True)
    out[_on_device(ids, logits)] = -math.inf
    return out


# -- processors -------------------------------------------------------------------------------------------


def logit_bias(logits: Array, sampling: Sampling, _prefix: Prefix) -> Array:
    """Add to given tokens: x + b (OpenAI's ``logit_bias``; transformers' ``SequenceBias`` of one token)."""
    xp = namespace(logits)
    biases = xp.astype(_on_device(sampling.biases, logits), logits.dtype)
    return _with(logits, sampling.arrays["logit_bias"], lambda x: x + biases)


def repetition_penalty(logits: Array, sampling: Sampling, prefix: Prefix) -> Array:
    """CTRL's x / r where x >= 0, else x * r, for every token of prompt and output (arXiv 1909.05858)."""
    xp, penalty = namespace(logits), sampling.repetition_penalty
    return _with(logits, prefix.ids, lambda x: xp.where(x < 0, x * penalty, x / penalty))


def frequency_penalty(logits: Array, sampling: Sampling, prefix: Prefix) -> Array:
    """OpenAI's x - f * n for tokens that were generated n times."""
    ids, counts = np.unique(prefix.ids[prefix.prompt_length :], return_counts=True)
    times = namespace(logits).astype(_on_device(counts, logits), logits.dtype)
    return _with(logits, ids, lambda x: x - sampling.frequency_penalty * times)


def presence_penalty(logits: Array, sampling: Sampling, prefix: Prefix) -> Array:
    """OpenAI's x - a for tokens that were generated at least once."""
    return _with(logits, prefix.ids[prefix.prompt_length :], lambda x: x - sampling.presence_penalty)


def no_repeat_ngram_size(logits: Array, sampling: Sampling, prefix: Prefix) -> Array:
    """Ban what would complete an n-gram that prompt or output have already."""
    return _without(logits, _completing(prefix.ids, sampling.no_repeat_ngram_size))


def _completing(ids: Integers, size: int) -> Integers:
    """The last tokens of the n-grams in ``ids`` [n] whose first ``size`` - 1 tokens end ``ids`` too."""
    count = len(ids) - size + 1  # n-grams there are; the one that the next token completes starts there
    if count <= 0:
        return ids[:0]
    matches = np.ones(count, dtype=bool)
    for offset in range(size - 1):
        matches &= ids[offset : offset + count] == ids[count + offset]
    return ids[size - 1 :][matches]


def bad_words(logits: Array, sampling: Sampling, prefix: Prefix) -> Array:
    """Ban the last token of a word when its other tokens have just been written."""
    last = prefix.tokens[-1] if len(prefix) else -1
    ends = [
        word[-1]
        for word in sampling.long_words.get(last, ())
        if prefix.tokens[max(0, len(prefix) - len(word) + 1) :] == word[:-1]
    ]
    return _without(logits, np.concatenate([sampling.arrays["bad_words"], np.asarray(ends, dtype=np.int64)]))


def min_length(logits: Array, sampling: Sampling, prefix: Prefix) -> Array:
    """Ban end-of-text while the text, prompt included, is shorter."""
    return _without(logits, sampling.arrays["eos_token_ids"]) if len(prefix) < sampling.min_length else logits


def min_tokens(logits: Array, sampling: Sampling, prefix: Prefix) -> Array:
    """Ban end-of-text while there are fewer new tokens (transformers' ``min_new_tokens``)."""
    return _without(logits, sampling.arrays["eos_token_ids"]) if prefix.num_new < sampling.min_tokens else logits


def forced_tokens(logits: Array, sampling: Sampling, prefix: Prefix) -> Array:
    """0 for the token that must come here, minus infinity for all others."""
    token = sampling.forced.get(prefix.num_new)
    if token is None:
        return logits
    out = namespace(logits).full_like(logits, -math.inf)
    out[token] = 0.0
    return out


def suppress_tokens(logits: Array, sampling: Sampling, _prefix: Prefix) -> Array:
    """Ban tokens everywhere."""
    return _without(logits, sampling.arrays["suppress_tokens"])


def begin_suppress_tokens(logits: Array, sampling: Sampling, prefix: Prefix) -> Array:
    """Ban tokens as the first new token."""
    return _without(logits, sampling.arrays["begin_suppress_tokens"]) if prefix.num_new == 0 else logits


def processors(logits: Array, sampling: Sampling, prefix: Prefix) -> Array:
    """The user's callables, in their order."""
    for processor in sampling.processors:
        made = processor(prefix.tokens, logits)
        if not isinstance(made, type(logits)) or made.shape != logits.shape:
            raise OptionError(
                f"the processor {getattr(processor, '__name__', processor)} returned {_described(made)}; it must "
                f"return logits like those it is given, {_described(logits)}"
            )
        logits = made
    return logits


def constraint(logits: Array, sampling: Sampling, prefix: Prefix) -> Array:
    """Ban what a grammar does not allow here."""
    assert sampling.constraint is not None
    allowed = sampling.constraint.allowed(prefix)
    return logits if allowed is None else _without(logits, np.flatnonzero(~allowed))


def _described(value: Any) -> str:
    """A result in few words: its type and its shape."""
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"{type(value).__name__} of shape {tuple(shape)}"


ORDER: Mapping[str, Step] = {
    step.__name__: step
    for step in (
        logit_bias,
        repetition_penalty,
        frequency_penalty,
        presence_penalty,
        no_repeat_ngram_size,
        bad_words,
        min_length,
        min_tokens,
        forced_tokens,
        suppress_tokens,
        begin_suppress_tokens,
        processors,
        constraint,
    )
}
