"""Fewer experts: the same mixture drafts with some of the experts that each token would have (SS-MoE, WWW 2026)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from selfspec.drafters.base import option
from selfspec.drafters.comb import CombOptions
from selfspec.drafters.self_draft import FixedSelfDraft
from selfspec.errors import OptionError
from selfspec.types import LayerPlan

if TYPE_CHECKING:
    from selfspec.model.config import ModelConfig


@dataclass(frozen=True)
class MoeOptions(CombOptions):
    """Options of `Moe`."""

    gamma: int = option(2, "Most tokens to draft per round (γ); 0 drafts nothing.")
    experts: int | None = option(None, "Experts per token of the draft. Default: half of the model's.")


class Moe(FixedSelfDraft):
    """Drafts with the router's best few experts, weighted as the family weights the chosen ones.

    Verification reads E (1 - (1 - K/E)^T) distinct experts for T rows that choose K of E each at random (MoESD,
    arXiv 2505.19645), so its rows are not free: γ is small by default.
    """

    Options = MoeOptions
    name = "moe"
    summary = "the same mixture of experts with fewer experts per token; no extra weights or KV"

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
