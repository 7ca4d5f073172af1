"""Which layers are left out, and which exits learn how much, at each moment of a training: pure functions.

From LayerSkip (arXiv 2404.16710, §4) and the recipe of torchtune that has it. L layers have the indices [0, L); the
exit k is what leaves layer k - 1, so the exit L is the model itself. ``share`` is how much of the training is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    Masks = NDArray[np.bool_]

_WEIGHTS: Mapping[str, Callable[[int], float]] = {
    "sum": lambda k: k * (k + 1) / 2.0,
    "linear": float,
    "uniform": lambda _k: 1.0,
}
WEIGHTS = tuple(_WEIGHTS)
OVER_TIME = ("constant", "exponential")
CURRICULA = ("rotational", "gradual", "none")


def dropout_rates(layers: int, most: float, over_time: str, share: float) -> list[float]:
    """How often each layer is left out of a sample: p = S(t) · D(l) · ``most``.

    D(l) = 2^(l / (L - 1)) - 1 rises from 0 at the first layer to 1 at the last; S is 1 ("constant"), or
    2^share - 1 ("exponential"), which rises from 0 to 1 while a model learns from nothing.
    """
    over = 1.0 if over_time == "constant" else 2.0 ** min(1.0, share) - 1.0
    return [over * (2.0 ** (layer / max(1, layers - 1)) - 1.0) * most for layer in range(layers)]


def kept(rates: Sequence[float], samples: int, seed: int, step: int) -> Masks:
    """Whether each layer runs each sample [L, samples]; the same for the same seed and step."""
    draws = [np.random.default_rng([seed, step, layer]).random(samples) for layer in range(len(rates))]
    found: Masks = np.array(draws).reshape(len(rates), samples) >= np.array(rates)[:, None]
    return found


@dataclass(frozen=True)
class Curriculum:
    """Which exits learn when; the last layer, L, always does.

    "rotational": every ``rotation``-th of the exits, a different set in each step. "gradual": from the last ones to
    the first; the exit after layer l begins when ``share`` is ``gradual`` · (L - l) / L. "none": all of them.
    """

    kind: str
    rotation: int = 8
    gradual: float = 0.5

    def active(self, exits: Sequence[int], layers: int, step: int, share: float) -> list[int]:
        """Those of ``exits`` that learn in a step, and L."""
        if self.kind == "rotational":
            chosen = [k for place, k in enumerate(exits) if (place - step) % self.rotation == 0]
        elif self.kind == "gradual":
            chosen = [k for k in exits if share >= self.gradual * (layers - (k - 1)) / layers]
        else:
            chosen = list(exits)
        return [*chosen, layers]


def exit_weights(active: Sequence[int], layers: int, kind: str, scale: float) -> list[float]:
    """What the loss of each active exit counts; their sum is 1.

    They grow as the sum of all k up to the exit ("sum"), as k ("linear"), or not ("uniform"); those of exits before
    the last layer are multiplied by ``scale``.
    """
    raw = [_WEIGHTS[kind](k) * (1.0 if k == layers else scale) for k in active]
    return [weight / sum(raw) for weight in raw]
