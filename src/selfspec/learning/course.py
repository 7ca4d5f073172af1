"""What is learned, in small pieces of work: steps of a candidate, its trial, and which head drafts from then on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.learning.linear import Adam, Weights, gradients
from selfspec.learning.replay import LEAST, Replay, digest, lessons
from selfspec.learning.trial import Draft, acceptance, rows_of_piece
from selfspec.model.head_file import HeadFile
from selfspec.types import on_host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from selfspec.types import Array

BATCH = 64
"""Rows of a step."""
STEPS = 16
"""Steps between two trials."""
VISITS = 8
"""How often a row is learned from, at most, on average: then there is nothing to do until more come."""
MOST_TOKENS = 4096
"""Most tokens of the draft vocabulary."""
RATE = 0.02
_LEAST_RATE = RATE / 32
_SEEN = 0.01  # of a token: how much of a law it must have had, over all rows, to be drafted
_PROMPT = 0.05  # what a token of a prompt counts
_FADES = 0.98  # what was seen, from trial to trial


@dataclass
class Counts:
    """What became of what."""

    rows: int = 0  # of verifications that were looked at
    dropped: int = 0  # of verifications for which there was no time
    steps: int = 0
    kept: int = 0  # candidates that became the head
    thrown_away: int = 0
    alpha: float | None = None  # of the head, in held-out rows, when it was last tried
    first_alpha: float | None = None  # of the head at the beginning, when it was first tried


class Course:
    """Makes better heads from rows.

    ``rows_of(tokens)`` gives rows [n, d] of the target's LM head in float32; ``use(head)`` is called with every
    head that is kept. `work` does all of it, a short piece at a time; nothing here knows of threads.
    """

    def __init__(
        self,
        head: HeadFile,
        size: int,
        num_tokens: int,
        rows_of: Callable[[NDArray[np.int64]], NDArray[np.float32]],
        use: Callable[[HeadFile], None],
    ) -> None:
        self.head = head
        self.counts = Counts()
        self.replay = Replay(head.facts.hidden_size, size)
        self._num_tokens, self._rows_of, self._use = num_tokens, rows_of, use
        self._seen = np.zeros(num_tokens, dtype=np.float32)
        if head.vocabulary is not None:
            self._seen[head.vocabulary] = 1.0
        self._random = np.random.default_rng(0)
        self._rate = RATE
        self._owed = 0.0  # visits
        self._tokens = np.empty(0, dtype=np.int64)  # the draft vocabulary of the candidate, and rows of the LM head
        self._rows = np.empty((0, head.facts.hidden_size), dtype=np.float32)
        self._places = np.empty(0, dtype=np.int64)
        self._begin()

    @property
    def nbytes(self) -> int:
        """Bytes that it holds: rows, weights with moments and gradient, rows of the LM head, what was seen."""
        weights = 4 * (self._weights.transform.nbytes + self._weights.norm.nbytes)
        return self.replay.nbytes + weights + self._rows.nbytes + self._places.nbytes + self._seen.nbytes

    def take(self, states: Array, scores: Array, temperature: float) -> None:
        """Rows of a verification: states [R, d] after the exit layer, logits [R, V] of the target."""
        laws = digest(np.asarray(on_host(scores)))
        self.replay.add(np.asarray(on_host(states), dtype=np.float32), laws, temperature)
        np.add.at(self._seen, laws.tokens, np.exp(laws.logs))
        self.counts.rows += len(laws.tokens)
        self._owed = min(self._owed + VISITS * len(laws.tokens), VISITS * self.replay.capacity)

    def read(self, prompt: NDArray[np.int64]) -> None:
        """The tokens of a prompt, which its answer may repeat."""
        np.add.at(self._seen, prompt, np.float32(_PROMPT))

    @property
    def has_work(self) -> bool:
        """Whether there is something to learn from that was not seen often enough."""
        return len(self.replay) >= LEAST and self._owed >= BATCH * STEPS

    def work(self) -> Iterator[None]:
        """One round of learning: `STEPS` steps, then the trial. Every ``next`` is a short piece of work."""
        self._choose_tokens()
        yield
        for _ in range(STEPS):
            yield from self._step()
        if self._weights.is_finite:
            yield from self._trial()
        else:
            self._throw_away()

    # -- steps --------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """A candidate begins as the head is."""
        self._weights = _weights(self.head).copy()
        self._adam: Adam | None = None  # as soon as there are states

    def _choose_tokens(self) -> None:
        """The draft vocabulary: what laws and prompts have shown."""
        found = np.flatnonzero(self._seen >= _SEEN)
        if len(found) > MOST_TOKENS:
            found = np.sort(found[np.argpartition(-self._seen[found], MOST_TOKENS)[:MOST_TOKENS]])
        if not np.array_equal(found, self._tokens):
            self._tokens, self._rows = found, self._rows_of(found)
            self._places = _places(found, self._num_tokens)
        if self._adam is None:
            squares = np.square(self.replay.drawn(LEAST, self._random).states)
            columns, whole = np.sqrt(squares.mean(axis=0)), np.sqrt(squares.mean())
            scale = whole / np.maximum(columns, 1e-3 * whole + 1e-30) / np.sqrt(len(columns))
            self._adam = Adam(self._weights, scale.astype(np.float32), self._rate)

    def _step(self) -> Iterator[None]:
        """One step, so many rows at a time that nothing takes long."""
        batch = lessons(self.replay.drawn(BATCH, self._random), self._places)
        eps, total = self.head.facts.eps, Weights(*map(np.zeros_like, self._weights))
        d, rows = total.transform.shape[0], len(self._tokens)
        piece = rows_of_piece(6 * d * d + 4 * rows * d)
        for start in range(0, BATCH, piece):
            part = batch.part(slice(start, start + piece))
            _, found = gradients(self._weights, self._rows, eps, part)
            total.transform[...] += found.transform
            total.norm[...] += found.norm
            yield
        assert self._adam is not None
        yield from self._adam.step(Weights(total.transform / BATCH, total.norm / BATCH))
        self.counts.steps += 1
        self._owed -= BATCH

    # -- trials -------------------------------------------------------------------------------------------

    def _trial(self) -> Iterator[None]:
        """The candidate and the head draft in the rows that are held out; the better one stays."""
        rows, eps = self.replay.judges(), self.head.facts.eps
        tokens = np.arange(self._num_tokens) if self.head.vocabulary is None else self.head.vocabulary
        old = yield from acceptance(Draft(_weights(self.head), eps, tokens), self._rows_of, rows)
        candidate = Draft(self._weights, eps, self._tokens)
        new = yield from acceptance(candidate, self._rows_of, rows)
        if self.counts.first_alpha is None:
            self.counts.first_alpha = old
        self.counts.alpha = max(old, new)
        if new > old:
            self._keep(new)
        else:
            self._throw_away()
        yield

    def _keep(self, alpha: float) -> None:
        """The candidate becomes the head; it goes on from there."""
        facts = self.head.facts
        learned = {"rows": self.counts.rows, "steps": self.counts.steps, "held_out_alpha": round(alpha, 4)}
        card: dict[str, Any] = {**facts.card, "learned": learned}
        weights = {"transform.weight": self._weights.transform.copy(), "norm.weight": self._weights.norm.copy()}
        head = HeadFile(replace(facts, card=card), weights, self._tokens)
        self._use(head)
        self.head = head
        self.counts.kept += 1
        self._seen *= np.float32(_FADES)
        self._set_rate(min(self._rate * 1.25, RATE))

    def _throw_away(self) -> None:
        """The next candidate begins again as the head is, in smaller steps."""
        self.counts.thrown_away += 1
        self._set_rate(max(self._rate / 2, _LEAST_RATE))
        self._begin()

    def _set_rate(self, rate: float) -> None:
        self._rate = rate
        if self._adam is not None:
            self._adam.rate = rate


def _places(tokens: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Where each of ``count`` tokens stands among ``tokens``, -1 for those that do not."""
    places = np.full(count, -1, dtype=np.int64)
    places[tokens] = np.arange(len(tokens))
    return places


def _weights(head: HeadFile) -> Weights:
    return Weights(head.weights["transform.weight"], head.weights["norm.weight"])
