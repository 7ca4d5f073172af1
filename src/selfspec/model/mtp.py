"""The multi-token module that some checkpoints carry: one more layer, which says the token after the next.

Qwen3-Next and Qwen3.5 have one under ``mtp.``: a matrix that joins the next token's embedding and the last state,
each through its norm, a layer as the model's own with attention, and a norm before the model's LM head. The classes
of transformers leave these weights out, so only the files of a checkpoint have them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from selfspec.errors import CorruptModelError
from selfspec.model.families import family_of
from selfspec.model.families.base import Weight, layer_weights, sizes_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from selfspec.model.config import ModelConfig

PREFIX = "mtp."
_ENDS = (
    Weight("fc", "fc.weight", ("d", "2d")),
    Weight("token_norm", "pre_fc_norm_embedding.weight", ("d",)),
    Weight("state_norm", "pre_fc_norm_hidden.weight", ("d",)),
    Weight("norm", "norm.weight", ("d",)),
)


class Module(NamedTuple):
    """A module as a model of one layer, and its weights by role: those of the layer, and of what is around it."""

    config: ModelConfig
    layer: Mapping[str, Weight]
    around: Mapping[str, Weight]


def module_of(config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]) -> Module:
    """The module of a model that has tensors of these ``shapes`` under `PREFIX`.

    Raises CorruptModelError where they are not those of one of the model's layers with attention.
    """
    kinds = dict.fromkeys(config.layer(i) for i in range(config.num_layers) if config.layer(i).attends)
    around = {weight.role: weight._replace(name=PREFIX + weight.name) for weight in _ENDS}
    lacking: list[list[str]] = []
    for kind in kinds:
        alone = replace(config, num_layers=1, layers=(kind,))
        for layout in family_of(config).layouts:
            own = list(layer_weights(replace(layout, prefix=f"{PREFIX}layers."), alone, 0))
            sizes = sizes_of(alone, kind)
            wanted = {w.name: tuple(sizes[dim] for dim in w.dims) for w in (*own, *around.values())}
            wrong = [name for name, shape in wanted.items() if shapes.get(name) != shape]
            if not wrong:
                return Module(alone, {weight.role: weight for weight in own}, around)
            lacking.append(wrong)
    least = min(lacking, key=len, default=["a layer with attention"])
    raise CorruptModelError(
        f"the multi-token module of this {config.family} checkpoint lacks {least[0]}, or has it in another shape: "
        "download the checkpoint again"
    )
