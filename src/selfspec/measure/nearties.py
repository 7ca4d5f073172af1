"""The near-tie rule: when a text may leave that of plain decoding.

A pass over several rows may round differently from a pass over one, so two nearly equal scores can swap. In
float32 a divergence passes only where the gap between the two tokens is at most twice the largest difference
between one-row and many-row passes measured there, itself under 1e-3, and that in at most 1 % of the texts
(in one text where there are fewer than 100). In float64 that noise must be under 1e-9. In lower precisions
the noise that is measured decides alone: it is reported, and no limit is put on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from selfspec.prefixes import shared_length
from selfspec.types import LayerPlan, Prefix, Rows, on_host

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from selfspec.runtime.base import Cache, Runtime


Numbers: TypeAlias = "np.ndarray[Any, Any]"
Score: TypeAlias = "Callable[[Prefix, Numbers], Numbers]"
LARGEST_NOISE = {"float32": 1e-3, "float64": 1e-9}  # of logits; more is a bug of the runtime
LARGEST_SHARE = 0.01
ROWS = 6


class Place(NamedTuple):
    """Which comparison: the number of the prompt, the drafter, and the rows of its passes."""

    prompt: int
    drafter: str
    rows: int


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


def raw(_prefix: Prefix, logits: Numbers) -> Numbers:
    """The scores of greedy decoding: the logits themselves."""
    return logits


class NearTies:
    """Compares texts, and classes where they part."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
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
        self,
        prompt: Sequence[int],
        drafted: Sequence[int],
        plain: Sequence[int],
        place: Place,
        score: Score = raw,
    ) -> None:
        """Note whether and where the new tokens ``drafted`` are not ``plain``.

        ``score(prefix, logits [V])`` is what decoding takes the largest of.
        """
        self.texts += 1
        if tuple(drafted) == tuple(plain):
            return
        where = place.prompt, place.drafter
        at = shared_length(drafted, plain)
        if at == min(len(drafted), len(plain)):
            # one is the beginning of the other: an end was missed, and no rounding does that
            pair = (plain[at] if at < len(plain) else None, drafted[at] if at < len(drafted) else None)
            self.divergences.append(Divergence(*where, at, *pair, None, None, "bug"))
            return
        rows = max(place.rows, ROWS)
        one, many = (self._scores(prompt, plain[:at], score, (rows, width)) for width in (1, rows))
        gap = float(one[-1].max() - one[-1][[plain[at], drafted[at]]].min())
        noise = difference(one, many)
        limit = LARGEST_NOISE.get(self._runtime.precision, math.inf)
        kind: Literal["near-tie", "bug"] = "near-tie" if gap <= 2 * noise and noise < limit else "bug"
        self.divergences.append(Divergence(*where, at, plain[at], drafted[at], gap, noise, kind))

    def _scores(self, prompt: Sequence[int], new: Sequence[int], score: Score, rows: tuple[int, int]) -> Numbers:
        """Scores [count, V] of the last rows, run in passes of ``width`` after a prefill of the rest."""
        tokens, (count, width) = [*prompt, *new], rows
        start, stop = max(0, len(tokens) - count), len(tokens)
        cache = self._runtime.new_cache(1, stop)
        if start:
            logits_of(self._runtime, tokens, (0, start), cache)
        spans = [(low, min(low + width, stop)) for low in range(start, stop, width)]
        logits = np.concatenate([logits_of(self._runtime, tokens, span, cache) for span in spans])
        prefixes = [Prefix(tokens[: start + i + 1], len(prompt)) for i in range(stop - start)]
        return np.stack([score(prefix, row) for prefix, row in zip(prefixes, logits, strict=True)])


def logits_of(runtime: Runtime, tokens: Sequence[int], span: tuple[int, int], cache: Cache) -> Numbers:
    """Logits [R, V] of the tokens in the half-open ``span``, on the host; what is before them is in ``cache``."""
    start, stop = span
    rows = Rows.of([0] * (stop - start), range(start, stop))
    full = LayerPlan.full(runtime.config.num_layers)
    hidden, _ = runtime.run(runtime.embed(tokens[start:stop], rows.positions), full, rows, cache)
    return on_host(runtime.logits(hidden))


def difference(one: Numbers, many: Numbers) -> float:
    """The largest difference between scores; those that a ban or a cut leaves out do not count, a NaN does."""
    if np.isnan(one).any() or np.isnan(many).any():
        return math.inf
    finite = np.isfinite(one) & np.isfinite(many)
    return float(np.abs(one[finite] - many[finite]).max(initial=0.0))
