"""From texts to packs: states, following tokens, and what the target expects."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from selfspec.train.heads.losses import Expected
from selfspec.train.heads.packs import Pack, Span
from selfspec.train.heads.target import embedded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from selfspec.runtime.base import Runtime
    from selfspec.train.heads.corpus import Sample
    from selfspec.train.heads.features import States
    from selfspec.train.heads.losses import Teacher

_MEMORY = 2_000_000_000  # bytes of expectations that are kept; beyond that they are made anew


class Packer:
    """Makes packs of texts by number."""

    def __init__(self, runtime: Runtime, samples: Sequence[Sample], states: States, teacher: Teacher) -> None:
        self._runtime, self._samples, self._states, self._teacher = runtime, samples, states, teacher
        self._kept: dict[int, Expected] = {}
        self._room = _MEMORY

    def __call__(self, texts: Sequence[int], kind: str, rolling: float = 1.0) -> Pack:
        """One pack of ``texts``, of which the first share ``rolling`` rolls out, one at least.

        The ``kind`` of head decides which rows there are (`selfspec.train.heads.packs`), and what they read.
        """
        is_eagle, is_medusa = kind == "eagle", kind == "medusa"
        rolling_texts = math.ceil(rolling * len(texts))
        device, spans, start = self._teacher.head.device, [], 0
        states, following, expected = [], [], []
        for place, text in enumerate(texts):
            sample, found = self._samples[text], self._states(text).to(device)
            length, behind = len(sample.tokens), 0 if kind == "exit_head" else 1
            rows, first = length - 1 - behind, sample.prompt_length - behind
            spans.append(Span(start, rows, first, place < rolling_texts))
            start += spans[-1].rows
            states.append(found[: spans[-1].rows, -1:] if is_medusa else found[: spans[-1].rows, :-1])
            if is_eagle:
                following.append(embedded(self._runtime, sample.tokens[1:-1]).to(device))
            expected.append(self._expected(text, found[sample.prompt_length : -1, -1]))
        means, entropy = (torch.cat(part) for part in zip(*expected, strict=True))
        follows = torch.cat(following) if is_eagle else None
        taps = (self._runtime.config.num_layers,) if is_medusa else self._states.taps
        return Pack(spans, taps, torch.cat(states), follows, means, entropy)

    def _expected(self, text: int, last: Tensor) -> Expected:
        if (found := self._kept.get(text)) is None:
            found = self._teacher(last)
            size = found.rows.nbytes + found.entropy.nbytes
            if size <= self._room:
                self._kept[text] = found
                self._room -= size
        return found
