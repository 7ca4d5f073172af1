"""What `selfspec tune` chooses among: drafts as --draft takes them, each with all of its options in its name.

A look-up is tried at every setting of a small grid; exits and skip sets at those that a forecast holds best, with
thresholds at which a draft stops. What is only named (a plug-in, `quantized`) is tried as it is, and at a few γ.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any

from selfspec import drafters
from selfspec.drafters.specs import ARROW, STAGED, Spec, parse_specs
from selfspec.errors import OptionError
from selfspec.measure.ours import BASELINE
from selfspec.types import MAX_GAMMA

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from selfspec.drafters.base import Drafter, Host

_LOOK_UPS: dict[str, dict[str, tuple[Any, ...]]] = {
    "suffix": {"gamma": (3, 7, 15), "min_match": (1, 2, 3)},
    "ngram": {"gamma": (3, 7, 15), "min_ngram": (1, 2)},
}
_GAMMAS = (2, 4, 7)  # of what is only named
_STOPS = (0.3, 0.5, 0.7, 0.9)
_POINTS = 6  # (k, γ) that are tried at all
_STOPPED = 2  # of them that are tried with every threshold
SEARCHED = ("early_exit", "layer_skip")


@dataclass(frozen=True)
class Point:
    """A draft by some layers that a forecast holds good: its drafter, what says which layers, γ and S."""

    drafter: str
    layers: tuple[tuple[str, str], ...]
    gamma: int
    speedup: float

    @property
    def longer(self) -> Point:
        """The same with twice the γ."""
        return replace(self, gamma=min(2 * self.gamma, MAX_GAMMA))

    def label(self, stop: float = 0.0) -> str:
        """As --draft takes it."""
        own = (("confidence", f"{stop:g}"),) if stop else ()
        return Spec(self.drafter, (*self.layers, ("gamma", str(self.gamma)), *own)).label


@dataclass(frozen=True)
class Space:
    """The drafters that were asked for; raises OptionError for what is none, or what chooses nothing."""

    specs: tuple[Spec, ...]

    @classmethod
    def of(cls, text: str) -> Space:
        """From a list with commas; options are checked."""
        specs = parse_specs(text)
        for spec in specs:
            if spec.name == BASELINE:
                raise OptionError(f"drafts has {BASELINE}, which everything is compared with anyway; leave it out")
            kind, _ = resolved(spec.name)
            if spec.given:
                spec.options(kind.Options)
        return cls(tuple(specs))

    def searches(self, drafter: str) -> bool:
        """Whether exits or skip sets are wanted: by their name alone, or at the end of a chain."""
        return Spec(drafter) in self.specs or any(_last_of(spec) == drafter for spec in self.specs)

    def contenders(self, points: Sequence[Point]) -> list[str]:
        """All of them, those first that cost nothing to try; ``points`` the best first."""
        found: list[str] = []
        for spec in sorted(self.specs, key=lambda spec: spec.name == "auto"):
            found += _of(spec, points)
        return list(dict.fromkeys(found))


def _of(spec: Spec, points: Sequence[Point]) -> Iterator[str]:
    own = [point for point in points if point.drafter == (_last_of(spec) or spec.name)]
    if chain := _last_of(spec):
        first = spec.label.removesuffix(f"{ARROW}{chain}")
        best = list({point.layers: point for point in reversed(own)}.values())[::-1]
        yield from (f"{first}{ARROW}{point.label()}" for point in best[:_STOPPED])
    elif spec.given:
        yield spec.label
    elif spec.name in _LOOK_UPS:
        grid = _LOOK_UPS[spec.name]
        labels = [spelled(spec.name, dict(zip(grid, v, strict=True))) for v in product(*grid.values())]
        yield from sorted(labels, key=lambda label: label.count(":"))  # the defaults first
    elif spec.name in SEARCHED:
        yield from (point.label() for point in own[:_POINTS])
        # a draft that may stop early may be longer
        yield from (point.longer.label(stop) for point in own[:_STOPPED] for stop in _STOPS)
    elif spec.name == "auto":
        yield "auto"
        yield "auto:candidates=(suffix)"
        yield from (f"auto:candidates=(suffix,{Spec(p.drafter, p.layers).label})" for p in points[:1])
    else:
        yield spec.name
        yield from (spelled(spec.name, {"gamma": gamma}) for gamma in _GAMMAS)


def _last_of(spec: Spec) -> str:
    """The searched drafter that ends a chain without options of its own, else ""."""
    if spec.name != STAGED or len(spec.given) != 1:
        return ""
    last = spec.label.rpartition(ARROW)[2]
    return last if last in SEARCHED else ""


def spelled(name: str, options: dict[str, Any]) -> str:
    """A drafter with the options that are not its defaults."""
    default = {field.name: field.default for field in fields(resolved(name)[0].Options)}
    given = [(option, f"{value}") for option, value in options.items() if value != default[option]]
    return Spec(name, tuple(given)).label


def kind_of(draft: str) -> str:
    """The name of the drafter; of a chain those of its stages."""
    (spec,) = parse_specs(draft)
    return ARROW.join(s.partition(":")[0] for s in spec.label.split(ARROW)) if spec.name == STAGED else spec.name


@cache
def resolved(draft: str) -> tuple[type[Drafter], dict[str, Any]]:
    """`drafters.resolve`, which reads the metadata of all packages."""
    return drafters.resolve(draft)


def made(draft: str, host: Host) -> Drafter:
    """The drafter, bound. Raises SelfspecError for what this model or machine cannot have."""
    kind, options = resolved(draft)
    return drafters.create(kind, host.runtime.config, options, host)


def shortlist(expected: dict[str, float | None], count: int) -> list[str]:
    """At most ``count`` of the contenders, by their expected speedups: who may be the best, and one of each kind.

    First the best of every kind that is within a tenth of the best of all, then what has no expectation (None), one
    of each kind before others, then the rest from the best down.
    """
    known = {draft: gain for draft, gain in expected.items() if gain is not None}
    ranked = sorted(known, key=lambda draft: -known[draft])
    unknown = [draft for draft, gain in expected.items() if gain is None]
    firsts = {kind_of(draft): draft for draft in reversed(unknown)}.values()
    unknown = [*reversed(firsts), *unknown]
    kinds: dict[str, str] = {}
    for draft in ranked:
        if known[draft] >= 0.9 * known[ranked[0]]:
            kinds.setdefault(kind_of(draft), draft)
    order = dict.fromkeys([*kinds.values(), *unknown, *ranked])
    return list(order)[:count]
