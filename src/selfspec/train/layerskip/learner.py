"""The loss of a whole model and of its exits on some texts, with layers left out at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from selfspec.train.layerskip.losses import head_cross_entropy
from selfspec.train.schedules import Curriculum, dropout_rates, exit_weights, kept

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from selfspec.train.heads.corpus import Sample
    from selfspec.train.heads.progress import Progress
    from selfspec.train.layerskip.decoder import Decoder
    from selfspec.train.options import LayerSkipOptions

_SPREAD = 1.25  # times as long as the shortest text of a batch is the longest: the rest would be padding


class Batch(NamedTuple):
    """B texts side by side: ``tokens`` [B, T], ``kept`` [L, B] or None where every layer runs.

    ``rows`` [R] are the places, in tokens laid out flat, that predict the R tokens ``following``: the answers'.
    """

    tokens: Tensor
    kept: Tensor | None
    rows: Tensor
    following: Tensor


@dataclass(frozen=True, eq=False)
class Pack:
    """What a step reads: batches of texts that are about as long as each other, and the exits that learn."""

    batches: Sequence[Batch]
    exits: Sequence[int]
    weights: Sequence[float]


class Packer:
    """Makes packs of texts by number, as the options and the moment say."""

    def __init__(
        self, samples: Sequence[Sample], layers: int, options: LayerSkipOptions, device: torch.device
    ) -> None:
        self._samples, self._layers, self._options, self._device = samples, layers, options, device
        self._exits = options.exits_of(layers)
        self._curriculum = Curriculum(options.curriculum, options.rotation, options.gradual)

    def __call__(self, texts: Sequence[int], progress: Progress, share: float) -> Pack:
        """The pack of a step, which follows from the seed and the place in the training."""
        options, layers, step = self._options, self._layers, progress.step
        exits = self._curriculum.active(self._exits, layers, step, share)
        weights = exit_weights(exits, layers, options.exit_weights, options.exit_scale)
        mask = None
        if options.most_dropout > 0.0:
            rates = dropout_rates(layers, options.most_dropout, options.over_time, share)
            mask = torch.from_numpy(kept(rates, len(texts), options.seed, step)).to(self._device)
        order = sorted(range(len(texts)), key=lambda place: len(self._samples[texts[place]].tokens))
        batches, group = [], order[:1]
        for place in order[1:]:
            shortest, length = (len(self._samples[texts[at]].tokens) for at in (group[0], place))
            if length > _SPREAD * shortest:
                batches.append(self._batch(texts, group, mask))
                group = []
            group.append(place)
        return Pack([*batches, self._batch(texts, group, mask)], exits, weights)

    def _batch(self, texts: Sequence[int], places: Sequence[int], mask: Tensor | None) -> Batch:
        samples = [self._samples[texts[place]] for place in places]
        batch = batch_of(samples, self._device)
        return batch if mask is None else batch._replace(kept=mask[:, list(places)])


def batch_of(samples: Sequence[Sample], device: torch.device) -> Batch:
    """Texts side by side, every layer of which runs."""
    width = max(len(sample.tokens) for sample in samples)
    tokens = torch.zeros((len(samples), width), dtype=torch.int64)
    rows, following = [], []
    for place, sample in enumerate(samples):
        own = torch.from_numpy(sample.tokens.astype("int64"))
        tokens[place, : len(own)] = own
        first, last = place * width + sample.prompt_length - 1, place * width + len(own) - 1
        rows.append(torch.arange(first, last))
        following.append(own[sample.prompt_length :])
    return Batch(tokens.to(device), None, torch.cat(rows).to(device), torch.cat(following).to(device))


class Losses(NamedTuple):
    """``total`` is learned from; ``final`` and ``early`` are mean losses of the last layer and of active exits."""

    total: Tensor
    final: float
    early: float
    exits: Sequence[int]

    @property
    def told(self) -> dict[str, Any]:
        """As the history of a run has it."""
        return {"loss": [[self.final], [self.early]], "exits": list(self.exits)}


class Learner(nn.Module):
    """A model that learns with its exits: Σ w_k · CE_k over the tokens of the answers."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    @property
    def parts(self) -> Sequence[nn.Module]:
        """The whole model."""
        return [self.decoder]

    def forward(self, pack: Pack) -> Losses:
        """The losses of a pack."""
        found = [self._states(batch, pack.exits) for batch in pack.batches]
        tokens = torch.cat([batch.following for batch in pack.batches])
        count = len(tokens)
        # exits one after the other: one product with the head for all of them
        states = torch.cat([torch.cat(parts) for parts in zip(*found, strict=True)])
        weights = torch.tensor(pack.weights, device=tokens.device).repeat_interleave(count) / count
        total, losses = head_cross_entropy(
            self.decoder.normed(states), self.decoder.head, tokens.repeat(len(pack.exits)), weights
        )
        means = losses.view(len(pack.exits), count).mean(1).tolist()
        early = means[:-1] or means[-1:]
        return Losses(total, means[-1], sum(early) / len(early), pack.exits)

    def _states(self, batch: Batch, exits: Sequence[int]) -> list[Tensor]:
        """The states [R, d] of the rows that predict answers, after each exit."""
        states = self.decoder(batch.tokens, batch.kept, exits)
        return [states[k].flatten(0, 1)[batch.rows] for k in exits]
