"""Layer skip: the same model without some attention and MLP sub-layers (Draft & Verify, arXiv 2309.08168)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec.drafters.base import option
from selfspec.drafters.comb import CombOptions
from selfspec.drafters.self_draft import FixedSelfDraft
from selfspec.errors import OptionError
from selfspec.types import LayerPlan

if TYPE_CHECKING:
    from selfspec.model.config import ModelConfig

FORM = "such as '12-17' (whole layers) or 'attention 7,20 mlp 3'"


@dataclass(frozen=True)
class LayerSkipOptions(CombOptions):
    """Options of `LayerSkip`."""

    skip: str = option(
        "",
        f"Sub-layers that the draft leaves out, {FORM}; `selfspec search-plan` finds good ones. Default: the "
        "attention of every second layer of the middle half.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.skip:
            _parsed(self.skip)


class LayerSkip(FixedSelfDraft):
    """Drafts with a fixed skip set; verification resumes below the first layer that it touches."""

    Options = LayerSkipOptions
    name = "layer_skip"
    summary = "the same model without chosen attention and MLP sub-layers; no extra weights or KV"

    def __init__(self, options: LayerSkipOptions, config: ModelConfig) -> None:
        layers = config.num_layers
        if layers < 2:
            raise OptionError("this model has one layer; a layer skip needs at least two")
        if options.skip:
            plan = plan_without(options.skip, layers)
        else:
            plan = LayerPlan.skipping(layers, attention=range(layers // 4 + 1, layers - layers // 4, 2))
        super().__init__(options, config, plan)


def plan_without(skip: str, num_layers: int) -> LayerPlan:
    """The full model without ``skip``, which `skip_of` writes.

    Raises OptionError where it cannot be read, names layers that the model does not have, or leaves nothing out
    or nothing to run.
    """
    sets = _parsed(skip)
    plan = LayerPlan.skipping(num_layers, sets["attention"], sets["mlp"])
    if not plan.steps:
        raise OptionError(f"skip {skip!r} leaves nothing of {num_layers} layers to draft with")
    return plan


def skip_of(plan: LayerPlan) -> str:
    """What ``plan`` leaves out, as `plan_without` reads it."""
    layers: dict[str, list[str]] = {"attention": [], "mlp": []}
    for step in plan.left_out:
        layers[step.part].append(str(step.layer))
    return " ".join(f"{part} {','.join(numbers)}" for part, numbers in layers.items() if numbers)


def _parsed(skip: str) -> dict[str, set[int]]:
    """Layers by part; numbers before the first word are whole layers."""
    sets: dict[str, set[int]] = {"attention": set(), "mlp": set()}
    targets = list(sets)
    for word in re.findall(r"[^\s,;]+", skip):
        if word in sets:
            targets = [word]
        elif found := re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", word):
            first, last = int(found[1]), int(found[2] or found[1])
            if first > last:
                raise OptionError(f"skip has the range {word!r}, which ends before it begins")
            for part in targets:
                sets[part].update(range(first, last + 1))
        else:
            raise OptionError(f"skip has {word!r}; it lists layers, {FORM}")
    if not any(sets.values()):
        raise OptionError(f"skip is {skip!r}, which names no layer; it lists layers, {FORM}")
    return sets
