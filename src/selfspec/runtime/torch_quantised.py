"""Matrices in fewer bits for a GPU: torchao's kinds of tensors, which multiply by themselves (extra ``quant``)."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from selfspec.errors import OptionError, RuntimeMissingError, UnsupportedModelError
from selfspec.model.families import weights_by_role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from selfspec.model.config import ModelConfig

BITS = {"int8": 8, "int4": 4}  # a weight, by the name of the dtype
GROUP = 128  # int4: inputs that share a scale


def quantise(config: ModelConfig, weights: dict[str, Tensor], dtype: str) -> None:
    """Replace the matrices of all layers, and of a head that is not the embedding, in place.

    Raises RuntimeMissingError without torchao, OptionError for int4 on a CPU, UnsupportedModelError for matrices
    that are no plain linears.
    """
    one_of = _quantiser(dtype, next(iter(weights.values())).device)
    layers: list[int | None] = [*range(config.num_layers)]
    names = [weight for layer in layers for weight in weights_by_role(config, layer).values()]
    if not config.tied_head:
        names.append(weights_by_role(config, None)["head"])
    for weight in names:
        matrix = weights[weight.name]
        if matrix.ndim == 1:
            continue
        if matrix.ndim > 2 or weight.transposed:
            raise UnsupportedModelError(
                f"dtype {dtype} is for plain linears, and {weight.name} of {config.family} is none; use bfloat16"
            )
        weights[weight.name] = one_of(matrix)


def saved(config: ModelConfig, precision: str, wide: int) -> int:
    """Bytes that such matrices take less than numbers of ``wide`` bytes; their scales are left out."""
    if precision not in BITS:
        return 0
    head = 0 if config.tied_head else config.head_parameters
    return round((config.num_layers * config.active_layer_parameters + head) * (wide - BITS[precision] / 8))


@contextmanager
def _silent(*names: str) -> Iterator[None]:
    """Let these loggers say nothing but errors."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _quantiser(dtype: str, device: torch.device) -> Any:
    """What makes one matrix [out, in] smaller."""
    if dtype == "int4" and device.type != "cuda":
        raise OptionError("dtype int4 needs a CUDA GPU; use int8, or runtime cpu with bits 4")
    try:
        with _silent("torchao", "torch.utils._pytree"):  # about kernels for other machines, and about each other
            from torchao import quantization
    except ImportError as error:
        raise RuntimeMissingError(
            f"dtype {dtype} needs torchao, which is not installed here: pip install 'selfspec[quant]'"
        ) from error
    how = (
        quantization.Int8WeightOnlyConfig()
        if dtype == "int8"
        else quantization.Int4WeightOnlyConfig(group_size=GROUP, int4_packing_format="tile_packed_to_4d")
    )

    def one(matrix: Tensor) -> Tensor:
        linear = torch.nn.Linear(1, 1, bias=False, device="meta")
        linear.weight = torch.nn.Parameter(matrix, requires_grad=False)
        quantization.quantize_(linear, how)
        found: Tensor = linear.weight.data
        return found

    return one
