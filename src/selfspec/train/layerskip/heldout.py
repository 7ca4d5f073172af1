"""How often exits agree with the last layer, on texts that were not trained on.

The states of draft rows are those of the model's own first k layers, so an exit says in decoding what it says here
with the text as it stands: a draft from some place goes on as long as exit and last layer name the same token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from selfspec.train.heads.heldout import Acceptance
from selfspec.train.layerskip.learner import batch_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from selfspec.train.heads.corpus import Sample
    from selfspec.train.layerskip.decoder import Decoder

POSITIONS = 5  # of a draft that are measured
_ROWS = 128  # whose logits are there at once


def measured(decoder: Decoder, samples: Sequence[Sample], exits: Sequence[int]) -> dict[str, dict[str, Acceptance]]:
    """For each exit, by its name, the shares of arg-maxes that agree at each position of a draft ("greedy")."""
    layers, device = decoder.config.num_layers, decoder.head.device
    runs: dict[int, list[NDArray[np.bool_]]] = {k: [] for k in exits}
    with torch.no_grad():
        for sample in samples:
            batch = batch_of([sample], device)
            states = decoder(batch.tokens, None, [*exits, layers])
            said = {k: _likeliest(decoder, found[0][batch.rows]) for k, found in states.items()}
            for k in exits:
                runs[k].append((said[k] == said[layers]).cpu().numpy())
    tokens = sum(len(sample.tokens) - sample.prompt_length for sample in samples)
    return {f"exit-{k}": {"greedy": Acceptance(_by_position(found), tokens)} for k, found in runs.items()}


def _likeliest(decoder: Decoder, states: Tensor) -> Tensor:
    found = [(decoder.normed(part) @ decoder.head.T).argmax(-1) for part in torch.split(states, _ROWS)]
    return torch.cat(found)


def _by_position(agreed: Sequence[NDArray[np.bool_]]) -> tuple[float, ...]:
    """Of drafts from every place: how often position s is right where all before it were."""
    found = []
    for position in range(POSITIONS):
        came = went = 0
        for run in agreed:
            starts = len(run) - position
            if starts <= 0:
                continue
            windows = np.lib.stride_tricks.sliding_window_view(run, position + 1)
            reached = windows[:, :position].all(1)
            came += int(reached.sum())
            went += int((reached & windows[:, position]).sum())
        found.append(went / max(1, came))
    return tuple(found)
