"""Rotary embeddings as config.json describes them, in the ways of transformers 4 and 5."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from selfspec.errors import UnsupportedModelError
from selfspec.model.config import Rope
from selfspec.model.reading import Fields, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from selfspec.model.families.base import Family

ROPE_KINDS = ("default", "linear", "llama3", "yarn", "longrope")
LAYER_TYPES = ("full_attention", "sliding_attention")


def read_rope(fields: Fields, family: Family) -> Rope:
    """The rotary embedding that all layers share."""
    if family.rope_by_type:
        return Rope()
    scaling = _parameters(fields)
    if any(kind in scaling for kind in LAYER_TYPES):
        raise UnsupportedModelError(
            f"{scaling.source} has one rotary embedding for each type of layer, which is not supported for "
            f"{family.architectures[0]}"
        )
    theta, share = family.key("rope_theta"), family.key("partial_rotary_factor")
    default = family.defaults.get(theta, 10_000.0)
    used = scaling.number("rope_theta") if "rope_theta" in scaling else fields.number(theta, default)
    return rope_of(scaling, fields, used, _share(scaling, fields, share, family))


def rope_by_type(fields: Fields, kind: str, theta: float) -> Rope:
    """The rotary embedding of one type of layer, where config.json has one for each."""
    none = Fields({}, fields.source)
    new, old = fields.child("rope_parameters"), fields.child("rope_scaling")
    own = (new.child(kind) if new else None) or (old if kind == "full_attention" else None) or none
    if new and not any(name in new for name in LAYER_TYPES):
        raise UnsupportedModelError(f"{new.source} must have an entry for each of {', '.join(LAYER_TYPES)}")
    return rope_of(own, fields, own.number("rope_theta", theta), 1.0)


def rope_of(scaling: Fields, fields: Fields, theta: float, share: float) -> Rope:
    """The rotary embedding that ``scaling`` describes; ``fields`` is the whole of config.json."""
    kind = scaling.text("rope_type" if "rope_type" in scaling else "type", "default")
    if kind == "default":
        return Rope(theta=theta, share=share)
    if kind == "linear":
        return Rope(theta=theta, share=share, kind="linear", factor=scaling.number("factor"))
    if kind == "llama3":
        return _llama3(theta, share, scaling)
    if kind == "yarn":
        return _yarn(theta, share, scaling, fields)
    if kind == "longrope":
        return _longrope(theta, share, scaling, fields)
    raise UnsupportedModelError(
        f"the rope type {one_line(kind, 40)!r} in {scaling.source} is not supported; supported: "
        f"{', '.join(ROPE_KINDS)}"
    )


def _parameters(fields: Fields) -> Fields:
    new, old = fields.child("rope_parameters"), fields.child("rope_scaling")
    if new and old and fields.raw("rope_parameters") != fields.raw("rope_scaling"):
        raise fields.wrong("rope_scaling", fields.raw("rope_scaling"), "absent, or equal to rope_parameters")
    return new or old or Fields({}, fields.source)


def _share(scaling: Fields, fields: Fields, key: str, family: Family) -> float:
    """The part of each head that is turned; only families that name it in their defaults have one."""
    if key in family.defaults:
        found = scaling.number("partial_rotary_factor", fields.number(key, family.defaults[key]))
        if found > 1:
            raise fields.wrong(key, found, "at most 1")
        return found
    if scaling.raw("partial_rotary_factor") not in (None, 1, 1.0):
        raise UnsupportedModelError(
            f"partial_rotary_factor is {scaling.raw('partial_rotary_factor')!r} in {scaling.source}; "
            f"only 1 is supported for {family.architectures[0]}"
        )
    return 1.0


def _llama3(theta: float, share: float, scaling: Fields) -> Rope:
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    if not low < high:
        raise scaling.wrong("low_freq_factor", low, f"below high_freq_factor ({high})")
    return Rope(
        theta=theta,
        share=share,
        kind="llama3",
        factor=scaling.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_context=scaling.integer("original_max_position_embeddings"),
    )


def _yarn(theta: float, share: float, scaling: Fields, fields: Fields) -> Rope:
    original, factor = _stretch(scaling, fields)
    attention = scaling.number("attention_factor", _yarn_attention(scaling, factor))
    return Rope(
        theta=theta,
        share=share,
        kind="yarn",
        factor=factor,
        original_context=original,
        beta_fast=scaling.number("beta_fast", 32.0),
        beta_slow=scaling.number("beta_slow", 1.0),
        truncate=scaling.flag("truncate", True),
        attention_factor=attention,
    )


def _yarn_attention(scaling: Fields, factor: float) -> float:
    """The factor of cosines and sines that the paper's rule makes of the stretch."""

    def grown(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0

    if scaling.raw("mscale") and scaling.raw("mscale_all_dim"):
        return grown(scaling.number("mscale")) / grown(scaling.number("mscale_all_dim"))
    return grown(1.0)


def _longrope(theta: float, share: float, scaling: Fields, fields: Fields) -> Rope:
    """Within the original context, whose factors are ``short_factor``.

    Past it transformers turns *every* position by ``long_factor`` and computes the whole cache anew, so that
    a token's keys would depend on the length of the text after it: such texts are left out (``context_of``).
    """
    original, factor = _stretch(scaling, fields)
    attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
    return Rope(
        theta=theta,
        share=share,
        kind="longrope",
        factor=factor,
        original_context=original,
        factors=_factors(scaling, "short_factor"),
        attention_factor=scaling.number("attention_factor", attention),
    )


def _stretch(scaling: Fields, fields: Fields) -> tuple[int, float]:
    """The context before stretching, and by how much it was stretched."""
    context = fields.integer("max_position_embeddings", 2048)
    key = "original_max_position_embeddings"
    original = fields.integer(key, scaling.integer(key, context))
    return original, scaling.number("factor", context / original)


def _factors(scaling: Fields, key: str) -> tuple[float, ...]:
    values = scaling.raw(key)
    if not isinstance(values, list) or not all(isinstance(v, int | float) and v > 0 for v in values):
        raise scaling.wrong(key, values, "a list of numbers above 0")
    return tuple(map(float, values))


def context_of(rope: Rope, context: int) -> int:
    """The longest text for which the rotary embedding is one function of the position."""
    return min(context, rope.original_context) if rope.kind == "longrope" else context


def but_each(n: int) -> Callable[[int], str]:
    """The rule by which each n-th layer attends to the whole text, and the others to a window."""
    return lambda index: "sliding_attention" if (index + 1) % n else "full_attention"


def layer_types(
    fields: Fields, count: int, rule: Callable[[int], str], kinds: Sequence[str] = LAYER_TYPES
) -> list[str]:
    """The type of each layer, one of ``kinds``: ``layer_types`` of config.json, else by ``rule(index)``."""
    given = fields.raw("layer_types")
    if given is None:
        return [rule(index) for index in range(count)]
    if not isinstance(given, list) or len(given) < count or any(kind not in kinds for kind in given):
        raise UnsupportedModelError(
            f"layer_types is {one_line(repr(given), 120)} in {fields.source}; supported: a list of "
            f"{' and '.join(kinds)}, one for each of {count} layers"
        )
    return given[:count]
