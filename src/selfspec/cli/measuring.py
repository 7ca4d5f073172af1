"""The commands that measure: their flags are made from the dataclasses of `selfspec.measure.settings`."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from selfspec.cli.flags import Flag, MadeCommand, made_flag, model_flags

if TYPE_CHECKING:
    from collections.abc import Mapping

    from selfspec.measure.settings import Workload

Wanted = TypeVar("Wanted", bound="Workload")


class MeasuringCommand(MadeCommand):
    """A command with the flags of a model, and those of a dataclass that says what is measured, by its name."""

    measured: ClassVar[str]

    def made_flags(self) -> list[Flag]:
        """Model and measuring."""
        kind = getattr(import_module("selfspec.measure.settings"), self.measured)
        asked = [
            made_flag(field, field.metadata["help"], "Measuring", multiple=field.default == ())
            for field in fields(kind)
        ]
        return [*model_flags(), *asked]


class BenchCommand(MeasuringCommand):
    """``selfspec bench``."""

    measured = "BenchOptions"


class SearchCommand(MeasuringCommand):
    """``selfspec search-plan``."""

    measured = "SearchOptions"


class ProfileCommand(MeasuringCommand):
    """``selfspec profile``."""

    measured = "ProfileOptions"


class TuneCommand(MeasuringCommand):
    """``selfspec tune``."""

    measured = "TuneOptions"


def asked_of(kind: type[Wanted], options: Mapping[str, Any]) -> tuple[Wanted, dict[str, Any]]:
    """The options that a dataclass has, as one, and the flags that it does not have."""
    names = {field.name for field in fields(kind)}
    asked = {name: value for name, value in options.items() if name in names and value is not None}
    return kind(**asked), {name: value for name, value in options.items() if name not in names}
