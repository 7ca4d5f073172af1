"""How often a draft model's tokens are accepted, on texts that were not trained on.

As `selfspec.train.heads.heldout` has it, but that the draft model reads the text alone: along the text it says what
it does in a draft from any place, as long as the draft's tokens are those of the text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from selfspec.train.heads.features import Remembered, entering
from selfspec.train.heads.heldout import Acceptance, Laws, Sums, follow
from selfspec.train.layerskip.learner import batch_of
from selfspec.types import on_host

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from selfspec.runtime.base import Runtime
    from selfspec.train.heads.corpus import Sample
    from selfspec.train.heads.features import Reader
    from selfspec.train.layerskip.decoder import Decoder

POSITIONS = 5  # of a draft that are measured
_ROWS = 64  # whose logits are there at once


class HeldOut:
    """Texts of an evaluation."""

    def __init__(self, runtime: Runtime, samples: Sequence[Sample], reader: Reader) -> None:
        self._runtime, self._samples = runtime, samples
        self._states = Remembered(reader, [sample.tokens for sample in samples])

    @torch.no_grad()
    def measure(self, decoder: Decoder) -> dict[str, dict[str, Acceptance]]:
        """Of "draft": "greedy" and "sampled", of the texts that are."""
        sums: dict[str, Sums] = {}
        last, device = decoder.config.num_layers, decoder.head.device
        every = torch.arange(decoder.config.vocab_size, device=device)
        for index, sample in enumerate(self._samples):
            batch = batch_of([sample], device)
            states = decoder(batch.tokens, None, [last])[last][0][batch.rows][
                1:
            ]  # the first token is the prefill's
            logits = torch.cat([decoder.normed(part) @ decoder.head.T for part in torch.split(states, _ROWS)])
            laws = Laws(self._target(index, device), every, sample)
            added = sums.setdefault("sampled" if sample.temperature > 0.0 else "greedy", Sums.of(POSITIONS))
            added.tokens += sample.drafted
            follow(added, [logits[step:] for step in range(POSITIONS)], laws)
        return {"draft": {kind: found.acceptance for kind, found in sums.items()}}

    def _target(self, index: int, device: torch.device) -> Tensor:
        """The target's logits [n, V] of the tokens that could be drafted."""
        states = entering(self._runtime, self._states(index)[self._samples[index].prompt_length : -1, -1])
        parts = [on_host(self._runtime.logits(states[i : i + _ROWS])) for i in range(0, len(states), _ROWS)]
        return torch.from_numpy(np.concatenate(parts)).to(device)
