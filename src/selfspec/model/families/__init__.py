"""Per-architecture facts, as data.

Which checkpoints are understood, what their layers compute, and what their weights are called. Canonical weight
names are those of the Hugging Face implementation.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from selfspec.model.families.base import (
    Counts,
    Family,
    Layout,
    Weight,
    all_weights,
    count,
    global_weights,
    layer_weights,
    sizes_of,
)
from selfspec.model.families.catalogue import FAMILIES
from selfspec.model.families.gguf_weights import GgufWeight, gguf_names, gguf_weights
from selfspec.model.families.read import config_from_hf

if TYPE_CHECKING:
    from collections.abc import Container

    from selfspec.model.config import ModelConfig

__all__ = [
    "FAMILIES",
    "Family",
    "GgufWeight",
    "Layout",
    "Weight",
    "config_from_hf",
    "counts",
    "family_of",
    "gguf_names",
    "gguf_weights",
    "is_ignored",
    "layout_of",
    "sizes_of",
    "weight_shapes",
    "weights_by_role",
    "with_layout_of",
]


def family_of(config: ModelConfig) -> Family:
    """The facts of a model that was read by this module."""
    return next(family for family in FAMILIES if family.name == config.family)


def layout_of(config: ModelConfig) -> Layout:
    """What the weights of this model are called."""
    return family_of(config).layouts[config.layout]


def with_layout_of(config: ModelConfig, names: Container[str]) -> ModelConfig:
    """The model with the first layout of its family whose weights are all among ``names``, else unchanged."""
    for index in range(len(family_of(config).layouts)):
        chosen = replace(config, layout=index)
        if all(name in names for name in weight_shapes(chosen)):
            return chosen
    return config


def counts(config: ModelConfig) -> Counts:
    """Numbers of weights."""
    return count(layout_of(config), config)


# -- weights ----------------------------------------------------------------------------------------------


def weights_by_role(config: ModelConfig, layer: int | None = None) -> dict[str, Weight]:
    """The weights of a layer, or (None) of embedding, final norm and head, with full names."""
    layout = layout_of(config)
    found = global_weights(layout, config) if layer is None else layer_weights(layout, config, layer)
    return {weight.role: weight for weight in found}


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of every weight; none for a head that is tied."""
    return {weight.name: shape for weight, shape, _ in all_weights(layout_of(config), config)}


def is_ignored(name: str, config: ModelConfig) -> bool:
    """Whether a tensor beyond ``weight_shapes`` is harmless: a derived buffer, or a copy of a tied head."""
    heads = {weight.name for weight in layout_of(config).globals if weight.role == "head"}
    return (config.tied_head and name in heads) or bool(re.fullmatch(family_of(config).ignored, name))
