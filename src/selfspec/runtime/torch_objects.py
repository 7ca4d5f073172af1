"""The tensors of a transformers model object: shared as they are; LoRA adapters become matrices of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from selfspec.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

_BASE = "base_layer"


def base_of(model: Any) -> Any:
    """The transformers model inside what PEFT wraps around it, else the model itself."""
    return model.get_base_model() if hasattr(model, "peft_config") and hasattr(model, "get_base_model") else model


def is_torchao(model: Any) -> bool:
    """Whether transformers has loaded the model with torchao's kinds of tensors, which multiply by themselves."""
    return _quantised_by(model) == "torchao"


def adapters_of(model: Any) -> Iterator[tuple[str, Any]]:
    """The modules that PEFT has wrapped, with their paths."""
    return ((path, module) for path, module in model.named_modules() if hasattr(module, _BASE))


def tensors_of(model: Any) -> dict[str, Tensor]:
    """Name -> tensor as the architecture names them, on one device.

    A LoRA layer gives W + ΔW of its active adapters: a copy of the matrix, the layer itself is left alone.

    Raises
    ------
    UnsupportedModelError
        The model is spread over devices, quantised by another than torchao, or has adapters of another kind.
    """
    kind = type(model).__name__
    _check_linears(model, kind)
    tensors: dict[str, Tensor] = dict(model.state_dict())
    for path, layer in adapters_of(model):
        for name in [name for name in tensors if name.startswith(f"{path}.")]:
            inner = name.removeprefix(f"{path}.").removeprefix(f"{_BASE}.")
            tensor = tensors.pop(name)
            if f"{path}.{_BASE}.{inner}" == name:
                tensors[f"{path}.{inner}"] = tensor
        tensors[f"{path}.weight"] = _merged(path, layer)
    if len(devices := {str(tensor.device) for tensor in tensors.values()}) > 1:
        raise UnsupportedModelError(
            f"{kind} is spread over {' and '.join(sorted(devices))}; drafts run on one device: load it without "
            "device_map, or put it there with .to(...)"
        )
    return tensors


def _quantised_by(model: Any) -> str:
    """Who has quantised a model, as its config says; "" for nobody."""
    config = getattr(model.config, "quantization_config", None)
    found = config.get("quant_method") if isinstance(config, dict) else getattr(config, "quant_method", None)
    return "" if found is None else str(getattr(found, "value", found))


def _check_linears(model: Any, kind: str) -> None:
    """Refuse layers whose weights are no matrices of numbers that torch itself multiplies."""
    for path, module in model.named_modules():
        weight = getattr(module, "weight", None)
        is_odd = isinstance(weight, torch.Tensor) and not weight.is_floating_point()
        if is_odd or hasattr(module, "qweight"):
            raise UnsupportedModelError(
                f"{path} of {kind} is a {type(module).__name__} (quantised by {_quantised_by(model) or 'hand'}), "
                "which this runtime cannot multiply; load the model unquantised, or with torchao"
            )
        if type(module).__module__.startswith("peft.") and hasattr(module, "original_module"):
            raise UnsupportedModelError(
                f"{path} is a {type(module).__name__} of PEFT; call merge_and_unload() first"
            )


def _merged(path: str, layer: Any) -> Tensor:
    """W + ΔW of a LoRA layer; W itself where its adapters are off, or merged already."""
    weight: Tensor = layer.base_layer.weight.detach()
    active = [name for name in layer.active_adapters if name in getattr(layer, "lora_A", {})]
    active += [name for name in layer.active_adapters if name in getattr(layer, "lora_embedding_A", {})]
    variants = {
        *getattr(layer, "lora_variant", {}),
        *(n for n, on in getattr(layer, "lora_bias", {}).items() if on),
    }
    if not hasattr(layer, "get_delta_weight") or variants & set(active):
        raise UnsupportedModelError(
            f"{path} has a {type(layer).__name__} of PEFT that is more than W + BA; call merge_and_unload() first"
        )
    if layer._forward_pre_hooks:
        raise UnsupportedModelError(f"{path} is given an adapter for each row (adapter_names); use set_adapter")
    if layer.disable_adapters and layer.merged:
        raise UnsupportedModelError(
            f"{path} has merged adapters that are switched off; call unmerge_adapter() first"
        )
    if layer.disable_adapters or layer.merged or not active:
        return weight
    if type(layer.base_layer.weight.data) is not torch.Tensor:
        raise UnsupportedModelError(f"{path} has adapters over quantised weights; load the model unquantised")
    with torch.no_grad():
        return sum((layer.get_delta_weight(name).detach().to(weight) for name in active), weight)
