"""Fewer experts: the same mixture drafts with some of the experts that each token would have (SS-MoE, WWW 2026)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from selfspec.drafters.base import inherited, option
from selfspec.drafters.comb import CombOptions
from selfspec.drafters.self_draft import FixedSelfDraft
from selfspec.drafters.utility import UtilityGate
from selfspec.errors import OptionError
from selfspec.traffic import Traffic
from selfspec.types import LayerPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.context import Context, Text
    from selfspec.model.config import ModelConfig
    from selfspec.rounds import Commit
    from selfspec.types import Draft


@dataclass(frozen=True)
class MoeOptions(CombOptions):
    """Options of `Moe`."""

    gamma: int = inherited(CombOptions, "gamma", 2)
    experts: int | None = option(None, "Experts per token of the draft. Default: half of the model's.")
    utility: bool = option(
        True, "Draft only while that is expected to pay for the experts that more rows of a verification read."
    )


class Moe(FixedSelfDraft):
    """Drafts with the router's best few experts, weighted as the family weights the chosen ones.

    Verification reads more experts the more rows it has (`Traffic`), so its rows are not free: γ is small by
    default, and a gate judges every round by what reading costs. It counts with the texts that share the pass where
    that cannot change a text: a sampled one is what it would be alone.
    """

    Options = MoeOptions
    name = "moe"
    summary = "the same mixture of experts with fewer experts per token; no extra weights or KV"
    paper = "SS-MoE (WWW 2026); the gate: Cascade (arXiv 2506.20675)"
    pays = "in medium batches of a mixture, by little, or where its experts are read from slow memory"

    def __init__(self, options: MoeOptions, config: ModelConfig) -> None:
        mixtures = [facts.experts for facts in map(config.layer, range(config.num_layers)) if facts.experts]
        if not mixtures:
            raise OptionError("moe drafts with fewer experts per token; this model is no mixture of experts")
        most = min(mixture.per_token for mixture in mixtures)
        experts = max(1, most // 2) if options.experts is None else options.experts
        if not 1 <= experts < most:
            raise OptionError(
                f"experts is {experts}; each token of this model has {most}, so a draft must have 1 to {most - 1}"
                if most > 1
                else "each token of this model has one expert; moe cannot draft with fewer"
            )
        super().__init__(options, config, replace(LayerPlan.full(config.num_layers), experts=experts))
        self._experts, self._traffic = experts, Traffic.of(config)
        self._gates: dict[Text, UtilityGate] = {}
        self._has_gate = options.utility
        self._known: dict[int, tuple[float, list[float]]] = {}

    @classmethod
    def variants(cls, config: ModelConfig, options: dict[str, Any]) -> list[dict[str, Any]]:  # noqa: ARG003
        """One, without a gate: `auto` has its own."""
        return [{**options, "utility": False}]

    def begin(self, text: Text) -> None:
        """Open a gate."""
        super().begin(text)
        self._gates[text] = UtilityGate()

    def observe(self, text: Text, commit: Commit) -> None:
        """Tell it what became of the draft."""
        super().observe(text, commit)
        self._gates[text].learn(commit.depth, commit.accepted)

    def end(self, text: Text) -> None:
        """Drop it."""
        super().end(text)
        del self._gates[text]

    def refine(
        self, context: Context, texts: Sequence[Text], gammas: Sequence[int], drafts: Sequence[Draft]
    ) -> list[Draft]:
        """As long as the gate of each text allows, and no longer."""
        if self._has_gate:
            gammas = [self._allowed(text, len(texts), gamma) for text, gamma in zip(texts, gammas, strict=True)]
        return super().refine(context, texts, gammas, drafts)

    def _allowed(self, text: Text, texts: int, gamma: int) -> int:
        is_fixed = text.sampling.is_greedy or text.sampling.coupled  # whatever is drafted, the text is the same
        sharing = texts if is_fixed else 1
        c, v = self._costs(sharing)
        return self._gates[text].choose(gamma, c, v)

    def _costs(self, texts: int) -> tuple[float, list[float]]:
        """What a draft step and verifications take where so many texts share them; computed once."""
        if texts not in self._known:
            v = self._traffic.row_costs(texts, self.options.gamma)
            self._known[texts] = (self._traffic.draft_cost(self._experts, texts), v)
        return self._known[texts]
