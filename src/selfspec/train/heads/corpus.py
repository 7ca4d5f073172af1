"""Which texts train a head and which are kept for evaluation, and the steps of an epoch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from selfspec.errors import OptionError
from selfspec.train.heads.packs import LEAST_ANSWER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from selfspec.train.shards import Text

_MOST_ROWS = 4  # of a step, for each of its answer tokens: prompts are read too


class Sample(NamedTuple):
    """A text: ``tokens`` [T], of which the first ``prompt_length`` are the prompt."""

    tokens: NDArray[np.int32]
    prompt_length: int
    temperature: float

    @property
    def drafted(self) -> int:
        """How many of its tokens could be drafted."""
        return len(self.tokens) - self.prompt_length - 1


@dataclass(frozen=True)
class Corpus:
    """Texts to train on and texts to evaluate with, which share no prompt.

    ``short`` were left out because nothing of their answer could be drafted, ``cut`` lost their end.
    """

    training: Sequence[Sample]
    held_out: Sequence[Sample]
    short: int
    cut: int

    @property
    def drafted(self) -> int:
        """Tokens of an epoch."""
        return sum(sample.drafted for sample in self.training)

    def evaluated(self, tokens: int) -> list[Sample]:
        """The first of those held out, until they have so many tokens."""
        kept, asked = [], 0
        for sample in self.held_out:
            if asked < tokens:
                kept.append(sample)
                asked += sample.drafted
        return kept

    @property
    def digest(self) -> str:
        """SHA-256 of the training texts."""
        found = hashlib.sha256()
        for sample in self.training:
            found.update(np.array([len(sample.tokens), sample.prompt_length], np.int64).tobytes())
            found.update(np.ascontiguousarray(sample.tokens, np.int32).tobytes())
        return found.hexdigest()

    def steps(self, epoch: int, seed: int, tokens: int) -> list[list[int]]:
        """The texts of each step, about ``tokens`` of answers each: in an order that follows from the seed."""
        order = np.random.default_rng([seed, epoch]).permutation(len(self.training))
        found: list[list[int]] = [[]]
        asked = rows = 0
        for index in order.tolist():
            sample = self.training[index]
            if found[-1] and (asked >= tokens or rows + len(sample.tokens) > _MOST_ROWS * tokens):
                found.append([])
                asked = rows = 0
            found[-1].append(index)
            asked, rows = asked + sample.drafted, rows + len(sample.tokens)
        return found


def corpus_of(
    texts: Iterable[Text], max_length: int, held_out: float, limit: int | None = None, seed: int = 0
) -> Corpus:
    """Sort texts by their prompts: ``held_out`` is the share that is kept back, ``limit`` the most answer tokens.

    Raises
    ------
    OptionError
        Nothing is left to train on, or to evaluate with.
    """
    training, kept, short, cut, tokens = [], [], 0, 0, 0
    for text in texts:
        sample = Sample(text.tokens[:max_length], text.prompt_length, text.temperature)
        cut += len(text.tokens) > max_length
        if len(sample.tokens) < text.prompt_length + LEAST_ANSWER:
            short += 1
        elif _share(seed, text.source) < held_out:
            kept.append(sample)
        elif limit is None or tokens < limit:
            training.append(sample)
            tokens += sample.drafted + 1
    if not training:
        raise OptionError("the data have no answer to train on; make more of them, or hold out fewer")
    if held_out and not kept:
        raise OptionError(
            f"none of the data's prompts fell among the {held_out:.0%} that are held out; make more data, or give "
            "a larger --held-out"
        )
    return Corpus(training, kept, short, cut)


def _share(seed: int, source: int) -> float:
    """A number in [0, 1) that belongs to a prompt, whatever else is in the data."""
    digest = hashlib.blake2b(f"{seed}:{source}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
