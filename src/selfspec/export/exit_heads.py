"""An exit with a trained head as a model of its own: the head becomes its last layer, and its final norm.

The form ``layer`` is a decoder layer of Llama shape and stays what it is; ``attention`` becomes one whose MLP adds
nothing; ``none`` is a norm only. What cannot be a layer of the model's own family is refused.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np

from selfspec.errors import OptionError
from selfspec.export.cut import Cutting, silencing
from selfspec.model.config import Layer
from selfspec.model.families import sizes_of, weights_by_role
from selfspec.model.reading import listed
from selfspec.runtime.attached import config_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from selfspec.model.config import ModelConfig
    from selfspec.model.head_file import HeadFile

    Floats = NDArray[np.float32]

_NORMS = ("rms", "rms_wide", "rms_plus_one")
_ATTENTION = {"attention_norm": "input_layernorm", "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}
_ATTENTION |= {role: f"self_attn.{role}_proj" for role in "qkvo"}
_MLP = {"mlp_norm": "post_attention_layernorm"} | {role: f"mlp.{role}_proj" for role in ("gate", "up", "down")}
_FUSED = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}
"""What some families keep in one weight, one below the other."""


def with_head(cutting: Cutting, head: HeadFile, config: ModelConfig) -> Cutting:
    """The layers below a head, and the head above them.

    Its draft vocabulary is left out: other engines draft among all tokens.

    Raises
    ------
    OptionError
        The head is linear, has an LM head of its own, or is no layer of the model's family.
    """
    facts = head.facts
    if facts.form == "linear":
        raise OptionError(
            "this head is linear: it adds a matrix times the states, which is no layer of other engines; train one "
            "with --form attention or --form layer"
        )
    if head.lm_head is not None:
        raise OptionError(
            "this head has an LM head of its own, for the tokens that it drafts, and other engines draft among all "
            "tokens; give one that shares the model's"
        )
    norm = weights_by_role(config)["final_norm"]
    changed = {norm.name: _norm(head.weights["norm.weight"], config)}
    (k,) = facts.taps
    _require_same(head, config, k)
    if not facts.attends:
        return replace(cutting, changed=changed)
    silent = cutting.silent
    if facts.form == "attention":
        silent |= silencing(config, k, "mlp")
    return Cutting((*cutting.layers, k), silent, changed | _layer(head, config, k))


def _require_same(head: HeadFile, config: ModelConfig, k: int) -> None:
    """Raise OptionError where layer k of the model, with other weights, would not compute what the head does."""
    facts, given = head.facts, config.layer(k)
    if not facts.attends:  # it has a norm only
        differs = [] if given.norm in _NORMS else ["norm"]
    else:
        wanted = config_of(head, config).layer(0)
        if given.norm in _NORMS:
            given = replace(given, norm=wanted.norm)
        if facts.form == "attention":  # its MLP is silent, whatever it is
            given = replace(given, activation=wanted.activation, experts=None, parallel=wanted.parallel)
        differs = [f.name for f in fields(Layer) if getattr(given, f.name) != getattr(wanted, f.name)]
        sizes = ("num_heads", "num_kv_heads", "head_dim")
        differs += [name for name in sizes if getattr(facts, name) != getattr(config, name)]
        if facts.form == "layer" and facts.intermediate_size > config.intermediate_size:
            differs.append("intermediate_size")
    if facts.eps != config.norm_eps:
        differs.append("norm_eps")
    if differs:
        raise OptionError(
            f"the layer of this head differs from those of this {config.family} model in {listed(differs)}, and "
            "other engines run layers of one kind: it can draft here only"
        )


def _layer(head: HeadFile, config: ModelConfig, k: int) -> dict[str, Floats]:
    """Name in the model -> what stands there in the draft, of the weights of layer k that are the head's."""
    names = _ATTENTION if head.facts.form == "attention" else _ATTENTION | _MLP
    sizes, made, foreign = sizes_of(config, config.layer(k)), {}, []
    for role, weight in weights_by_role(config, k).items():
        shape = tuple(sizes[dim] for dim in weight.dims)
        own = _FUSED.get(bare := role.removesuffix("_bias"), (bare,))
        if not set(own) <= names.keys():
            if head.facts.form == "layer":
                foreign.append(weight.name)
        elif role.endswith("_bias"):
            made[weight.name] = np.zeros(shape, np.float32)
        else:
            parts = {part: head.weights[f"layer.{names[part]}.weight"] for part in own}
            if role.endswith("norm"):
                made[weight.name] = _norm(parts[role], config)
            else:
                full = [_filled(part, matrix, config.intermediate_size) for part, matrix in parts.items()]
                made[weight.name] = np.concatenate(full)
    if foreign:
        raise OptionError(f"layers of this {config.family} model have {listed(foreign)}, and this head has no such")
    return made


def _filled(role: str, matrix: Floats, channels: int) -> Floats:
    """A matrix, with zeros where an MLP of so many channels has more: what they add is nothing."""
    rows = channels - len(matrix) if role in ("gate", "up") else 0
    columns = channels - matrix.shape[1] if role == "down" else 0
    return np.pad(matrix, ((0, rows), (0, columns)))


def _norm(weight: Floats, config: ModelConfig) -> Floats:
    """A norm's weight as the family stores it."""
    return weight - np.float32(1.0) if config.layer(0).norm == "rms_plus_one" else weight
