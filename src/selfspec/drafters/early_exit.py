"""Early exit: the same model drafts with its first k layers and its own head (LayerSkip, arXiv 2404.16710).

What the draft computed below layer k is what the target would compute, so verification resumes there from
the kept hidden states: the shallow layers run once per row, and the draft needs no cache of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec.drafters.base import option
from selfspec.drafters.comb import CombOptions
from selfspec.drafters.steps import Growing, StepDrafter
from selfspec.errors import OptionError
from selfspec.types import Array, Draft, LayerPlan, namespace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.context import Context
    from selfspec.model.config import ModelConfig


@dataclass(frozen=True)
class EarlyExitOptions(CombOptions):
    """Options of `EarlyExit`."""

    exit_layer: int | None = option(
        None,
        "Layer k at which the draft leaves: it runs layers [0, k), 1 <= k < layers. Default: 7/8 of them.",
    )


class EarlyExit(StepDrafter):
    """Drafts with layers [0, k) and the model's own final norm and head."""

    Options = EarlyExitOptions
    name = "early_exit"
    summary = "the same model, leaving at layer k, with its own head; no extra weights or KV"

    def __init__(self, options: EarlyExitOptions, config: ModelConfig) -> None:
        super().__init__(options, config)
        layer = options.exit_layer
        if config.num_layers < 2:
            raise OptionError("this model has one layer; an early exit needs at least two")
        if layer is None:
            layer = max(1, config.num_layers * 7 // 8)
        self._plan = LayerPlan.exit_at(config.num_layers, layer)

    @property
    def plan(self) -> LayerPlan:
        """The layers of one draft step."""
        return self._plan

    def step(self, context: Context, growing: Sequence[Growing]) -> Array:
        """Run layers [0, k) and the head over the last token of each draft; the states are kept."""
        texts, depth = [chain.text for chain in growing], growing[0].depth
        hidden = context.step(self._plan, texts, [chain.last for chain in growing], depth)
        for i, chain in enumerate(growing):
            chain.hidden.append(hidden[i : i + 1])
        return context.runtime.logits(hidden)

    def finish(self, chain: Growing) -> Draft:
        """The draft with its states, where verification resumes: a row more than tokens if it was stopped."""
        if not chain.hidden:
            return Draft()
        return chain.comb.draft(namespace(chain.hidden[0]).concat(chain.hidden, axis=0), self._plan.shared_prefix)
