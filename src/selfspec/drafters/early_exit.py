"""Early exit: the same model drafts with its first k layers and its own head (LayerSkip, arXiv 2404.16710)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any

from selfspec.drafters.adaptive_exit import AdaptiveExit
from selfspec.drafters.base import Drafter, DraftOptions, option
from selfspec.drafters.exit_head import ExitHead
from selfspec.drafters.learning_head import LearningHead, LearnOptions
from selfspec.drafters.self_draft import FixedSelfDraft
from selfspec.drafters.trimmed_exit import TrimmedExit, read_vocabulary
from selfspec.errors import OptionError
from selfspec.types import LayerPlan, require_defaults

if TYPE_CHECKING:
    from selfspec.model.config import ModelConfig

ADAPTIVE = "adaptive"
ALL = "all"


@dataclass(frozen=True)
class EarlyExitOptions(LearnOptions):
    """Options of `EarlyExit`."""

    exit_layer: str | int | None = option(
        None,
        "Layer k at which the draft leaves: it runs layers [0, k), 1 <= k < layers; or adaptive: exit and length "
        "are chosen in every round (DEL). Default: what the model's exits.json names, else 7/8 of the layers; "
        "with learn, a quarter.",
    )
    draft_vocabulary: str | None = option(
        None,
        "Tokens that drafts choose among: all, or a JSON file with their ids. Default: those of the model's "
        "exits.json, else all.",
        opens=True,
    )
    exits: str = option(
        "", "adaptive: layers to choose among, with commas. Default: an eighth, a quarter, half and three quarters."
    )
    shadows: int = option(8, "adaptive: look at what every exit would have said once in so many rounds.")
    row_price: float = option(
        0.15, "adaptive: what another row of a verification is taken to cost, as a share of a pass of one row."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "exit_layer", _layer(self.exit_layer))
        has_rows = self.draft_vocabulary not in (None, ALL)  # which are packed as those of a head
        if self.head is None and (self.any_target or (self.head_bits and not (self.learn or has_rows))):
            name = "any_target" if self.any_target else "head_bits"
            raise OptionError(f"{name} is {getattr(self, name)}, which only a trained head reads; give head, too")
        if (self.head is not None or self.learn) and self.is_adaptive:
            raise OptionError(
                f"exit_layer is {ADAPTIVE}, but a trained head has its own layer; leave exit_layer out"
            )
        if has_rows and (self.head is not None or self.learn or self.is_adaptive):
            other = f"exit_layer={ADAPTIVE}" if self.is_adaptive else "a trained head"
            raise OptionError(
                f"draft_vocabulary is {self.draft_vocabulary!r}, which {other} does not read; leave it out"
            )
        if not self.is_adaptive:
            why = f"which only exit_layer={ADAPTIVE} reads; leave it out"
            require_defaults(self, ("exits", "shadows", "row_price"), why)
            return
        if self.confidence or self.adaptive:
            name = "confidence" if self.confidence else "adaptive"
            raise OptionError(
                f"{name} is {getattr(self, name)}, but with exit_layer={ADAPTIVE} every exit learns its own "
                "threshold; leave it out"
            )
        if self.shadows < 1:
            raise OptionError(f"shadows is {self.shadows}; it must be at least 1 round")
        if not 0.0 <= self.row_price <= 1.0:
            raise OptionError(f"row_price is {self.row_price}; it must be from 0 (rows are free) to 1 (as a pass)")
        if self.exits and not re.fullmatch(r"\d{1,5}(,\d{1,5})*", self.exits):
            raise OptionError(f"exits is {self.exits!r}; it must be layers with commas, such as 4,8,15")

    @property
    def is_adaptive(self) -> bool:
        """Whether exits are chosen while it writes."""
        return self.exit_layer == ADAPTIVE

    def vocabulary_for(self, config: ModelConfig) -> tuple[int, ...]:
        """The tokens that drafts choose among; empty for all. Raises OptionError as `read_vocabulary`."""
        if self.draft_vocabulary is None:
            return config.exits.vocabulary if config.exits else ()
        return () if self.draft_vocabulary == ALL else read_vocabulary(self.draft_vocabulary)

    def candidates(self, num_layers: int) -> tuple[int, ...]:
        """The layers to choose among in a model of ``num_layers``, ascending. Raises OptionError as `LayerPlan`."""
        if not self.exits:
            shares = (max(1, num_layers * eighths // 8) for eighths in (1, 2, 4, 6))
            return tuple(sorted(set(shares)))
        layers = sorted({int(layer) for layer in self.exits.split(",")})
        for layer in layers:
            LayerPlan.exit_at(num_layers, layer)
        return tuple(layers)


def _layer(given: str | int | None) -> str | int | None:
    """A layer as a number, or the word."""
    if given is None or given == ADAPTIVE:
        return given
    if isinstance(given, str):
        number = int(given) if re.fullmatch(r"-?\d{1,5}", given) else None
    else:
        number = None if isinstance(given, bool) or not hasattr(given, "__index__") else index(given)
    if number is not None:
        return number
    raise OptionError(f"exit_layer is {given!r}; it must be an integer, or {ADAPTIVE}")


class EarlyExit(FixedSelfDraft):
    """Drafts with layers [0, k): all that the draft ran is what the target would compute."""

    Options = EarlyExitOptions
    name = "early_exit"
    summary = "the same model, leaving at layer k, with its own head; no extra weights or KV"
    paper = (
        "LayerSkip (arXiv 2404.16710); adaptive: DEL (2504.05598); heads: Kangaroo (2404.18911), AdaDecode "
        "(2506.03700)"
    )
    pays = (
        "on a model that was trained to leave early, or with a trained head; on an ordinary checkpoint it "
        "is slower than plain decoding"
    )

    def __init__(self, options: EarlyExitOptions, config: ModelConfig) -> None:
        super().__init__(options, config, LayerPlan.exit_at(config.num_layers, _exit_of(options, config)))

    @classmethod
    def for_options(cls, options: DraftOptions, config: ModelConfig) -> Drafter:
        """One with a fixed exit, an `ExitHead`, a `LearningHead`, or an `AdaptiveExit`."""
        assert isinstance(options, EarlyExitOptions)
        if options.learn:
            _require_layers(config)
            assert options.exit_layer is None or isinstance(options.exit_layer, int)
            return LearningHead(options, config, options.exit_layer)
        if options.head is not None:
            assert options.exit_layer is None or isinstance(options.exit_layer, int)
            return ExitHead(options, config, options.exit_layer)
        if not options.is_adaptive:
            if vocabulary := options.vocabulary_for(config):
                return TrimmedExit(options, config, _exit_of(options, config), vocabulary)
            return cls(options, config)
        _require_layers(config)
        return AdaptiveExit(options, config)

    @classmethod
    def variants(cls, config: ModelConfig, options: dict[str, Any]) -> list[dict[str, Any]]:
        """An exit after an eighth, a quarter and half of the layers; later ones cannot pay, however right.

        Where exits were trained, the first three of those.
        """
        if options.get("exit_layer") == ADAPTIVE:
            raise OptionError(f"auto chooses among exits itself; give it early_exit without exit_layer={ADAPTIVE}")
        if options.get("exit_layer") is not None or options.get("head") or options.get("learn"):
            return [options]
        layers = sorted({max(1, config.num_layers // part) for part in (8, 4, 2)} - {config.num_layers})
        if config.exits:
            layers = sorted(config.exits.layers[:3])
        return [{**options, "exit_layer": layer} for layer in layers]


def _exit_of(options: EarlyExitOptions, config: ModelConfig) -> int:
    """The fixed exit that is asked for, or noted, or the default."""
    _require_layers(config)
    layer = options.exit_layer
    if layer is None:
        layer = config.exits.layers[0] if config.exits else max(1, config.num_layers * 7 // 8)
    assert isinstance(layer, int), "`for_options` knows what drafts with adaptive exits"
    return layer


def _require_layers(config: ModelConfig) -> None:
    if config.num_layers < 2:
        raise OptionError("this model has one layer; an early exit needs at least two")
