"""From a model's facts and packed weights to the core's own model of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

import numpy as np

from selfspec.errors import UnsupportedModelError
from selfspec.model.config import Activation, NormKind
from selfspec.model.families import weights_by_role
from selfspec.runtime.packing import PRECISIONS, Packed, native
from selfspec.runtime.parts import Part, head_of, is_known, parts_of
from selfspec.runtime.rotary import inverse_frequencies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from selfspec.model.config import Experts, Layer, ModelConfig, Rope

Floats: TypeAlias = "NDArray[np.float32]"
Weights: TypeAlias = "Mapping[str, Packed | Floats]"

_ACTIVATIONS, _NORM_KINDS = get_args(Activation), get_args(NormKind)
_LINEARS = (
    "q", "k", "v", "o", "gate", "up", "down", "router", "shared_gate", "shared_up", "shared_down", "shared_router",
)  # fmt: skip
_NORMS = {"attention_norm": "attention", "mlp_norm": "mlp", "q_norm": "q", "k_norm": "k"} | {
    role: role for role in ("attention_after", "mlp_after")
}


# -- what the core has ------------------------------------------------------------------------------------


def lacking(config: ModelConfig) -> str:
    """What the core does not have and this model needs, in words; "" if it runs it."""
    facts = [config.layer(index) for index in range(config.num_layers)]
    needs = {f"the activation {f.activation}": f.activation not in _ACTIVATIONS for f in facts}
    needs |= {f"norms of the kind {f.norm}": f.norm not in _NORM_KINDS for f in facts}
    roles = {role for layer in (None, *range(config.num_layers)) for role in weights_by_role(config, layer)}
    needs |= {f"weights in the role of {role}": not is_known(role) for role in sorted(roles)}
    return ", ".join(what for what, is_needed in needs.items() if is_needed)


def require_supported(config: ModelConfig) -> None:
    """Raise UnsupportedModelError if the core cannot run the model."""
    if missing := lacking(config):
        raise UnsupportedModelError(f"the native core has no {missing}, which {config.family} needs; use torch")


# -- sizes ------------------------------------------------------------------------------------------------


def precision_of(config: ModelConfig, weights: Mapping[str, Any]) -> str:
    """Such as "int4", or "int4, head int8" where the head differs; the layers' commonest kind counts."""
    sizes: Counter[str] = Counter()
    for parts in parts_of(config)[1:]:
        for part in parts.values():
            if not part.is_exact:
                sizes[weights[part.key].kind] += int(np.prod(part.shape))
    most, _ = sizes.most_common(1)[0]
    head = weights[head_of(config).key].kind
    return PRECISIONS[most] + ("" if head == most else f", head {PRECISIONS[head]}")


def active_bytes(config: ModelConfig, sizes: Mapping[str, int]) -> int:
    """Of ``sizes`` by key, those that one row reads in all layers; of experts, those that a row has."""
    total = 0.0
    for index, parts in enumerate(parts_of(config)[1:]):
        experts = config.layer(index).experts
        for part in parts.values():
            chosen = part.belongs_to_expert and experts is not None
            total += sizes[part.key] * (experts.per_token / experts.count if chosen and experts else 1)
    return int(total)


def packed(weights: Weights, part: Part) -> Packed:
    """The matrix of a part."""
    found = weights[part.key]
    assert isinstance(found, Packed), part.key
    return found


# -- the core's model -------------------------------------------------------------------------------------


def built(config: ModelConfig, weights: Weights, kernels: str, threads: int) -> Any:
    """The core's model, with all facts and weights; ``weights`` by the keys of their parts."""
    sizes = (
        config.num_layers, config.hidden_size, config.intermediate_size, config.num_heads, config.num_kv_heads,
        config.head_dim, config.vocab_size,
    )  # fmt: skip
    layers = [config.layer(index) for index in range(config.num_layers)]
    ropes = list(dict.fromkeys(layer.rope for layer in layers if layer.rope))
    turns = [
        (inverse_frequencies(rope, config.head_dim), rope.interleaved, rope.attention_factor) for rope in ropes
    ]
    model = native().Model(sizes, config.norm_eps, turns, kernels, threads)
    ends, *parts = parts_of(config)
    for index, layer in enumerate(layers):
        model.set_facts(index, _facts(config, layer, ropes))
        _fill(model, (index, layer), parts[index], weights)
    weight, bias = _norm(ends, "final_norm", layers[0], weights)
    model.set_norm(0, "final", weight, bias)
    model.set_logits(config.logit_scale, config.logit_cap or 0.0, layers[0].norm.startswith("layer"))
    model.set_linear(0, "head", packed(weights, head_of(config)).matrix(), None)
    return model


def _facts(config: ModelConfig, layer: Layer, ropes: list[Rope]) -> dict[str, Any]:
    return {
        "rope": -1 if layer.rope is None else ropes.index(layer.rope),
        "window": layer.window or 0,
        "scale": config.head_dim**-0.5 if layer.scale is None else layer.scale,
        "cap": layer.soft_cap or 0.0,
        "centred": layer.norm.startswith("layer"),
        "norm_heads": layer.qk_norm != "width",
        "parallel": not layer.is_sequential,
        "residual": layer.residual_scale,
        "activation": layer.activation,
        **(_mixture(layer.experts) if layer.experts else {}),
    }


def _mixture(experts: Experts) -> dict[str, Any]:
    facts = {
        "experts": experts.count,
        "per_token": experts.per_token,
        "expert_width": experts.width,
        "shared_width": experts.shared_width,
        "weighting": experts.weighting.removesuffix("_float32"),
    }
    if experts.clamp is not None:
        facts |= {"activation": "clipped", "limit": experts.clamp, "sharpness": experts.sharpness}
    return facts


def _fill(model: Any, where: tuple[int, Layer], parts: dict[str, Part], weights: Weights) -> None:
    """Give the core the weights of one layer."""
    index, layer = where

    def bias(role: str) -> Any:
        return weights[parts[f"{role}_bias"].key] if f"{role}_bias" in parts else None

    for role in _LINEARS:
        if role in parts:
            model.set_linear(index, role, packed(weights, parts[role]).matrix(), bias(role))
    for e in range(layer.experts.count if layer.experts else 0):
        for role in ("gate", "up", "down"):
            name = f"expert{e}_{role}"
            model.set_expert(index, e, role, packed(weights, parts[name]).matrix(), bias(name))
    for role, name in _NORMS.items():
        if role in parts:
            model.set_norm(index, name, *_norm(parts, role, layer, weights))
    if layer.parallel == "shared":
        model.set_norm(index, "mlp", *_norm(parts, "attention_norm", layer, weights))
    if "sinks" in parts:
        model.set_sinks(index, weights[parts["sinks"].key])


def _norm(parts: dict[str, Part], role: str, layer: Layer, weights: Weights) -> tuple[Any, Any]:
    """Weight and bias of a norm, as they are multiplied and added."""
    weight = weights[parts[role].key]
    assert isinstance(weight, np.ndarray)
    if layer.norm == "rms_plus_one":
        weight = weight + np.float32(1.0)
    return weight, weights[parts[f"{role}_bias"].key] if f"{role}_bias" in parts else None
