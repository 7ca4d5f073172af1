"""What heads take from the model that they are trained for: sizes, embeddings, final norm, rows of its LM head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from selfspec.errors import OptionError, UnsupportedModelError
from selfspec.model.head_file import HeadFacts
from selfspec.runtime.torch_block import Norm
from selfspec.train.heads.losses import Teacher
from selfspec.types import on_host

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from selfspec.model.config import Rope
    from selfspec.runtime.base import Runtime

LEAST_LAYERS = 4  # of a model whose states EAGLE reads after three of them


class Sizes(NamedTuple):
    """What a head may have otherwise than its target; None is as the target."""

    form: str = "layer"
    intermediate: int | None = None


def facts_of(runtime: Runtime, kind: str, taps: Sequence[int], sizes: Sizes, **more: Any) -> HeadFacts:
    """A head with the target's sizes; raises OptionError for layers that it does not have."""
    config = runtime.config
    if wrong := [tap for tap in taps if not 1 <= tap < config.num_layers]:
        raise OptionError(
            f"a head reads after layer {wrong[0]}; this model has {config.num_layers} layers, so it must be 1 to "
            f"{config.num_layers - 1}"
        )
    rope = config.layer(taps[-1] if kind == "eagle" else taps[0]).rope or config.rope
    return HeadFacts(
        kind=kind,
        form=sizes.form,
        taps=tuple(taps),
        hidden_size=config.hidden_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        intermediate_size=sizes.intermediate or config.intermediate_size,
        eps=config.norm_eps,
        rope_theta=rope.theta,
        rope=_scaling(rope),
        **more,
    )


def _scaling(rope: Rope) -> dict[str, Any]:
    """What scales the target's frequencies, for its head, where published heads have it too (export/heads.py)."""
    if rope.kind not in ("linear", "llama3"):
        return {}
    names = ("kind", "factor", "low_freq_factor", "high_freq_factor", "original_context")
    return {name: getattr(rope, name) for name in (names if rope.kind == "llama3" else names[:2])}


def medusa_facts(runtime: Runtime, heads: int, blocks: int, **more: Any) -> HeadFacts:
    """Heads of Medusa on the target's last layer."""
    config = runtime.config
    return HeadFacts(
        "medusa", "blocks", (config.num_layers,), config.hidden_size, drafts=heads, blocks=blocks, **more
    )


def default_taps(num_layers: int) -> tuple[int, int, int]:
    """Low, middle and high as published; closer together in a model of few layers."""
    if num_layers < LEAST_LAYERS:
        raise OptionError(f"this model has {num_layers} layers; an EAGLE head reads after three, so it needs 4")
    low, middle, high = 2, num_layers // 2, num_layers - 3
    return (low, middle, high) if low < middle < high else (1, num_layers // 2, num_layers - 1)


def weight(runtime: Runtime, role: str, layer: int | None = None) -> Tensor | None:
    """A weight of the target in float32, if it has it."""
    found = runtime.weight(role, layer)
    return None if found is None else torch.from_numpy(np.array(found, dtype=np.float32))


def final_norm(runtime: Runtime) -> Norm:
    """The target's norm before its LM head."""
    found = weight(runtime, "final_norm")
    if found is None:
        raise UnsupportedModelError("this model has no norm before its LM head, and heads need one")
    kind, eps = runtime.config.layer(0).norm, runtime.config.norm_eps
    return Norm(kind, eps, found, weight(runtime, "final_norm_bias"))


def teacher_of(runtime: Runtime, vocabulary: NDArray[np.int64] | None, device: torch.device) -> Teacher:
    """The target's law over the draft vocabulary (None: all tokens)."""
    if runtime.config.logit_cap is not None:
        raise UnsupportedModelError(
            f"{runtime.config.family} caps its logits, which the training of heads does not"
        )
    head = runtime.weight("head")
    assert head is not None
    rows = head if vocabulary is None else head[vocabulary]
    norm = final_norm(runtime)
    norm = norm._replace(weight=norm.weight.to(device), bias=None if norm.bias is None else norm.bias.to(device))
    return Teacher(norm.__call__, torch.from_numpy(rows * np.float32(runtime.config.logit_scale)).to(device))


def embedded(runtime: Runtime, tokens: NDArray[np.int32]) -> Tensor:
    """What enters layer 0 for ``tokens`` [R], without positions: [R, d] in float32."""
    if runtime.config.has_positions:
        raise UnsupportedModelError(f"{runtime.config.family} learns its positions; EAGLE needs rotary ones")
    return torch.from_numpy(np.asarray(on_host(runtime.embed(tokens.tolist())), dtype=np.float32))
