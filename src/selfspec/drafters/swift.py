"""SWIFT: a skip set is searched while texts are generated, by how often it foretells them (arXiv 2410.06916).

A set leaves out a fixed share of the attention and MLP sub-layers between the first and the last layer. A round
tries one: random, every ``bayes_interval``-th by Bayesian optimisation; its matchness is the share of the latest
tokens that it holds for the likeliest. The best set drafts. The search ends with a set that is good enough, with a
long row of trials without a new leader, or with its budget.

Here rows are judged at their own places of the text, over the full model's keys and values, instead of the first
tokens of an answer over a clone of the prompt's cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from selfspec.drafters.base import option
from selfspec.drafters.proposals import Proposals
from selfspec.drafters.searched import SearchedDraft, SearchedOptions, every_second
from selfspec.drafters.skip_search import matchness
from selfspec.errors import OptionError
from selfspec.types import LayerPlan, Part, SubLayer, require_least

if TYPE_CHECKING:
    from selfspec.context import Context, Text
    from selfspec.model.config import ModelConfig
    from selfspec.rounds import Commit


@dataclass(frozen=True)
class SwiftOptions(SearchedOptions):
    """Options of `Swift`."""

    interval: int = option(1, "Search again after this many rounds.")
    bayes_interval: int = option(25, "Every so many new sets, ask the Bayesian optimiser instead of chance.")
    max_trials: int = option(1000, "Trials before the search ends.")
    patience: int = option(300, "Trials without a new best set, before the search ends.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_least(self, interval=1, bayes_interval=1, max_trials=1, patience=1)


def inner_steps(num_layers: int) -> list[SubLayer]:
    """The sub-layers between the first and the last layer, in order."""
    return [SubLayer(i, part) for i in range(1, num_layers - 1) for part in get_args(Part)]


class SetSearch:
    """The sets that were tried with their scores, and which leads.

    The window moves on with the text, and some windows are easy: a set that scored once has been lucky or not. So
    every other trial scores the leader again, on the window of now. The leader has the best mean score, counting
    the mean of all first scores as one of its own.
    """

    def __init__(self, options: SwiftOptions, num_layers: int) -> None:
        steps = inner_steps(num_layers)
        self.plan = every_second(num_layers)
        self.trials = 0
        self._leader: tuple[SubLayer, ...] = ()
        self._scores: dict[tuple[SubLayer, ...], list[float]] = {}
        self._sum = 0.0  # of all first scores
        self._failures = 0
        self._rounds = 0
        self._options = options
        self._proposals = Proposals(steps, int(len(steps) * options.skip_ratio), options.bayes_interval)

    @property
    def score(self) -> float:
        """Matchness of the leader, mean of its trials; 0 before the first."""
        scores = self._scores.get(self._leader, [0.0])
        return sum(scores) / len(scores)

    @property
    def is_over(self) -> bool:
        """Whether a set that was scored twice is good enough, or too many trials were made."""
        options = self._options
        is_enough = self.score > options.enough and len(self._scores[self._leader]) > 1
        return is_enough or self._failures >= options.patience or self.trials >= options.max_trials

    def due(self) -> bool:
        """Every ``interval`` rounds until it is over."""
        self._rounds += 1
        return not self.is_over and self._rounds % self._options.interval == 0

    def advance(self, context: Context, text: Text) -> None:
        """Try a new set, or the leader again; the rows of one draft step per token of the window."""
        self.trials += 1
        self._failures += 1
        is_new = self.trials % 2 == 1
        skipped = self._proposals.next() if is_new else self._leader
        plan = LayerPlan.without(self.plan.num_layers, skipped)
        score = matchness(context, text, plan, self._options.window)
        if is_new:
            self._proposals.tell(skipped, score)
            self._sum += score
        self._scores.setdefault(skipped, []).append(score)
        leader = max(self._scores, key=self._estimate)
        if leader != self._leader:
            self._leader, self._failures = leader, 0
            self.plan = LayerPlan.without(self.plan.num_layers, leader)

    def _estimate(self, skipped: tuple[SubLayer, ...]) -> float:
        """The mean score of a set that was tried, held back while it rests on few trials."""
        scores, first = self._scores[skipped], (self.trials + 1) // 2
        return (sum(scores) + self._sum / first) / (len(scores) + 1)

    def observe(self, commit: Commit) -> None:
        """Drafts teach nothing: sets are judged aside."""


class Swift(SearchedDraft):
    """Drafts with the best set found so far; each trial costs ``window`` rows of it, counted as drafting."""

    Options = SwiftOptions
    name = "swift"
    summary = "skips a set of sub-layers that is searched while it writes, and kept from text to text"
    paper = "SWIFT (arXiv 2410.06916)"
    pays = "as `layer_skip`, on a GPU, for many texts of one kind, which share what a search costs"

    options: SwiftOptions

    def __init__(self, options: SwiftOptions, config: ModelConfig) -> None:
        super().__init__(options, config)
        count = len(inner_steps(config.num_layers))
        if int(count * options.skip_ratio) < 1:
            raise OptionError(
                f"skip_ratio is {options.skip_ratio}, which is none of the {count} sub-layers that swift may skip "
                f"in this model; give at least {math.ceil(100 / count) / 100}"
            )

    def new_search(self) -> SetSearch:
        """Nothing tried yet. Raises OptionError where optuna is missing."""
        return SetSearch(self.options, self.config.num_layers)
