"""The loss of a draft model on some texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from selfspec.train.distill.losses import Wanted, distillation
from selfspec.train.layerskip.learner import batch_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from selfspec.train.heads.corpus import Sample
    from selfspec.train.heads.features import States
    from selfspec.train.heads.losses import Teacher
    from selfspec.train.heads.progress import Progress
    from selfspec.train.layerskip.decoder import Decoder
    from selfspec.train.layerskip.learner import Batch

_SPREAD = 1.25  # times as long as the shortest text of a batch is the longest: the rest would be padding


class Pack(NamedTuple):
    """What a step reads: texts that are about as long as each other in ``batches``.

    ``states`` [R, d] are the target's, after its last layer, at the rows of all of them that predict answers.
    """

    batches: Sequence[Batch]
    states: Tensor


class Packer:
    """Makes packs of texts by number."""

    def __init__(self, samples: Sequence[Sample], states: States, device: torch.device) -> None:
        self._samples, self._states, self._device = samples, states, device

    def __call__(self, texts: Sequence[int], _progress: Progress, _share: float) -> Pack:
        """The pack of a step."""
        order = sorted(texts, key=lambda text: len(self._samples[text].tokens))
        groups: list[list[int]] = []
        for text in order:
            length = len(self._samples[text].tokens)
            if not groups or length > _SPREAD * len(self._samples[groups[-1][0]].tokens):
                groups.append([])
            groups[-1].append(text)
        states = [
            self._states(text)[self._samples[text].prompt_length - 1 : -1, -1] for group in groups for text in group
        ]
        batches = [batch_of([self._samples[text] for text in group], self._device) for group in groups]
        return Pack(batches, torch.cat(states).to(self._device))


class Losses(NamedTuple):
    """``total`` is learned from; ``kl`` and ``ce`` are the mean divergence and cross entropy."""

    total: Tensor
    kl: float
    ce: float

    @property
    def told(self) -> dict[str, Any]:
        """As the history of a run has it."""
        return {"loss": [[self.kl], [self.ce]]}


class Learner(nn.Module):
    """A draft model that learns what ``teacher`` says of the target's states."""

    def __init__(self, decoder: Decoder, teacher: Teacher, kl: float, ce: float) -> None:
        super().__init__()
        self.decoder = decoder
        self._teacher, self._weights = teacher, (kl, ce)

    @property
    def parts(self) -> Sequence[nn.Module]:
        """The whole model."""
        return [self.decoder]

    def forward(self, pack: Pack) -> Losses:
        """The losses of a pack."""
        last = self.decoder.config.num_layers
        found = [self.decoder(b.tokens, None, [last])[last].flatten(0, 1)[b.rows] for b in pack.batches]
        tokens = torch.cat([batch.following for batch in pack.batches])
        wanted = Wanted(self._teacher.law, pack.states, tokens, *self._weights)
        total, means = distillation(self.decoder.normed(torch.cat(found)), self.decoder.head, wanted)
        kl, ce = means.tolist()
        return Losses(total, kl, ce)
