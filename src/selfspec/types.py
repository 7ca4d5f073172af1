"""The vocabulary: small frozen values that every part passes to the others.

Shapes use R rows, d hidden width, V vocabulary, L layers, γ drafted tokens. Ranges are half-open.
An ``Array`` is a NumPy array or a torch tensor; host-side integers (tokens, positions) are NumPy or Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from selfspec.plans import Cut, LayerPlan, Part, Spans, SubLayer
from selfspec.settings import (
    Array,
    Integers,
    Prefix,
    Processor,
    Sampling,
    require_defaults,
    require_least,
    require_types,
)
from selfspec.unseen import Unseen

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "MAX_GAMMA",
    "MAX_SIBLINGS",
    "MOST_ROWS",
    "Array",
    "Cut",
    "Dense",
    "Distribution",
    "Draft",
    "FinishReason",
    "Integers",
    "LayerPlan",
    "OneHot",
    "Part",
    "Prefix",
    "Processor",
    "Rows",
    "Sampling",
    "Spans",
    "SubLayer",
    "Verdict",
    "namespace",
    "on_host",
    "require_defaults",
    "require_least",
    "require_types",
]

FinishReason: TypeAlias = Literal["stop", "length"]
MAX_GAMMA = 64  # most tokens of a draft
MAX_SIBLINGS = 16  # most leaves beside a token of a comb
MOST_ROWS = 1 + MAX_GAMMA * (1 + MAX_SIBLINGS)  # of a text in one verification


def namespace(array: Array) -> Any:
    """The array-API namespace of ``array``: NumPy itself, whose version 2 is one, else that of its library."""
    if isinstance(array, np.ndarray):
        return np
    from array_api_compat import array_namespace

    return array_namespace(array)


def on_host(array: Array) -> np.ndarray[Any, Any]:
    """The same numbers in NumPy."""
    if isinstance(array, np.ndarray):
        return array
    from array_api_compat import to_device

    return np.asarray(to_device(array, "cpu"))


def alike(array: Array, other: Array) -> Array:
    """``array`` in the library and on the device of ``other``; itself where it is there already."""
    if isinstance(other, np.ndarray):
        return on_host(array)
    from array_api_compat import array_namespace, device

    if not isinstance(array, np.ndarray) and device(array) == device(other):
        return array
    return array_namespace(other).asarray(on_host(array), device=device(other))


# -- distributions ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OneHot:
    """The distribution with all mass on one token: greedy decoding."""

    token: int

    def probability(self, token: int) -> float:
        """P(token)."""
        return 1.0 if token == self.token else 0.0

    def pick(self, _uniform: float) -> int:
        """The token."""
        return self.token

    def minus(self, _other: Distribution, _weight: float = 1.0) -> Distribution:
        """norm((weight·p - q)+): unchanged, whatever mass is left."""
        return self

    def excess(self, other: Distribution, weight: float) -> float:
        """The mass of (weight·p - q)+."""
        return max(weight - other.probability(self.token), 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """A distribution over the whole vocabulary: ``probs`` [V] sum to 1."""

    probs: Array

    @classmethod
    def of(cls, masses: Array) -> Dense:
        """The distribution proportional to ``masses`` [V], not all zero."""
        return cls(masses / namespace(masses).sum(masses))

    def probability(self, token: int) -> float:
        """P(token)."""
        return float(self.probs[token])

    def pick(self, uniform: float) -> int:
        """The token at ``uniform`` in [0, 1) of the cumulative distribution."""
        xp = namespace(self.probs)
        cumulative = xp.cumulative_sum(self.probs)
        threshold = uniform * cumulative[-1:]
        index = int(xp.searchsorted(cumulative, threshold, side="right")[0])
        # a parallel sum (on a GPU) need not rise monotonically: never return a token without mass
        has_mass = index < cumulative.shape[0] and float(self.probs[index]) > 0.0
        return index if has_mass else int(xp.argmax(self.probs))

    def minus(self, other: Distribution, weight: float = 1.0) -> Distribution:
        """norm((weight·p - q)+), the residual after a rejection; p itself where rounding leaves nothing."""
        rest = self._above(other, weight)
        return Dense.of(rest) if float(namespace(rest).sum(rest)) > 0.0 else self

    def excess(self, other: Distribution, weight: float) -> float:
        """The mass of (weight·p - q)+."""
        rest = self._above(other, weight)
        return float(namespace(rest).sum(rest))

    def _above(self, other: Distribution, weight: float) -> Array:
        """(weight·p - q)+ [V], for a weight of at most 1."""
        xp = namespace(self.probs)
        masses = self.probs if weight == 1.0 else weight * self.probs
        if isinstance(other, OneHot):
            rest = xp.asarray(masses, copy=True)
            rest[other.token] = 0.0
            return rest
        rest = masses - alike(other.probs, masses)  # a draft model may run elsewhere
        return xp.where(rest > 0.0, rest, xp.zeros_like(rest))


Distribution: TypeAlias = "OneHot | Dense"


# -- rows --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The flat set of rows of one pass, as int64 arrays [R].

    Row r belongs to the sequence in ``slots[r]``, stands at ``positions[r]`` of its text and owns cell
    ``cells[r]`` of its slot's cache, where its keys and values are written; rows of one slot have different
    cells. In a chain the cell is the position, and a row sees the cells ``[0, positions[r]]`` of its own
    slot: rolling back is writing at a smaller position next time.

    In a tree, ``lineage`` [R, D] lists the cells of each row's ancestors from the root of the tree down to
    the row itself (its own cell again up to width D), and the row sees those and the cells below the root.
    """

    slots: Integers
    positions: Integers
    lineage: Integers | None = None

    @classmethod
    def of(cls, slots: Sequence[int], positions: Sequence[int]) -> Rows:
        """Rows from plain integers."""
        assert len(slots) == len(positions)
        return cls(np.asarray(slots, dtype=np.int64), np.asarray(positions, dtype=np.int64))

    @classmethod
    def trees(cls, slots: Sequence[int], cells: Sequence[int], parents: Sequence[int]) -> Rows:
        """Rows that follow the row ``parents[r]`` of this pass, which comes before them; -1 is a root."""
        lines: list[list[int]] = []
        for cell, parent in zip(cells, parents, strict=True):
            lines.append([*(lines[parent] if parent >= 0 else ()), cell])
        return cls.along(slots, lines)

    @classmethod
    def along(cls, slots: Sequence[int], lines: Sequence[list[int]]) -> Rows:
        """Rows at the ends of ``lines``, each of which lists the cells from the root of its tree to its own."""
        width = max(map(len, lines))
        lineage = np.asarray([line + line[-1:] * (width - len(line)) for line in lines], dtype=np.int64)
        depths = np.asarray([len(line) - 1 for line in lines], dtype=np.int64)
        return cls(np.asarray(slots, dtype=np.int64), lineage[:, 0] + depths, lineage)

    @property
    def cells(self) -> Integers:
        """The cell of each row in its slot's cache."""
        return self.positions if self.lineage is None else self.lineage[:, -1]

    def __len__(self) -> int:
        return len(self.slots)

    def take(self, indices: Sequence[int] | Integers) -> Rows:
        """The given rows."""
        index = np.asarray(indices, dtype=np.int64)
        lineage = None if self.lineage is None else self.lineage[index]
        return Rows(self.slots[index], self.positions[index], lineage)


