"""The metadata of a GGUF file as the ``config.json`` that says the same."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.errors import CorruptModelError, UnsupportedModelError
from selfspec.model.families.gguf import family_named, form_of, gguf_form
from selfspec.model.gguf_tokenizer import special_ids, token_strings
from selfspec.model.reading import Fields, listed, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from selfspec.model.families.base import Family
    from selfspec.model.families.gguf import GgufForm

Array = np.ndarray[Any, Any]
_FACTORS = "rope_freqs.weight"
_LONG_FACTORS, _SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
_SIZES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "context_length": "max_position_embeddings",
}
_READ = {
    *_SIZES, "vocab_size", "attention.head_count_kv", "attention.key_length", "attention.value_length",
}  # fmt: skip
_ROPE = {
    "rope.dimension_count", "rope.freq_base", "rope.scaling.type", "rope.scaling.original_context_length",
}  # fmt: skip
_YARN = {
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
    "rope.scaling.yarn_attn_factor": "attention_factor",
}
_SCALING: Mapping[str, set[str]] = {
    "linear": {"rope.scaling.factor"},
    "yarn": {"rope.scaling.factor", *_YARN},
    "longrope": {"rope.scaling.attn_factor"},
}
"""The keys that a kind of scaling has."""
_WINDOW = {"attention.sliding_window", "attention.sliding_window_pattern"}
_HARMLESS = {"tensor_data_layout"}
_ONLY: Mapping[str, tuple[object, ...]] = {
    "expert_count": (0,), "expert_used_count": (0,), "nextn_predict_layers": (0,), "attention.causal": (True,),
    "rope.scaling.finetuned": (True, False),
}  # fmt: skip


class _Head(Fields):
    """The metadata below the architecture's name."""

    def __init__(self, metadata: Fields, form: GgufForm) -> None:
        prefix = f"{form.architecture}."
        mine = {k.removeprefix(prefix): v for k, v in metadata.raw_items().items() if k.startswith(prefix)}
        super().__init__(mine, metadata.source)
        self.form = form
        self.family = family_named(form.family)

    def value(self, key: str) -> Any:
        """A number or a flag, the number that was meant: GGUF keeps 1e-5 as the float32 9.99999975e-06."""
        found = self.raw(key)
        if isinstance(found, float):
            return float(str(np.float32(self.number(key))))
        return self.flag(key, False) if isinstance(found, bool) else self.integer(key)

    def meant(self, key: str, default: float) -> float:
        """A number as it was meant."""
        return float(self.value(key)) if key in self else default


