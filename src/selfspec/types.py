"""The vocabulary: small frozen values that every part passes to the others.

Shapes use R rows, d hidden width, V vocabulary, L layers, γ drafted tokens. Ranges are half-open.
An ``Array`` is a NumPy array or a torch tensor; host-side integers (tokens, positions) are NumPy or Python.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import array_api_compat.numpy
import numpy as np
from array_api_compat import array_namespace

from selfspec.errors import OptionError
from selfspec.settings import Array, Integers, Prefix, Processor, Sampling, require_types

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "MAX_GAMMA",
    "Array",
    "Commit",
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
    "Round",
    "Rows",
    "Sampling",
    "Stats",
    "SubLayer",
    "Verdict",
    "namespace",
    "require_types",
]

Part: TypeAlias = Literal["attention", "mlp"]
FinishReason: TypeAlias = Literal["stop", "length"]
MAX_GAMMA = 64  # most tokens of a draft


def namespace(array: Array) -> Any:
    """The array-API namespace of ``array``; for NumPy without the look-up, which costs more than a small sum."""
    return array_api_compat.numpy if isinstance(array, np.ndarray) else array_namespace(array)


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

    def minus(self, _other: Distribution) -> Distribution:
        """norm((p - q)+): unchanged, since a draft can only be rejected where p is zero."""
        return self


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

    def minus(self, other: Distribution) -> Distribution:
        """norm((p - q)+), the residual after a rejection; p itself where rounding leaves nothing."""
        xp = namespace(self.probs)
        if isinstance(other, OneHot):
            rest = xp.asarray(self.probs, copy=True)
            rest[other.token] = 0.0
        else:
            rest = self.probs - other.probs
            rest = xp.where(rest > 0.0, rest, xp.zeros_like(rest))
        return Dense.of(rest) if float(xp.sum(rest)) > 0.0 else self


Distribution: TypeAlias = "OneHot | Dense"


# -- layers and rows --------------------------------------------------------------------------------------


class SubLayer(NamedTuple):
    """One sub-layer; as a tap, the residual stream right after it: ``SubLayer(i)`` is the output of layer i."""

    layer: int
    part: Part = "mlp"


@dataclass(frozen=True)
class LayerPlan:
    """Which sub-layers of a model with ``num_layers`` layers a pass runs, in ascending order.

    Early exit and layer skip are one concept: ``exit_at`` keeps ``[0, k)``, ``skipping`` leaves sub-layers out,
    ``span`` keeps what lies in a range of layers (verification resumes with it).
    """

    num_layers: int
    attention: tuple[int, ...]
    mlp: tuple[int, ...]

    @classmethod
    def full(cls, num_layers: int) -> LayerPlan:
        """Everything: the target."""
        layers = tuple(range(num_layers))
        return cls(num_layers, layers, layers)

    @classmethod
    def exit_at(cls, num_layers: int, layer: int) -> LayerPlan:
        """Early exit: layers ``[0, layer)``; ``layer`` must lie in ``[1, num_layers)``."""
        if not 1 <= layer < num_layers:
            raise OptionError(
                f"exit layer is {layer}; this model has {num_layers} layers, so it must be 1 to {num_layers - 1}"
            )
        return cls.full(num_layers).span(0, layer)

    @classmethod
    def skipping(cls, num_layers: int, attention: Iterable[int] = (), mlp: Iterable[int] = ()) -> LayerPlan:
        """Everything but the given attention and MLP sub-layers."""
        skipped = {"attention": set(attention), "mlp": set(mlp)}
        for part, layers in skipped.items():
            if wrong := sorted(layer for layer in layers if not 0 <= layer < num_layers):
                raise OptionError(f"cannot skip {part} {wrong}: this model has layers 0 to {num_layers - 1}")
        kept = {part: tuple(i for i in range(num_layers) if i not in out) for part, out in skipped.items()}
        return cls(num_layers, kept["attention"], kept["mlp"])

    def span(self, start: int, stop: int) -> LayerPlan:
        """The part of this plan that lies in layers ``[start, stop)``."""
        return replace(
            self,
            attention=tuple(i for i in self.attention if start <= i < stop),
            mlp=tuple(i for i in self.mlp if start <= i < stop),
        )

    @cached_property
    def steps(self) -> tuple[SubLayer, ...]:
        """The sub-layers in the order in which they run."""
        steps = [SubLayer(i, "attention") for i in self.attention] + [SubLayer(i, "mlp") for i in self.mlp]
        return tuple(sorted(steps, key=lambda step: (step.layer, step.part != "attention")))

    @cached_property
    def shared_prefix(self) -> int:
        """How many leading layers equal the full model's: verification resumes at this layer."""
        whole = set(self.attention) & set(self.mlp)
        return next((i for i in range(self.num_layers) if i not in whole), self.num_layers)

    @property
    def row_layers(self) -> float:
        """Layers that one row pays for; a sub-layer counts half."""
        return (len(self.attention) + len(self.mlp)) / 2

    def __str__(self) -> str:
        if self == self.full(self.num_layers):
            return f"full {self.num_layers}"
        prefix = self.shared_prefix
        if self == self.full(self.num_layers).span(0, prefix):
            return f"exit {prefix}/{self.num_layers}"
        out = [
            f"{part} {','.join(str(i) for i in range(self.num_layers) if i not in kept)}"
            for part, kept in (("attention", self.attention), ("mlp", self.mlp))
            if len(kept) < self.num_layers
        ]
        return f"skip {' '.join(out)} of {self.num_layers}"


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The flat set of rows of one pass, as int64 arrays [R].

    Row r belongs to the sequence in ``slots[r]``, stands at ``positions[r]`` of its text and owns cell
    ``positions[r]`` of its slot's cache, where its keys and values are written. It sees the cells
    ``[0, positions[r]]`` of its own slot: rolling back is writing at a smaller position next time.
    Rows of one slot must have different positions.
    """

    slots: Integers
    positions: Integers

    @classmethod
    def of(cls, slots: Sequence[int], positions: Sequence[int]) -> Rows:
        """Rows from plain integers."""
        assert len(slots) == len(positions)
        return cls(np.asarray(slots, dtype=np.int64), np.asarray(positions, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.slots)

    def take(self, indices: Sequence[int] | Integers) -> Rows:
        """The given rows."""
        index = np.asarray(indices, dtype=np.int64)
        return Rows(self.slots[index], self.positions[index])


# -- drafting and verifying -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A chain of guesses for one sequence.

    ``laws[i]`` is the distribution that ``tokens[i]`` was sampled from; ``laws`` None means that the tokens
    were chosen deterministically. ``hidden`` [h, d] are states after ``layer`` layers of the rows
    [pending, tokens[0], ...]: verification resumes there, h at most ``len(tokens) + 1``.
    """

    tokens: tuple[int, ...] = ()
    laws: tuple[Distribution, ...] | None = None
    hidden: Array | None = None
    layer: int = 0

    def __post_init__(self) -> None:
        assert self.laws is None or len(self.laws) == len(self.tokens)
        assert (self.hidden is None) == (self.layer == 0)

    def __len__(self) -> int:
        return len(self.tokens)


