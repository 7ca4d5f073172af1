"""The columns of a measurement as a user writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec.drafters import drafter_class
from selfspec.drafters.specs import Spec, parse_specs
from selfspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Spec", "draft_specs", "pairs_of", "parse_specs"]


def draft_specs(text: str, baseline: str) -> list[Spec]:
    """The drafters' columns, the baseline first, whether it is named or not; drafters and options are checked."""
    specs = parse_specs(text)
    for spec in specs:
        spec.options(drafter_class(spec.name).Options)
    return [Spec(baseline), *(spec for spec in specs if spec.label != baseline)]


def pairs_of(values: Sequence[str], flag: str, names: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` given several times; NAME is one of ``names``."""
    found = {}
    for value in values:
        name, equals, rest = value.partition("=")
        if not equals or not rest or name not in names:
            raise OptionError(f"{flag} is {value!r}; it must be NAME=PATH, with NAME one of {', '.join(names)}")
        found[name] = rest
    return found
