"""A layer plan as a model of its own: which layers it keeps, and what of them is silent."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from selfspec.errors import OptionError, UnsupportedModelError
from selfspec.model.families import weights_by_role

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    engines know whole layers only, and pay for what is silent as if it spoke.
    """

    layers: tuple[int, ...]
    silent: frozenset[str]

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
    silent: set[str] = set()
    for layer in layers:
        roles = weights_by_role(config, layer)
        for part, pattern in _LAST.items():
            if layer in runs[part]:
                continue
            found = [weight.name for role, weight in roles.items() if pattern.fullmatch(role)]
            if not found:
                raise UnsupportedModelError(
                    f"{config.family} has no weight that silences the {part} of layer {layer}"
                )
            silent.update(found)
    return Cutting(tuple(layers), frozenset(silent))


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
