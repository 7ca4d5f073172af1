"""Acceptance by draft position on texts that were not trained on, as decoding would see it.

Every place of an answer begins a draft. At position s of it the head has read what it would have read in decoding:
the target's states up to where the draft began, then its own. A position counts as often as decoding comes to it:
for greedy texts if all positions before it agreed with the target's arg-max, for sampled ones with the chance
Π min(1, q(x) / p(x)) that the tokens x before it were accepted. There α is the share of arg-maxes that agree, or
Σ min(p, q): p is the target's law over all tokens, q the head's over the draft vocabulary, both at the text's
temperature.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from selfspec.train.heads.features import Remembered, entering
from selfspec.train.heads.packer import Packer
from selfspec.types import on_host

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from selfspec.runtime.base import Runtime
    from selfspec.train.heads.corpus import Sample
    from selfspec.train.heads.features import Reader
    from selfspec.train.heads.losses import Teacher
    from selfspec.train.heads.modules import Head
    from selfspec.types import Integers


_ROWS = 64  # whose logits are there at once


class Acceptance(NamedTuple):
    """``alphas`` by draft position, of greedy or of sampled texts; ``tokens`` of answers that were asked for."""

    alphas: tuple[float, ...]
    tokens: int

    @property
    def tokens_per_round(self) -> float:
        """Mean tokens of a round that drafts so many, the bonus token included."""
        return 1.0 + float(np.cumprod(self.alphas).sum())


@dataclass
class Sums:
    """By position: the weight with which decoding comes there, and that with which it goes on."""

    came: Tensor
    went: Tensor
    tokens: int = 0

    @classmethod
    def of(cls, steps: int) -> Sums:
        """Nothing yet."""
        return cls(torch.zeros(steps, dtype=torch.float64), torch.zeros(steps, dtype=torch.float64))

    @property
    def acceptance(self) -> Acceptance:
        """What it comes to."""
        return Acceptance(tuple((self.went / self.came.clamp_min(1e-300)).tolist()), self.tokens)


class HeldOut:
    """Texts of an evaluation, with the target's states unrounded; ``vocabulary`` [D] is that of the drafts."""

    def __init__(
        self, runtime: Runtime, samples: Sequence[Sample], reader: Reader, teacher: Teacher, vocabulary: Integers
    ) -> None:
        self._runtime, self._samples, self._head = runtime, samples, teacher.head
        self._states = Remembered(reader, [sample.tokens for sample in samples])
        self._packer = Packer(runtime, samples, self._states, teacher)
        self._vocabulary = torch.from_numpy(vocabulary).to(self._head.device)

    def __len__(self) -> int:
        return sum(sample.drafted for sample in self._samples)

    def measure(self, modules: Mapping[str, Head], steps: int) -> dict[str, dict[str, Acceptance]]:
        """For each head: "greedy" and "sampled", of the texts that are."""
        sums: dict[tuple[str, str], Sums] = {}
        with torch.no_grad():
            for index, sample in enumerate(self._samples):
                laws = Laws(self._target(index), self._vocabulary, sample)
                kind = "sampled" if sample.temperature > 0.0 else "greedy"
                for name, module in modules.items():
                    pack = self._packer([index], module.facts.kind).of(module.facts.taps)
                    added = sums.setdefault((name, kind), Sums.of(steps))
                    added.tokens += sample.drafted
                    follow(added, [states @ self._head.T for states in module(pack, steps)], laws)
        found: dict[str, dict[str, Acceptance]] = {name: {} for name in modules}
        for (name, kind), total in sums.items():
            found[name][kind] = total.acceptance
        return found

    def _target(self, index: int) -> Tensor:
        """The target's logits [n, V] of the tokens that could be drafted."""
        last = entering(self._runtime, self._states(index)[self._samples[index].prompt_length : -1, -1])
        parts = [on_host(self._runtime.logits(last[start : start + _ROWS])) for start in range(0, len(last), _ROWS)]
        return torch.from_numpy(np.concatenate(parts)).to(self._head.device)


class Laws:
    """Of one text: chance of acceptance, and of going on along the text, for a head's logits [m, D]."""

    def __init__(self, target: Tensor, vocabulary: Tensor, sample: Sample) -> None:
        self._temperature, self._vocabulary = sample.temperature, vocabulary
        tokens = torch.from_numpy(sample.tokens[sample.prompt_length + 1 :].astype(np.int64)).to(target.device)
        if self._temperature > 0.0:
            laws = torch.log_softmax(target / self._temperature, dim=-1)
            self._p = laws[:, vocabulary].exp()
            self._said = laws.gather(1, tokens[:, None])[:, 0].exp()
            self._places = torch.searchsorted(vocabulary, tokens).clamp_max(len(vocabulary) - 1)
            self._is_known = vocabulary[self._places] == tokens
        else:
            self._best = target.argmax(dim=-1)

    def __call__(self, logits: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Of the tokens from ``first`` on: α [m], and the chance that the text's own token is accepted."""
        if self._temperature <= 0.0:
            agrees = (self._vocabulary[logits.argmax(dim=-1)] == self._best[first:]).double()
            return agrees, agrees
        q = torch.softmax(logits / self._temperature, dim=-1)
        overlap = torch.minimum(self._p[first:], q).sum(-1)
        drafted = q.gather(1, self._places[first:, None])[:, 0] * self._is_known[first:]
        return overlap.double(), (drafted / self._said[first:].clamp_min(1e-30)).clamp_max(1.0).double()


def follow(sums: Sums, logits: Sequence[Tensor], laws: Laws) -> None:
    """Add what drafts from every place of a text come to."""
    weight: Tensor | None = None
    for step, found in enumerate(logits):
        if not len(found):
            return
        alphas, goes_on = laws(found, step)
        weight = torch.ones_like(alphas) if weight is None else weight[: len(alphas)]
        sums.came[step] += weight.sum().cpu()
        sums.went[step] += (weight * alphas).sum().cpu()
        weight = weight * goes_on
