"""ConfLayers: layers are skipped whose outputs look less confident than their neighbours' (arXiv 2604.14612).

The confidence of a layer is 1 - H / log d of the softmax over the d numbers that it adds to the residual stream: of
attention plus that of the MLP, averaged over the latest tokens. It is standardised over the layers between first
and last; one is skipped where it is below mean - λ · deviation of its neighbours. How many neighbours count follows
the second difference of the confidence and the depth; λ moves in steps of 0.05 until the share of skipped layers is
within its bounds. A set drafts for some rounds and is judged by its drafts; the best one stays.

The entropy over hidden numbers has no meaning of its own: it is a heuristic. Here the scored tokens stand at their
own places of the text, and λ moves until the bounds hold, which costs the published code a scoring pass a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from selfspec.drafters.base import inherited, option
from selfspec.drafters.searched import SearchedDraft, SearchedOptions, every_second
from selfspec.errors import OptionError
from selfspec.types import LayerPlan, on_host, require_least

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from selfspec.context import Context, Text
    from selfspec.rounds import Commit

    Floats: TypeAlias = NDArray[np.float64]

STEP = 0.05
"""By how much λ moves."""
SLACK = 0.25
"""How much more than ``skip_ratio`` may be skipped."""
_MOST_STEPS = 200  # of λ in one search


@dataclass(frozen=True)
class ConfLayersOptions(SearchedOptions):
    """Options of `ConfLayers`."""

    skip_ratio: float = inherited(SearchedOptions, "skip_ratio", 0.4)
    window: int = inherited(SearchedOptions, "window", 100)
    enough: float = inherited(SearchedOptions, "enough", 0.95)
    interval: int = option(30, "Search again after this many rounds.")
    max_trials: int = option(100, "Sets to try before the search ends.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.interval < 2:
            raise OptionError(f"interval is {self.interval}; it must be at least 2 rounds")
        require_least(self, max_trials=1)


def confidences(context: Context, text: Text, window: int) -> Floats:
    """Of each layer [L], over the latest ``window`` tokens that have a row; ``window`` full rows run aside."""
    last, full = len(text.tokens) - 1, context.full
    positions = np.arange(last - window, last)
    entered = context.runtime.embed(text.tokens[last - window : last], positions)
    _, tapped = context.replay(full, text, entered, positions, full.steps)
    stream = [on_host(state).astype(np.float64) for state in (entered, *(tapped[step] for step in full.steps))]
    parts = [_confidence(after - before) for before, after in pairwise(stream)]
    return np.asarray(parts).reshape(full.num_layers, 2) @ np.ones(2)


def _confidence(outputs: Floats) -> float:
    """1 - H(softmax) / log d, mean over the rows [R, d]."""
    shifted = outputs - outputs.max(axis=1, keepdims=True)
    masses = np.exp(shifted)
    totals = masses.sum(axis=1, keepdims=True)
    entropies = np.log(totals[:, 0]) - (masses * shifted).sum(axis=1) / totals[:, 0]
    return float(1.0 - entropies.mean() / np.log(outputs.shape[1]))


def thresholds(values: Floats, num_layers: int, strictness: float) -> Floats:
    """Below which a layer is skipped, for the standardised confidences [n] of the layers after the first.

    Layer i has up to w // 2 neighbours on either side, w = 2 + ⌊a g (i + 1) / L⌋: g is the second difference,
    scaled to mean 1/2, a five times how many of them are equal at the beginning. λ is ``strictness``.
    """
    bend = np.gradient(np.gradient(values))
    equal = int(np.argmax(bend != bend[0])) or len(bend)
    bend = _around_half((bend - bend.min()) / (np.ptp(bend) + 1e-8))
    found = []
    for i in range(len(values)):
        half = (2 + int(5 * equal * bend[i] * (i + 1) / num_layers)) // 2
        near = np.concatenate([values[max(0, i - half) : i], values[i + 1 : i + half + 1]])
        found.append(near.mean() - strictness * near.std())
    return np.asarray(found)


def _around_half(values: Floats) -> Floats:
    """Scaled and shifted to mean 1/2, as wide as [0, 1] allows; all 1/2 where they are equal."""
    mean = values.mean()
    spread = max(values.max() - mean, mean - values.min())
    if spread < 1e-8:
        return np.full_like(values, 0.5)
    scaled: Floats = np.clip(0.5 + 0.5 * (values - mean) / spread, 0.0, 1.0)
    return scaled


def chosen(confidence: Floats, skip_ratio: float, strictness: float) -> tuple[list[int], float]:
    """The layers to skip by the ``confidence`` [L] of all, and the λ that this took, beginning at ``strictness``.

    λ rises while more than ``skip_ratio`` + 0.25 of the inner layers are below their thresholds, and falls while
    fewer than ``skip_ratio`` are; where one step leads from one to the other, it is more.
    """
    inner = confidence[1:-1]
    values = (inner - inner.mean()) / (inner.std() + 1e-6)
    turned = False
    for _ in range(_MOST_STEPS):
        below = np.flatnonzero(values < thresholds(values, len(confidence), strictness))
        share = len(below) / len(inner)
        if share < skip_ratio:
            strictness, turned = strictness - STEP, True
        elif share > skip_ratio + SLACK and not turned:
            strictness += STEP
        else:
            break
    return (below + 1).tolist(), strictness


class LayerSearch:
    """The set that is judged, the best one, and λ."""

    def __init__(self, options: ConfLayersOptions, num_layers: int) -> None:
        self.plan = self._best = every_second(num_layers)
        self.trials = 0
        self.strictness = 0.0
        self._best_accepted = 0.0
        self._options = options
        self._counts = np.zeros(3)  # rounds, drafted, accepted with this set
        self._wants = True
        self._is_over = False

    def due(self) -> bool:
        """Whether the set has been judged."""
        return self._wants and not self._is_over

    def advance(self, context: Context, text: Text) -> None:
        """Choose by the latest tokens; a full row for each of the window."""
        confidence = confidences(context, text, self._options.window)
        layers, self.strictness = chosen(confidence, self._options.skip_ratio, self.strictness)
        if layers:  # else nothing would be saved: the set that is there goes on
            self.plan = LayerPlan.skipping(self.plan.num_layers, layers, layers)
        self.trials += 1
        self._counts[:] = 0
        self._wants = False

    def observe(self, commit: Commit) -> None:
        """Judge the set: by tokens a round after ``interval`` rounds, or sooner where it fails."""
        if self._is_over or self._wants:
            return
        self._counts += (1, commit.depth, commit.accepted)
        rounds, drafted, accepted = self._counts.tolist()
        mean, interval = accepted / rounds, self._options.interval
        if rounds == interval // 2 and mean < 1.0:
            self._propose_again()
        elif rounds >= interval:
            if mean > 4.0 and accepted > self._options.enough * drafted:
                self._is_over = True
                return
            if mean > self._best_accepted:
                self._best, self._best_accepted = self.plan, mean
            self._propose_again()

    def _propose_again(self) -> None:
        """Choose anew, unless the budget is spent: then the best set stays."""
        self._wants = True
        if self.trials >= self._options.max_trials:
            self.plan, self._is_over = self._best, True


class ConfLayers(SearchedDraft):
    """Drafts with the set that is judged now; choosing one costs ``window`` full rows, counted as drafting."""

    Options = ConfLayersOptions
    name = "conflayers"
    summary = "skips the layers whose outputs look least confident, chosen anew as it writes"
    paper = "ConfLayers (arXiv 2604.14612)"
    pays = "as `swift`; a choice costs a pass of all layers over `window` rows"

    options: ConfLayersOptions

    def new_search(self) -> LayerSearch:
        """Nothing known yet."""
        return LayerSearch(self.options, self.config.num_layers)
