"""The naive oracle: plain decoding with no cache and no draft. It stays beside the engine for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec.sampling import distribution
from selfspec.types import LayerPlan, Prefix, Rows, Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from selfspec.runtime.base import Runtime
    from selfspec.sampling import Chance


def oracle(
    runtime: Runtime,
    prompt: Sequence[int],
    max_new_tokens: int,
    chance: Chance,
    sampling: Sampling = Sampling(),  # noqa: B008 (frozen)
    ends: Callable[[int], bool] = lambda _: False,
) -> list[int]:
    """The new tokens after ``prompt``: every token from a pass over the whole text and a fresh cache."""
    tokens = list(prompt)
    full = LayerPlan.full(runtime.config.num_layers)
    while len(tokens) < len(prompt) + max_new_tokens:
        rows = Rows.of([0] * len(tokens), range(len(tokens)))
        cache = runtime.new_cache(1, len(tokens))
        hidden, _ = runtime.run(runtime.embed(tokens, rows.positions), full, rows, cache)
        law = distribution(runtime.logits(hidden[-1:])[0], sampling, Prefix(tokens, len(prompt)))
        if sampling.coupled:
            law = chance.realise(law, len(tokens))
        tokens.append(chance.pick(law))
        if ends(tokens[-1]):
            break
    return tokens[len(prompt) :]
