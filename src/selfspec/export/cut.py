"""A layer plan as a model of its own: which layers it keeps, and what of them is silent."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from selfspec.errors import OptionError, UnsupportedModelError
from selfspec.model.families import weights_by_role

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from selfspec.model.config import ModelConfig
    from selfspec.plans import LayerPlan, Part

# The weights after which a sub-layer joins the residual stream: with zeros there it adds nothing.
_LAST: Mapping[Part, re.Pattern[str]] = {
    "attention": re.compile(r"(o|recurrent_out)(_bias)?|attention_after_bias"),
    "mlp": re.compile(r"((expert\d+_|shared_)?down|experts_down)(_bias)?|mlp_after_bias"),
}


@dataclass(frozen=True)
class Cutting:
    """Layer j of the draft is layer ``layers[j]`` of the model; the weights named in ``silent`` become zeros.

    A layer that a plan leaves out whole is gone. Of one that it runs in part the rest stays, silenced: other
    engines know whole layers only, and pay for what is silent as if it spoke. ``changed`` are weights that are not
    the model's, by the names of those in whose place they are, in float32.
    """

    layers: tuple[int, ...]
    silent: frozenset[str]
    changed: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    def listed(self, value: Any, num_layers: int) -> Any:
        """A setting of the draft: of a list with one entry for each layer those of the layers that it keeps."""
        is_by_layer = isinstance(value, list) and len(value) == num_layers
        return [value[i] for i in self.layers] if is_by_layer else value


def cutting_of(plan: LayerPlan, config: ModelConfig) -> Cutting:
    """What is left of a model under a plan.

    Raises OptionError for a plan that runs sub-layers in part, or with fewer experts.
    """
    if plan.cuts or plan.experts is not None:
        what = "heads or channels" if plan.cuts else "fewer experts"
        raise OptionError(
            f"the draft {str(plan)!r} has {what}, which other engines cannot leave out; name whole layers"
        )
    runs: dict[Part, set[int]] = {"attention": set(plan.attention), "mlp": set(plan.mlp)}
    layers = sorted(runs["attention"] | runs["mlp"])
    silent: frozenset[str] = frozenset()
    for layer in layers:
        for part in _LAST:
            if layer not in runs[part]:
                silent |= silencing(config, layer, part)
    return Cutting(tuple(layers), silent)


def silencing(config: ModelConfig, layer: int, part: Part) -> frozenset[str]:
    """The weights of a layer that must be zeros for its attention, or its MLP, to add nothing.

    Raises UnsupportedModelError for a family that has none such.
    """
    roles = weights_by_role(config, layer)
    found = frozenset(weight.name for role, weight in roles.items() if _LAST[part].fullmatch(role))
    if not found:
        raise UnsupportedModelError(f"{config.family} has no weight that silences the {part} of layer {layer}")
    return found


def check_layers(draft: ModelConfig, model: ModelConfig, cutting: Cutting) -> None:
    """Raise UnsupportedModelError where the place of a layer decides what it computes, and that has changed."""
    for here, there in enumerate(cutting.layers):
        if draft.layer(here) != model.layer(there):
            raise UnsupportedModelError(
                f"layer {there} of this {model.family} model would compute something else as layer {here} of a "
                "draft (windows or rotary embeddings go by the place of a layer): leave out layers at the end, or "
                "attention and MLPs instead of whole layers"
            )


def config_of_draft(settings: Mapping[str, Any], key: str, cutting: Cutting, num_layers: int) -> dict[str, Any]:
    """A config.json, or the metadata of a GGUF file, with fewer layers; ``key`` counts them."""
    return {name: cutting.listed(value, num_layers) for name, value in settings.items()} | {
        key: len(cutting.layers)
    }
