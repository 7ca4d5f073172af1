"""Losses of one or several heads on a pack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import nn

from selfspec.train.heads.losses import cross_entropy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from selfspec.train.heads.modules import Head
    from selfspec.train.heads.packs import Pack


class Losses(NamedTuple):
    """``total`` is learned from; ``steps`` and ``kl`` are the mean cross entropy and KL divergence of each step.

    The last two are by head, steps behind each other, and have no gradient.
    """

    total: Tensor
    steps: list[list[float]]
    kl: list[list[float]]

    @property
    def told(self) -> dict[str, Any]:
        """As the history of a run has it."""
        return {"loss": self.steps, "kl": self.kl}


class Learner(nn.Module):
    """Heads that learn together, each for itself.

    The means of the ``steps`` of the training-time test, or of Medusa's heads, are added with the weights 1, decay,
    decay ** 2, ...
    """

    def __init__(self, heads: Mapping[str, Head], head: Tensor, steps: int, decay: float) -> None:
        super().__init__()
        self.heads = nn.ModuleDict(dict(heads))
        self._head, self._steps, self._decay = head, steps, decay

    @property
    def by_name(self) -> dict[str, Head]:
        """The heads."""
        return cast("dict[str, Head]", dict(self.heads.items()))

    @property
    def parts(self) -> Sequence[Head]:
        """The same; each is clipped for itself."""
        return list(self.by_name.values())

    def forward(self, pack: Pack) -> Losses:
        """The losses of a pack; the means of steps that no text is long enough for are 0."""
        assert pack.expected is not None
        assert pack.entropy is not None
        total, means, divergences = pack.expected.new_zeros(()), [], []
        places = [pack.predicted(step) for step in range(self._steps)]
        for module in self.by_name.values():
            states = module(pack.of(module.facts.taps), self._steps)
            with torch.autocast(self._head.device.type, enabled=False):
                sums = [
                    cross_entropy(found, self._head, pack.expected[place]).sum()
                    for found, place in zip(states, places, strict=True)
                ]
            rows = [max(1, len(place)) for place in places]
            weighed = zip(sums, rows, strict=True)
            total = total + sum(self._decay**step * part / count for step, (part, count) in enumerate(weighed))
            means.append([float(part.detach()) / count for part, count in zip(sums, rows, strict=True)])
            floors = [float(pack.entropy[place].sum()) / count for place, count in zip(places, rows, strict=True)]
            divergences.append([mean - floor for mean, floor in zip(means[-1], floors, strict=True)])
        return Losses(total, means, divergences)
