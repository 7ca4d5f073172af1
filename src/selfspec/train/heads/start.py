"""Where training begins: weights from the target's own layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from selfspec.train.heads.modules import Eagle, Medusa, module_of
from selfspec.train.heads.target import final_norm, weight

if TYPE_CHECKING:
    from torch import Tensor, nn

    from selfspec.model.head_file import HeadFacts
    from selfspec.runtime.base import Runtime
    from selfspec.train.heads.modules import Head, Layer

_SMALL = 0.02  # standard deviation of weights that the target has no like of


def started(facts: HeadFacts, runtime: Runtime, seed: int) -> Head:
    """A head that is worth something before it has learned anything.

    An exit head begins as nothing on top of its states ("linear": zero; "attention": zero output), a "layer" as
    the target's layer k. EAGLE's layer begins as the target's layer after the highest states, which it reads alone:
    ``fc`` passes them on, and the halves of queries, keys and values for the embedding are zero. The norm is the
    target's. A head of Medusa begins as the target's own LM head, its blocks add nothing.
    """
    torch.manual_seed(seed)
    module = module_of(facts)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=_SMALL)
        norm = final_norm(runtime)
        if isinstance(module, Medusa):
            for parameter in module.parameters():
                parameter.zero_()
            module.read_by(norm)
            return module
        module.norm.weight.copy_(_multiplied(norm.weight, norm.kind))
        if isinstance(module, Eagle):
            _copy_layer(module.midlayer, runtime, facts.taps[-1])
            d = facts.hidden_size
            module.fc.weight.zero_()
            module.fc.weight[:, 2 * d :] = torch.eye(d)
        elif facts.attends:
            _copy_layer(module.layer, runtime, facts.taps[0])
            if facts.form == "attention":
                module.layer.self_attn.o_proj.weight.zero_()
        else:
            module.transform.weight.zero_()
    return module


def _multiplied(found: Tensor, kind: str) -> Tensor:
    """The weight of a norm as it is multiplied."""
    return found + 1.0 if kind == "rms_plus_one" else found


def _copy_layer(layer: Layer, runtime: Runtime, index: int) -> None:
    """Take what the target's layer has in the same shapes; an input that it has not is read with zeros."""
    kind = runtime.config.layer(index).norm
    is_eagle = hasattr(layer, "hidden_norm")
    norms = {"attention_norm": layer.hidden_norm if is_eagle else layer.input_layernorm}
    attention = layer.self_attn
    matrices: dict[str, nn.Linear] = {
        "q": attention.q_proj, "k": attention.k_proj, "v": attention.v_proj, "o": attention.o_proj,
    }  # fmt: skip
    if layer.has_mlp:
        norms["mlp_norm"] = layer.post_attention_layernorm
        matrices |= {"gate": layer.mlp.gate_proj, "up": layer.mlp.up_proj, "down": layer.mlp.down_proj}
    for role, norm in norms.items():
        if (found := weight(runtime, role, index)) is not None:
            norm.weight.copy_(_multiplied(found, kind))
    for role, linear in matrices.items():
        found = weight(runtime, role, index)
        rows, columns = linear.weight.shape
        if found is None or found.shape[0] != rows or found.shape[1] > columns:
            continue
        linear.weight.zero_()
        linear.weight[:, columns - found.shape[1] :] = found  # EAGLE reads the token first, then the states
