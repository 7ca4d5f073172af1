"""What recurrent layers keep of a text, so that it can go on at any place that a draft may leave it at.

A state after every row of a draft would be γ + 1 matrices for each head. Instead a layer keeps the state after
every ``block`` positions, and of the rows since then what they added to it: their keys, values and decays, which
are to a state what keys and values are to attention. So a row is found from its position alone, rolling back is
writing at a smaller position, and the cost does not depend on γ.

A block is as long as the longest draft. Then the rows of a round lie in two neighbouring blocks, and two blocks of
rows and two states are enough: place p modulo (2 · block) is overwritten, at the earliest, when no text can go back
to p any more. Of the convolution's inputs a ring has the last ``taps - 1``, and ``block`` more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec.types import MAX_GAMMA

if TYPE_CHECKING:
    from selfspec.model.config import ModelConfig, Recurrence

BLOCK = MAX_GAMMA
DECAY_BYTES = 8  # sums of logarithms, whose differences count


def ring(recurrence: Recurrence, block: int = BLOCK) -> int:
    """How many inputs of its convolution a layer keeps for each slot."""
    return recurrence.taps - 1 + block


def state_width(width: int) -> int:
    """Bytes of a number in a state, beside weights of ``width`` bytes: float32 or wider."""
    return max(width, 4)


def kept_bytes(config: ModelConfig, width: int, block: int = BLOCK) -> int:
    """Bytes that all recurrent layers keep of one text, beside weights of ``width`` bytes."""
    return sum(_kept(recurrence, width, block) for recurrence in config.recurrences)


def plain_bytes(config: ModelConfig, width: int) -> int:
    """The part of them that a decoder without roll-back would need: the last state, and the last inputs."""
    return sum(
        r.key_dim * r.value_width * state_width(width) + (r.taps - 1) * r.channels * width
        for r in config.recurrences
    )


def _kept(recurrence: Recurrence, width: int, block: int) -> int:
    inputs = ring(recurrence, block) * recurrence.channels * width
    if not recurrence.key_dim:
        return inputs
    rows = 2 * block * (recurrence.key_width + recurrence.value_width) * state_width(width)
    decays = 2 * block * recurrence.value_heads * DECAY_BYTES
    return inputs + rows + decays + 2 * recurrence.key_dim * recurrence.value_width * state_width(width)