# -- drafting and verifying -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """Guesses for one sequence: a chain, or with ``parents`` a tree.

    ``tokens[i]`` follows ``tokens[parents[i]]``, or the pending token where that is -1; parents come before
    their children. ``laws[i]`` is the distribution that ``tokens[i]`` was sampled from, given all tokens
    before it: a sibling that was drawn without replacement has the law without the siblings drawn before.
    ``laws`` None means that the tokens were chosen deterministically. Row 0 of a draft is the pending token,
    row i + 1 ``tokens[i]``. ``hidden`` [h, d] are states after ``layer`` layers of its first h rows:
    verification resumes there; ``layer`` lists one for each of these rows where they differ. ``predicted`` are the
    indices of tokens that come from the user's prediction. ``chances[d]`` is how likely the chain's token at depth
    d is thought to hold if those before it do, known before it was drawn; empty where the drafter does not say.
    ``watch`` names layers whose outputs in verification, and the target's logits, the drafter will look at
    (`Context.watched`); None: it will not. Tokens may be `Unseen`: looking at one waits for the device.
    """

    tokens: tuple[int, ...] | Unseen = ()
    laws: tuple[Distribution, ...] | None = None
    hidden: Array | None = None
    layer: int | tuple[int, ...] = 0
    parents: tuple[int, ...] | None = None
    predicted: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()
    watch: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        assert self.laws is None or len(self.laws) == len(self.tokens)
        assert (self.hidden is None) == (self.layer == 0)
        assert isinstance(self.layer, int) or (self.hidden is not None and len(self.layer) == self.hidden.shape[0])
        if self.parents is not None:
            assert len(self.parents) == len(self.tokens)
            assert all(-1 <= parent < i for i, parent in enumerate(self.parents))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def widths(self) -> tuple[int, ...]:
        """How many tokens there are at each depth: one each for a chain."""
        if self.parents is None:
            return (1,) * len(self.tokens)
        depths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        return tuple(depths.count(depth) for depth in range(max(depths, default=-1) + 1))

    @property
    def starts(self) -> tuple[int, ...]:
        """For each row the layer at which verification begins."""
        rows, held = len(self) + 1, 0 if self.hidden is None else self.hidden.shape[0]
        kept = (self.layer,) * held if isinstance(self.layer, int) else self.layer
        return (*kept, *(0,) * (rows - held))[:rows]

    def before(self, row: int) -> tuple[int, ...]:
        """The draft tokens up to and including that of ``row``: what the token after it follows."""
        if self.parents is None:
            return self.tokens[:row]
        branch = []
        while row > 0:
            branch.append(self.tokens[row - 1])
            row = self.parents[row - 1] + 1
        return tuple(reversed(branch))


class Verdict(NamedTuple):
    """``accepted`` draft tokens hold; ``bonus`` is the one token that the target adds.

    They are the first ones of a chain, and of a tree those whose indices ``branch`` lists, in order. There is
    no bonus token where the last accepted token ended the text.
    """

    accepted: int
    bonus: int | None
    branch: tuple[int, ...] | None = None