class Verdict(NamedTuple):
    """The first ``accepted`` draft tokens hold; ``bonus`` is the one token that the target adds.

    There is no bonus token where the last accepted token ended the text.
    """

    accepted: int
    bonus: int | None


@dataclass(frozen=True, slots=True)
class Commit:
    """What one round added to one sequence.

    ``tokens`` are final, cut where plain decoding would have stopped; the first ``accepted`` of them are
    draft tokens, the bonus token follows unless the text ended before it. ``drafted`` tokens were proposed.
    """

    sequence: int
    tokens: tuple[int, ...]
    drafted: int
    accepted: int
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of the loop: draft, verify, commit; ``index`` 0 is the prefill, which drafts nothing.

    Times are seconds of the loop's clock since decoding began. Row-layers count layers times rows.
    """

    index: int
    commits: tuple[Commit, ...]
    started: float
    drafted_at: float
    ended: float
    draft_row_layers: float
    verify_row_layers: float


@dataclass(slots=True)
class Stats:
    """Sums over the rounds of a generation; names follow vLLM where it has them.

    The mean accepted length τ includes the bonus token: tokens per round of the rounds after the prefill.
    """

    texts: int = 0
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_row_layers: float = 0.0
    verify_row_layers: float = 0.0
    prefill_row_layers: float = 0.0
    draft_seconds: float = 0.0
    ttft_seconds: float = 0.0
    seconds: float = 0.0
    drafted_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)

    def add(self, round_: Round) -> None:
        """Count one round."""
        self.tokens += sum(len(commit.tokens) for commit in round_.commits)
        self.seconds = round_.ended
        if round_.index == 0:
            self.texts += len(round_.commits)
            self.ttft_seconds = round_.ended
            self.prefill_row_layers += round_.verify_row_layers
            return
        self.rounds += len(round_.commits)
        self.draft_seconds += round_.drafted_at - round_.started
        self.draft_row_layers += round_.draft_row_layers
        self.verify_row_layers += round_.verify_row_layers
        for commit in round_.commits:
            self.drafted += commit.drafted
            self.accepted += commit.accepted
            _count(self.drafted_per_position, commit.drafted)
            _count(self.accepted_per_position, commit.accepted)

    @property
    def acceptance_rate(self) -> float | None:
        """α: accepted ÷ drafted; None when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_accepted_length(self) -> float | None:
        """τ: tokens per round, bonus included; None before the first round."""
        return (self.tokens - self.texts) / self.rounds if self.rounds else None

    @property
    def tokens_per_second(self) -> float:
        """All new tokens ÷ wall time from the call to the last token, prefill included."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Tokens after the first of each text ÷ wall time after it; None for a single token."""
        span = self.seconds - self.ttft_seconds
        return (self.tokens - self.texts) / span if self.tokens > self.texts and span > 0 else None


def _count(per_position: list[int], reached: int) -> None:
    per_position.extend([0] * (reached - len(per_position)))
    for i in range(reached):
        per_position[i] += 1
