"""Layer skip: the same model without some attention and MLP sub-layers (Draft & Verify, arXiv 2309.08168)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from selfspec.drafters.base import option
from selfspec.drafters.comb import CombOptions
from selfspec.drafters.self_draft import FixedSelfDraft
from selfspec.errors import OptionError
from selfspec.plans import PARTS_OF, Cut, LayerPlan, SubLayer, spans_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from selfspec.drafters.base import Host
    from selfspec.model.config import ModelConfig
    from selfspec.plans import Part

FORM = "such as '12-17' (whole layers), 'attention 7,20 mlp 3' or 'heads 9:0-2 channels 9:0-511'"
_WHOLE: tuple[Part, ...] = ("attention", "mlp")
_WORDS: dict[str, Part] = {part: part for part in _WHOLE} | {name: part for part, name in PARTS_OF.items()}


@dataclass(frozen=True)
class LayerSkipOptions(CombOptions):
    """Options of `LayerSkip`."""

    skip: str = option(
        "",
        f"Sub-layers, heads and channels that the draft leaves out, {FORM}; `selfspec search-plan` finds good "
        "sub-layers. Default: the attention of every second layer of the middle half.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.skip:
            _parsed(self.skip)


class LayerSkip(FixedSelfDraft):
    """Drafts with a fixed skip set; verification resumes below the first layer that it touches."""

    Options = LayerSkipOptions
    name = "layer_skip"
    summary = "the same model without chosen attention and MLP sub-layers; no extra weights or KV"
    paper = "Draft & Verify (arXiv 2309.08168); sets by KnapSpec (2602.20217)"
    pays = (
        "on models with layers to spare (13B and more in the papers), with a set from `selfspec "
        "search-plan`; not under 1B"
    )

    def __init__(self, options: LayerSkipOptions, config: ModelConfig) -> None:
        layers = config.num_layers
        if layers < 2:
            raise OptionError("this model has one layer; a layer skip needs at least two")
        if options.skip:
            plan = plan_without(options.skip, layers, config)
        else:
            plan = LayerPlan.skipping(layers, attention=range(layers // 4 + 1, layers - layers // 4, 2))
        super().__init__(options, config, plan)

    def bind(self, host: Host) -> None:
        """Refuse heads and channels that this runtime cannot leave out."""
        if reason := host.runtime.refuses(self.plan):
            raise OptionError(f"skip is {skip_of(self.plan)!r}, but {reason}")


def plan_without(skip: str, num_layers: int, config: ModelConfig | None = None) -> LayerPlan:
    """The full model without ``skip``, which `skip_of` writes; heads and channels need ``config``.

    Raises OptionError where it cannot be read, names layers, heads or channels that the model does not have, or
    leaves nothing out or nothing to run.
    """
    named = _parsed(skip)
    cuts = [] if config is None else _cuts(named.partial, config)
    assert config is not None or not named.partial
    none_left = [cut.step for cut in cuts if not cut.kept]
    whole = {part: named.whole[part] | {step.layer for step in none_left if step.part == part} for part in _WHOLE}
    plan = LayerPlan.skipping(num_layers, whole["attention"], whole["mlp"]).cut(cuts)
    if not plan.steps:
        raise OptionError(f"skip {skip!r} leaves nothing of {num_layers} layers to draft with")
    return plan


def _cuts(named: Iterable[_Partial], config: ModelConfig) -> list[Cut]:
    """What is left of the sub-layers whose heads or channels are named; of some perhaps nothing."""
    sizes: dict[Part, int] = {"attention": config.num_heads, "mlp": config.intermediate_size}
    gone: dict[SubLayer, set[int]] = {}
    for part, layers, numbers in named:
        if layers.stop > config.num_layers or numbers.stop > sizes[part]:
            raise OptionError(
                f"cannot skip {PARTS_OF[part]} {numbers.stop - 1} of layer {layers.stop - 1}: "
                f"this model has layers 0 to {config.num_layers - 1} with {PARTS_OF[part]} 0 to {sizes[part] - 1}"
            )
        for layer in layers:
            gone.setdefault(SubLayer(layer, part), set()).update(numbers)
    return [
        Cut(step, spans_of(set(range(sizes[step.part])) - numbers), sizes[step.part])
        for step, numbers in gone.items()
    ]


def skip_of(plan: LayerPlan) -> str:
    """What ``plan`` leaves out, as `plan_without` reads it."""
    layers: dict[str, list[str]] = {name: [] for name in _WORDS}
    for step in plan.left_out:
        layers[step.part].append(str(step.layer))
    for cut in plan.cuts:
        layers[PARTS_OF[cut.step.part]].append(str(cut))
    return " ".join(f"{part} {','.join(numbers)}" for part, numbers in layers.items() if numbers)


class _Partial(NamedTuple):
    """Heads of attention, or channels of MLPs, with these numbers in each of these layers."""

    part: Part
    layers: range
    numbers: range


class _Named(NamedTuple):
    """What a skip set names: layers by part, and heads and channels."""

    whole: dict[Part, set[int]]
    partial: list[_Partial]


def _parsed(skip: str) -> _Named:
    """Numbers before the first word are whole layers; after heads and channels stand layer:number."""
    named = _Named({part: set() for part in _WHOLE}, [])
    targets: tuple[Part, ...] = _WHOLE
    is_partial = False
    for word in re.findall(r"[^\s,;]+", skip):
        if word in _WORDS:
            is_partial, targets = word not in _WHOLE, (_WORDS[word],)
        elif is_partial and (found := re.fullmatch(rf"{_RANGE}:{_RANGE}", word)):
            layers, numbers = (_range(word, found[i], found[i + 1]) for i in (1, 3))
            named.partial.append(_Partial(targets[0], layers, numbers))
        elif not is_partial and (found := re.fullmatch(_RANGE, word)):
            for part in targets:
                named.whole[part].update(_range(word, found[1], found[2]))
        else:
            raise OptionError(f"skip has {word!r}; it lists layers, {FORM}")
    if not any(named.whole.values()) and not named.partial:
        raise OptionError(f"skip is {skip!r}, which names no layer; it lists layers, {FORM}")
    return named


_RANGE = r"(\d{1,5})(?:-(\d{1,5}))?"


def _range(word: str, first: str, last: str | None) -> range:
    """Both ends included."""
    if int(first) > int(last or first):
        raise OptionError(f"skip has the range {word!r}, which ends before it begins")
    return range(int(first), int(last or first) + 1)
