"""CLaSp: layers are skipped by what the hidden states of the latest tokens say (arXiv 2505.24196)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from selfspec.drafters.base import inherited, option
from selfspec.drafters.comb import CombOptions
from selfspec.drafters.self_draft import SelfDraft, require_rows_aside
from selfspec.drafters.skip_search import Choice, candidates, fastest, layers_of, sub_layers_of
from selfspec.errors import OptionError
from selfspec.types import require_least

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.context import Context, Text
    from selfspec.model.config import ModelConfig
    from selfspec.types import Draft, LayerPlan

LEAST_COSINE = 0.5
"""KnapSpec gives up a state whose mean cosine to the full model's is below this."""


@dataclass(frozen=True)
class ClaspOptions(CombOptions):
    """Options of `Clasp`."""

    gamma: int = inherited(CombOptions, "gamma", 10)
    confidence: float = inherited(CombOptions, "confidence", 0.7)
    skips: int | None = option(None, "Layers to skip. Default: a quarter of them.")
    interval: int = option(64, "Search again after this many rounds.")
    knapsack: bool = option(
        False,
        "Skip attention and MLP apart, as many as give the best expected time per token (KnapSpec), instead of "
        "--skips whole layers.",
    )
    references: int | None = option(None, "Latest tokens to compare hidden states at. Default: 1; knapsack: 5.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_least(self, skips=1)
        if self.skips is not None and self.knapsack:
            raise OptionError("knapsack chooses how much to skip; leave out skips")
        if self.interval < 1:
            raise OptionError(f"interval is {self.interval}; it must be at least 1 round")
        if self.references is not None and not 1 <= self.references <= 64:
            raise OptionError(f"references is {self.references}; it must be 1 to 64 tokens")


@dataclass
class _State:
    """What is kept for a text: its plan, the most tokens to draft with it, and the rounds since it was found."""

    choice: Choice | None = None
    rounds: int = 0


class Clasp(SelfDraft):
    """Searches a skip set for each text after its prefill, and again every ``interval`` rounds.

    The search costs about a pass over ``skips`` + 1 rows per reference token; it is counted as drafting.
    """

    Options = ClaspOptions
    name = "clasp"
    summary = "skips the layers that matter least to the latest tokens, found by dynamic programming as it writes"
    paper = "CLaSp (arXiv 2505.24196); with `knapsack` KnapSpec (2602.20217)"
    pays = "as `layer_skip`, on texts whose kind changes while they are written"

    def __init__(self, options: ClaspOptions, config: ModelConfig) -> None:
        super().__init__(options, config)
        self._settings = options
        self._skips = config.num_layers // 4 if options.skips is None else options.skips
        if not 1 <= self._skips < config.num_layers:
            raise OptionError(
                f"clasp would skip {self._skips} of {config.num_layers} layers; it must skip one and keep one"
            )
        require_rows_aside(self.name, config)
        self._references = options.references or (5 if options.knapsack else 1)
        self._states: dict[Text, _State] = {}
        self._latest: LayerPlan | None = None

    @property
    def plan(self) -> LayerPlan | None:
        """The plan found last, for whichever text."""
        return self._latest

    def plan_of(self, text: Text) -> LayerPlan:
        """The plan found for this text."""
        choice = self._states[text].choice
        assert choice is not None
        return choice.plan

    def begin(self, text: Text) -> None:
        """Nothing is known yet."""
        super().begin(text)
        self._states[text] = _State()

    def end(self, text: Text) -> None:
        """Drop what was found."""
        super().end(text)
        del self._states[text]

    def refine(
        self, context: Context, texts: Sequence[Text], gammas: Sequence[int], drafts: Sequence[Draft]
    ) -> list[Draft]:
        """Search where it is time, then draft."""
        most: list[int] = []
        for text, gamma in zip(texts, gammas, strict=True):
            state = self._states[text]
            if gamma > 0 and (state.choice is None or state.rounds >= self._settings.interval):
                state.choice, state.rounds = self._search(context, text), 0
                self._latest = state.choice.plan
            state.rounds += 1
            most.append(min(gamma, state.choice.gamma) if state.choice else 0)
        return super().refine(context, texts, most, drafts)

    def _search(self, context: Context, text: Text) -> Choice:
        options, length = self._settings, len(text.tokens)
        positions = np.arange(max(1, length - self._references), length)  # the pending token is the last
        if not options.knapsack:
            units = layers_of(self.config.num_layers)
            found = candidates(context, text, positions, units, self._skips)
            return Choice(found[-1].plan, options.gamma, 1.0)
        units = sub_layers_of(self.config, length)
        most = sum(unit.weight for unit in units) // 2
        found = candidates(context, text, positions, units, most, LEAST_COSINE)
        return fastest(context, found, length, options.gamma)
