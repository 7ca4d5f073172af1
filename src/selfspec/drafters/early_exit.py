"""Early exit: the same model drafts with its first k layers and its own head (LayerSkip, arXiv 2404.16710)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from selfspec.drafters.base import option
from selfspec.drafters.comb import CombOptions
from selfspec.drafters.self_draft import FixedSelfDraft
from selfspec.errors import OptionError
from selfspec.types import LayerPlan

if TYPE_CHECKING:
    from selfspec.model.config import ModelConfig


@dataclass(frozen=True)
class EarlyExitOptions(CombOptions):
    """Options of `EarlyExit`."""

    exit_layer: int | None = option(
        None,
        "Layer k at which the draft leaves: it runs layers [0, k), 1 <= k < layers. Default: 7/8 of them.",
    )


class EarlyExit(FixedSelfDraft):
    """Drafts with layers [0, k): all that the draft ran is what the target would compute."""

    Options = EarlyExitOptions
    name = "early_exit"
    summary = "the same model, leaving at layer k, with its own head; no extra weights or KV"

    def __init__(self, options: EarlyExitOptions, config: ModelConfig) -> None:
        layer = options.exit_layer
        if config.num_layers < 2:
            raise OptionError("this model has one layer; an early exit needs at least two")
        if layer is None:
            layer = max(1, config.num_layers * 7 // 8)
        super().__init__(options, config, LayerPlan.exit_at(config.num_layers, layer))

    @classmethod
    def variants(cls, config: ModelConfig, options: dict[str, Any]) -> list[dict[str, Any]]:
        """An exit after an eighth, a quarter and half of the layers; later ones cannot pay, however right."""
        if options.get("exit_layer") is not None:
            return [options]
        layers = sorted({max(1, config.num_layers // part) for part in (8, 4, 2)} - {config.num_layers})
        return [{**options, "exit_layer": layer} for layer in layers]
