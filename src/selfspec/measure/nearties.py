"""The near-tie rule: when may a text leave the text of plain decoding?

A pass over several rows may round differently from a pass over one, so two nearly equal scores can swap. In
float32 a divergence passes only where the gap between the two tokens is at most twice the largest difference
between one-row and many-row passes measured there, itself under 1e-3, and that in at most 1 % of the texts
(in one text where there are fewer than 100). In float64 that noise must be under 1e-9. In lower precisions
the noise that is measured decides alone: it is reported, and no limit is put on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from array_api_compat import to_device

from selfspec.types import LayerPlan, Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from selfspec.runtime.base import Cache, Runtime
    from selfspec.types import Array

    Score = Callable[[Sequence[int], np.ndarray[Any, Any]], np.ndarray[Any, Any]]

LARGEST_NOISE = {"float32": 1e-3, "float64": 1e-9}  # of logits; more is a bug of the runtime
LARGEST_SHARE = 0.01
ROWS = 6


@dataclass(frozen=True)
class Divergence:
    """Where a text leaves that of plain decoding, and whether it may.

    ``index`` counts new tokens from 0; a token is None where its text had ended. ``gap`` is how far the score
    of the lesser token is below the largest one; ``noise`` how much row counts change the scores there.
    """

    prompt: int
    drafter: str
    index: int
    plain_token: int | None
    draft_token: int | None
    gap: float | None
    noise: float | None
    kind: Literal["near-tie", "bug"]


def raw(_tokens: Sequence[int], logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The scores of greedy decoding: the logits themselves."""
    return logits


class NearTies:
    """Compares texts, and classes where they part.

    ``score(tokens, logits [V])`` is what decoding takes the largest of after ``tokens``.
    """

    def __init__(self, runtime: Runtime, score: Score = raw) -> None:
        self._runtime = runtime
        self._score = score
        self.texts = 0
        self.divergences: list[Divergence] = []

    @property
    def near_ties(self) -> int:
        """How many texts parted at a near-tie."""
        return sum(found.kind == "near-tie" for found in self.divergences)

    @property
    def bugs(self) -> int:
        """How many texts parted elsewhere."""
        return len(self.divergences) - self.near_ties

    @property
    def allowed(self) -> int:
        """How many near-ties there may be."""
        if self._runtime.precision not in LARGEST_NOISE:
            return self.texts
        return max(1, int(self.texts * LARGEST_SHARE))

    @property
    def passed(self) -> bool:
        """No bug, and few near-ties."""
        return not self.bugs and self.near_ties <= self.allowed

    def compare(
        self, prompt: Sequence[int], drafted: Sequence[int], plain: Sequence[int], where: tuple[int, str], rows: int
    ) -> bool:
        """Whether the new tokens ``drafted`` are ``plain``; notes where they are not.

        ``where`` is the number of the prompt and the name of the drafter, whose passes have ``rows`` rows.
        """
        self.texts += 1
        if tuple(drafted) == tuple(plain):
            return True
        at = next((i for i, (a, b) in enumerate(zip(drafted, plain, strict=False)) if a != b), None)
        if at is None:  # one is the beginning of the other: an end was missed, and no rounding does that
            at = min(len(drafted), len(plain))
            pair = (plain[at] if at < len(plain) else None, drafted[at] if at < len(drafted) else None)
            self.divergences.append(Divergence(*where, at, *pair, None, None, "bug"))
            return False
        gap, noise = self._measure([*prompt, *plain[:at]], (plain[at], drafted[at]), max(rows, ROWS))
        limit = LARGEST_NOISE.get(self._runtime.precision, math.inf)
        kind: Literal["near-tie", "bug"] = "near-tie" if gap <= 2 * noise and noise < limit else "bug"
        self.divergences.append(Divergence(*where, at, plain[at], drafted[at], gap, noise, kind))
        return False

    def _measure(self, tokens: Sequence[int], pair: tuple[int, int], rows: int) -> tuple[float, float]:
        """The gap of the two tokens after ``tokens``, and the noise of the scores there."""
        one = self._scores(tokens, rows, 1)
        many = self._scores(tokens, rows, rows)
        return float(one[-1].max() - one[-1][list(pair)].min()), difference(one, many)

    def _scores(self, tokens: Sequence[int], count: int, rows_per_pass: int) -> np.ndarray[Any, Any]:
        """Scores [count, V] of the last rows, run in passes of ``rows_per_pass`` after a prefill of the rest."""
        start = max(0, len(tokens) - count)
        cache = self._runtime.new_cache(1, len(tokens))
        if start:
            logits_of(self._runtime, tokens, (0, start), cache)
        out = [
            logits_of(self._runtime, tokens, (low, min(low + rows_per_pass, len(tokens))), cache)
            for low in range(start, len(tokens), rows_per_pass)
        ]
        rows = np.concatenate(out)
        return np.stack([self._score(tokens[: start + i + 1], row) for i, row in enumerate(rows)])


def logits_of(
    runtime: Runtime, tokens: Sequence[int], span: tuple[int, int], cache: Cache, slot: int = 0
) -> np.ndarray[Any, Any]:
    """Logits [R, V] of the tokens in the half-open ``span``, on the host; what is before them is in ``cache``."""
    start, stop = span
    rows = Rows.of([slot] * (stop - start), range(start, stop))
    full = LayerPlan.full(runtime.config.num_layers)
    hidden, _ = runtime.run(runtime.embed(tokens[start:stop]), full, rows, cache)
    return on_host(runtime.logits(hidden))


def on_host(array: Array) -> np.ndarray[Any, Any]:
    """The same numbers in NumPy."""
    return array if isinstance(array, np.ndarray) else np.asarray(to_device(array, "cpu"))


def difference(one: np.ndarray[Any, Any], many: np.ndarray[Any, Any]) -> float:
    """The largest difference between scores; those that a ban or a cut leaves out do not count."""
    finite = np.isfinite(one) & np.isfinite(many)
    return float(np.abs(one - many, where=finite, out=np.zeros(one.shape)).max(initial=0.0))
