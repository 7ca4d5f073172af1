"""What a way to decode is expected to gain: from stated numbers, or from a saved profile."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from selfspec import control
from selfspec.documents import require_format
from selfspec.errors import OptionError
from selfspec.machine import machine
from selfspec.traffic import Traffic

if TYPE_CHECKING:
    import os

    from selfspec.control import RowCosts
    from selfspec.measure.sizes import Sizes
    from selfspec.measure.ways import Way

ALL = ""  # the way that a number without a name is for


class Worth(NamedTuple):
    """An expected speedup, at the best draft length, and where it is from."""

    speedup: float
    gamma: int
    alpha: float
    c: float
    source: str


@dataclass(frozen=True)
class Stated:
    """Numbers of the user: α and c by the names of ways (`ALL`: every way without one of its own), v for all."""

    alpha: Mapping[str, float]
    c: Mapping[str, float]
    v: RowCosts | None = None
    ridge: float | None = None

    def __post_init__(self) -> None:
        for alpha in self.alpha.values():
            control.ceiling(alpha)  # raises for what is no share
        for c in self.c.values():
            control.speedup(0.0, 0, c)


def by_way(name: str, value: float | Mapping[str, float] | None, known: Sequence[str]) -> dict[str, float]:
    """A number for all ways, or numbers by their names. Raises OptionError for a way that there is not."""
    found = dict(value) if isinstance(value, Mapping) else {} if value is None else {ALL: value}
    if wrong := [way for way in found if way not in (*known, ALL)]:
        raise OptionError(f"{name} is given for {wrong[0]!r}; it must be one of {', '.join(known)}")
    return found


# -- a saved profile --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Saved:
    """A result of ``selfspec profile --out``: what it is of, v(1), v(2), ..., exits and points at a temperature."""

    path: str
    of: Mapping[str, Any]
    v: list[float]
    exits: list[Mapping[str, Any]]
    points: list[Mapping[str, Any]]
    temperature: str

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Saved:
        """From a file. Raises OptionError if there is no such result in it."""
        shown = str(path)
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
            require_format(found, f"profile {shown!r}")
            of = {name: found[name] for name in ("model", "runtime", "precision", "layers", "machine")}
            name = next(iter(found["points"]))
            exits, points = found["exits"][name], found["points"][name]
            v = [float(cost) for cost in found["passes"][0]["v"]]
            for row in (*exits, *points):
                float(row["exit_layer"]), float(row.get("alpha", 0)), float(row.get("speedup", 0))
            return cls(shown, of, v, exits, points, name)
        except OSError as error:
            raise OptionError(f"profile {shown!r} cannot be read: {error.strerror}") from error
        except OptionError:
            raise
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            IndexError,
            OverflowError,
            StopIteration,
            RecursionError,
        ) as error:
            raise OptionError(
                f"profile {shown!r} holds no finished profile; make one with: selfspec profile --out FILE"
            ) from error

    def require(self, model: str, sizes: Sizes) -> None:
        """Raise OptionError where it was measured on something else than is planned."""
        planned = {
            "model": model,
            "layers": sizes.config.num_layers,
            "runtime": sizes.runtime,
            "precision": sizes.precision,
        }
        for name, value in planned.items():
            if self.of[name] != value:
                raise OptionError(
                    f"profile {self.path!r} has the {name} {self.of[name]!r}, and this plan {value!r}; "
                    "measure that, or leave the profile out"
                )

    @property
    def is_of_this_machine(self) -> bool:
        """Whether it was measured here, as far as a name and a number of cores tell."""
        return all(self.of["machine"].get(name) == machine()[name] for name in ("processor", "cores"))

    def row_costs(self, texts: int, gamma: int) -> list[float]:
        """v(1), ..., v(γ + 1) for each of ``texts`` that share their passes.

        As measured for one; beyond the longest pass that was measured, every row costs what the last one did.
        """
        last = max(self.v[-1] - self.v[-2], 0.0) if len(self.v) > 1 else 0.0

        def cost(rows: int) -> float:
            return self.v[rows - 1] if rows <= len(self.v) else self.v[-1] + last * (rows - len(self.v))

        if texts == 1:
            return self.v[: gamma + 1]
        return [cost(texts * rows) / cost(texts) for rows in range(1, gamma + 2)]

    def best_exit(self, texts: int, gamma: int) -> tuple[int, Worth] | None:
        """The exit layer of the largest speedup, with its best γ; None where no exit was measured."""
        found = {row["exit_layer"]: row for row in self.exits}
        if texts == 1:
            points = [point for point in self.points if point["gamma"] <= gamma and point["exit_layer"] in found]
            if not points:
                return None
            best = max(points, key=lambda point: float(point["speedup"]))
            row = found[best["exit_layer"]]
            worth = Worth(best["speedup"], best["gamma"], row["alpha"], row["c"], "profile")
            return best["exit_layer"], worth
        v = self.row_costs(texts, gamma)
        worths = {k: valued((r["alpha"], r["c"], r["f"]), v, gamma, "profile") for k, r in found.items()}
        return max(worths.items(), key=lambda item: item[1].speedup, default=None)


# -- expectations -----------------------------------------------------------------------------------------


def valued(costs: tuple[float, float, float], v: RowCosts, gamma: int, source: str) -> Worth:
    """The best of γ = 1, 2, ... at (α, c, f)."""
    alpha, c, f = costs
    alpha = min(alpha, 1.0)
    longest = min(gamma, len(v) - 1) if isinstance(v, Sequence) else gamma
    lengths = range(1, max(longest, 1) + 1)
    best = max(lengths, key=lambda length: control.speedup(alpha, length, c, v, f))
    return Worth(control.speedup(alpha, best, c, v, f), best, alpha, c, source)


def row_costs(sizes: Sizes, stated: Stated, saved: Saved | None, texts: int, gamma: int) -> RowCosts:
    """The v that was stated, that was measured, else by what a pass reads (`selfspec.traffic`)."""
    if stated.v is not None:
        return stated.v
    if saved is not None:
        return saved.row_costs(texts, gamma)
    traffic = Traffic.of(sizes.config)
    if stated.ridge is not None:
        traffic = replace(traffic, ridge=stated.ridge)
    return traffic.row_costs(texts, gamma)


def worth_of(way: Way, stated: Stated, measured: tuple[int, Worth] | None, v: RowCosts, gamma: int) -> Worth | None:
    """What a way is expected to gain, None where its α is not known; ``measured``: exit and gain of a profile.

    What was stated for this way goes before what was measured, and that before what was stated for all; a look-up
    is none of these: its α is the text's; and ``auto`` has none.
    """
    for_all = way.name not in ("ngram", "auto")
    alpha = stated.alpha.get(way.name)
    if alpha is None and measured and way.name == "early_exit" and gamma:
        return measured[1]
    if alpha is None and for_all:
        alpha = stated.alpha.get(ALL)
    c = stated.c.get(way.name, stated.c.get(ALL, way.c) if for_all else way.c)
    return None if alpha is None or c is None or not gamma else valued((alpha, c, way.f), v, gamma, "stated")
