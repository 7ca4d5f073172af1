"""What passes cost by what they read: mixtures of experts, batches, and where arithmetic takes over.

A pass takes as long as its weights take to be read, or its rows to be computed, whichever is longer. A dense model
reads all of its weights whatever the rows; a mixture the experts that some row has, of which T rows with K of E
each choose E (1 - (1 - K/E)^T) different ones, if choices are even (MoESD, arXiv 2505.19645). Rows of one text
are no such choice: of a published model two neighbours share four times as much. Costs are better measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec.control import MAX_GAMMA
from selfspec.errors import OptionError

if TYPE_CHECKING:
    from selfspec.model.config import ModelConfig

_MOST = 100_000


def distinct_experts(experts: int, per_token: int, rows: int) -> float:
    """How many of ``experts`` the rows of a pass have together, each ``per_token`` at random; see the module."""
    return experts * (1.0 - (1.0 - per_token / experts) ** rows)


@dataclass(frozen=True)
class Traffic:
    """A model as what its passes read.

    ``share`` of what a pass of one row reads are routed experts, ``per_token`` of ``experts`` for each row; 0 is a
    dense model. ``ridge`` is how many rows take as long to compute as a pass of one row takes to read. Costs are in
    passes of one row. Raises OptionError for a value outside its range.
    """

    share: float = 0.0
    experts: int = 1
    per_token: int = 1
    ridge: float = math.inf

    def __post_init__(self) -> None:
        if not 1 <= self.experts <= _MOST:
            raise OptionError(f"experts is {self.experts}; it must be 1 to {_MOST}")
        if not 1 <= self.per_token <= self.experts:
            raise OptionError(f"per_token is {self.per_token}; of {self.experts} experts it must be 1 to that")
        if not 0.0 <= self.share <= 1.0:
            raise OptionError(f"expert share is {self.share}; it must be a share of one pass, from 0 to 1")
        if not self.ridge >= 1.0:
            raise OptionError(f"ridge is {self.ridge}; it must be at least 1 row")

    @classmethod
    def of(cls, config: ModelConfig) -> Traffic:
        """That of a model, by its weights, all in one precision; of several kinds of mixture the first counts."""
        layers = [facts for facts in map(config.layer, range(config.num_layers)) if facts.experts]
        mixtures = [facts.experts for facts in layers if facts.experts]
        if not mixtures:
            return cls()
        routed = sum(3 * config.hidden_size * mixture.width * mixture.per_token for mixture in mixtures)
        return cls(min(routed / config.pass_parameters, 1.0), mixtures[0].count, mixtures[0].per_token)

    def cost(self, rows: int, per_token: int | None = None) -> float:
        """A pass of so many rows; ``per_token`` experts each instead of as many as the model has."""
        chosen = self.per_token if per_token is None else per_token
        read = distinct_experts(self.experts, chosen, rows) / self.per_token
        computed = rows * (1.0 - self.share + self.share * chosen / self.per_token)
        return max(1.0 - self.share + self.share * read, computed / self.ridge)

    def row_costs(self, texts: int = 1, gamma: int = MAX_GAMMA) -> list[float]:
        """v(1), ..., v(γ + 1) of each of ``texts`` that share their passes: relative to one row of each."""
        plain = self.cost(texts)
        return [self.cost(texts * rows) / plain for rows in range(1, gamma + 2)]

    def draft_cost(self, per_token: int, texts: int = 1) -> float:
        """The c of a draft step with fewer experts, of ``texts`` that share their passes."""
        if not 1 <= per_token <= self.per_token:
            raise OptionError(
                f"draft experts is {per_token}; each token has {self.per_token}, so it must be 1 to that"
            )
        return self.cost(texts, per_token) / self.cost(texts)