def hf_config(metadata: Fields, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The ``config.json`` of a file with this metadata and these tensors (by name).

    Raises
    ------
    UnsupportedModelError
        An architecture or an option that is not covered.
    CorruptModelError
        A missing, wrongly typed or contradictory value.
    """
    head = _Head(metadata, gguf_form(metadata))
    _check_keys(metadata, head, tensors)
    heads, family = head.integer("attention.head_count"), head.family
    sizes = {family.key(fact): head.integer(key) for key, fact in _SIZES.items()}
    named = {fact: head.value(key) for key, fact in head.form.keys.items() if key in head}
    kv_heads = head.integer("attention.head_count_kv", heads)
    if kv_key := family.key("num_key_value_heads"):
        sizes[kv_key] = kv_heads
    elif kv_heads != heads and "num_kv_heads" not in named:
        raise head.wrong("attention.head_count_kv", kv_heads, f"attention.head_count ({heads})")
    head_dim = _head_dim(head)
    return {
        "architectures": [family.architectures[0]],
        "model_type": family.model_type or family.name,
        **head.form.fixed,
        **sizes,
        **named,
        **_implied(head, head_dim, tensors),
        "vocab_size": head.integer("vocab_size", len(token_strings(metadata))),
        family.key("rms_norm_eps"): head.value(head.form.eps),
        "tie_word_embeddings": "output.weight" not in tensors,
        **_biases(family, tensors),
        "dtype": "float32",
        **special_ids(metadata),
        **_rope(head, tensors, head_dim),
        **_windows(head),
    }


def factors(family: str, config: Mapping[str, Any]) -> set[str]:
    """The tensors that a file may have beside the weights; ``config`` is what `hf_config` made of it."""
    form, scaling = form_of(family), config.get("rope_scaling") or {}
    assert form is not None
    plain = {_FACTORS} if form.rope == "scaled" else set()
    return plain | ({_LONG_FACTORS, _SHORT_FACTORS} if "short_factor" in scaling else set())


def _check_keys(metadata: Fields, head: _Head, tensors: Mapping[str, Any]) -> None:
    if metadata.integer("split.count", 1) != 1:
        raise UnsupportedModelError(
            f"{metadata.source} says it is one of {metadata.raw('split.count')} parts; merge them with "
            "llama-gguf-split --merge first"
        )
    form = head.form
    read = _READ | _HARMLESS | {form.eps, *form.keys, *form.needed}
    read |= _WINDOW if form.window != "none" else set()
    if form.rope != "none":
        read |= _ROPE | _SCALING.get(_scaling_kind(head, tensors), set())
    if head.family.rope_by_type:
        read.add("rope.freq_base_swa")
    only = {**_ONLY, **form.only}
    unknown = [
        f"{key} ({one_line(repr(value), 40)})"
        for key, value in head.raw_items().items()
        if key not in read and value not in only.get(key, ())
    ]
    if unknown:
        raise UnsupportedModelError(f"{metadata.source} has options that are not supported: {listed(unknown)}")
    for key in (form.eps, *form.needed):
        head.value(key)


def _head_dim(head: _Head) -> int:
    heads, hidden = head.integer("attention.head_count"), head.integer("embedding_length")
    if hidden % heads and "attention.key_length" not in head:
        raise head.wrong("embedding_length", hidden, f"a multiple of attention.head_count ({heads})")
    head_dim = head.integer("attention.key_length", hidden // heads)
    if (other := head.integer("attention.value_length", head_dim)) != head_dim:
        raise UnsupportedModelError(
            f"attention.value_length is {other} in {head.source}; only the size of a key ({head_dim}) is supported"
        )
    return head_dim


def _implied(head: _Head, head_dim: int, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """What no key says: the size of a head where it is not the usual one, and what llama.cpp knows by heart."""
    hidden, heads = head.integer("embedding_length"), head.integer("attention.head_count")
    found: dict[str, Any] = {}
    if head_dim * heads != hidden or "head_dim" in head.family.defaults:
        found["head_dim"] = head_dim
    if head.form.plus_one:  # of Gemma, the two 27B models alone scale by the width of a head's share
        is_27b = (head.form.architecture, head.integer("block_count")) in (("gemma2", 46), ("gemma3", 62))
        found["query_pre_attn_scalar"] = hidden // heads if is_27b else head_dim
    if "attention.scale" in head.form.keys and "attention.scale" not in head:
        found["attention_multiplier"] = head_dim**-0.5
    if "ln_attn" in head.form.tensors:
        found["num_ln_in_parallel_attn"] = 2 if "blk.0.attn_norm_2.weight" in tensors else 1
    return found


def _biases(family: Family, tensors: Mapping[str, Any]) -> dict[str, bool]:
    """The switches of the biases that the family has, as the tensors say."""
    switches = {weight.only_if for layout in family.layouts for weight in layout.per_layer}
    qkv = {"blk.0.attn_q.bias", "blk.0.attn_qkv.bias"}
    given = {"attention_bias": not qkv.isdisjoint(tensors), "mlp_bias": "blk.0.ffn_up.bias" in tensors}
    return {family.key(switch): value for switch, value in given.items() if switch in switches}


# -- rotary embedding and windows -------------------------------------------------------------------------


def _rope(head: _Head, tensors: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    if head.form.rope == "none":
        return {}
    family, theta = head.family, head.meant("rope.freq_base", 10_000.0)
    dims, share = head.integer("rope.dimension_count", head_dim), family.key("partial_rotary_factor")
    if dims != head_dim and share not in family.defaults:
        raise UnsupportedModelError(
            f"rope.dimension_count is {dims} in {head.source}; only the size of a head ({head_dim}) is supported"
        )
    scaling = _scaling(head, tensors, theta, dims)
    if family.rope_by_type:
        local = head.meant("rope.freq_base_swa", 10_000.0 if head.form.plus_one else theta)
        return {
            "rope_parameters": {
                "full_attention": {**(scaling or {"rope_type": "default"}), "rope_theta": theta},
                "sliding_attention": {"rope_type": "default", "rope_theta": local},
            }
        }
    found = {family.key("rope_theta"): theta, "rope_scaling": scaling}
    if share in family.defaults:
        found[share] = _share(dims, head_dim)
    if _SHORT_FACTORS in tensors:
        found["original_max_position_embeddings"] = head.integer("rope.scaling.original_context_length")
    return found


def _share(dims: int, head_dim: int) -> float:
    """The part of a head that is turned, so that ``int(head_dim * share)`` is ``dims``."""
    share = dims / head_dim
    return share if int(head_dim * share) == dims else math.nextafter(share, 2.0)


def _scaling_kind(head: _Head, tensors: Mapping[str, Any]) -> str:
    """What scales the rotary embedding; the converter leaves the type out where tensors tell, as llama.cpp does."""
    implied = "linear" if "rope.scaling.factor" in head else "none"
    kind = head.text("rope.scaling.type", implied)
    if kind == "none" and _SHORT_FACTORS in tensors:
        return "longrope"
    return kind


def _scaling(head: _Head, tensors: Mapping[str, Any], theta: float, dims: int) -> dict[str, Any] | None:
    """``rope_scaling``, or None for none."""
    kind, has_factors = _scaling_kind(head, tensors), head.form.rope == "scaled" and _FACTORS in tensors
    if kind == "none":
        return _by_factors(head, tensors[_FACTORS].data, theta, dims) if has_factors else None
    if kind not in _SCALING or has_factors:
        raise UnsupportedModelError(
            f"rope.scaling.type is {one_line(kind, 40)!r} in {head.source}; supported: none, "
            f"{', '.join(_SCALING)}, or factors in {_FACTORS} alone"
        )
    if kind == "longrope":
        return _long(head, tensors)
    if kind == "yarn":
        return _yarn(head)
    return {"rope_type": "linear", "factor": head.value("rope.scaling.factor")}


def _yarn(head: _Head) -> dict[str, Any]:
    return {
        "rope_type": "yarn",
        "factor": head.value("rope.scaling.factor"),
        "original_max_position_embeddings": head.integer("rope.scaling.original_context_length"),
        **{name: head.value(key) for key, name in _YARN.items() if key in head},
    }


def _long(head: _Head, tensors: Mapping[str, Any]) -> dict[str, Any]:
    if missing := [name for name in (_SHORT_FACTORS, _LONG_FACTORS) if name not in tensors]:
        raise CorruptModelError(f"{head.source} lacks the tensors {listed(missing)}; download the file again")
    found = {
        "rope_type": "longrope",
        "short_factor": _listed(tensors[_SHORT_FACTORS].data),
        "long_factor": _listed(tensors[_LONG_FACTORS].data),
    }
    if "rope.scaling.attn_factor" in head:
        found["attention_factor"] = head.value("rope.scaling.attn_factor")
    return found


def _listed(factors: Array) -> list[float]:
    return [float(str(np.float32(factor))) for factor in factors.ravel()]


def _by_factors(head: _Head, factors: Array, theta: float, dims: int) -> dict[str, Any] | None:
    """The rule of Llama 3 behind stored factors; where it is another, the factors themselves."""
    if np.all(factors == 1.0):
        return None
    low, high, context, factor = 1.0, 4.0, 8192, float(np.max(factors))
    wavelengths = 2 * math.pi * theta ** (np.arange(0, dims, 2) / dims)
    smooth = np.clip((context / wavelengths - low) / (high - low), 0.0, 1.0)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if factors.shape == expected.shape and np.allclose(factors, expected, rtol=1e-5):
        return {
            "rope_type": "llama3", "factor": round(factor, 4), "low_freq_factor": low, "high_freq_factor": high,
            "original_max_position_embeddings": context,
        }  # fmt: skip
    each = _listed(factors)
    return {
        "rope_type": "longrope", "short_factor": each, "long_factor": each, "attention_factor": 1.0,
        "original_max_position_embeddings": head.integer("context_length"),
    }  # fmt: skip


def _windows(head: _Head) -> dict[str, Any]:
    """``sliding_window``, and ``layer_types`` where layers differ."""
    if head.form.window == "none":
        return {}
    window = head.integer("attention.sliding_window", 0, minimum=0) or None
    if head.form.window == "all":
        return {"sliding_window": window}
    count, given = head.integer("block_count"), head.raw("attention.sliding_window_pattern")
    if isinstance(given, list):
        slides = [bool(value) for value in given]
    else:
        step = head.integer("attention.sliding_window_pattern", head.form.window_step)
        slides = [(index + 1) % step != 0 for index in range(count)]
    types = ["sliding_attention" if window and slide else "full_attention" for slide in slides]
    return {"sliding_window": window, "layer_types": types}
