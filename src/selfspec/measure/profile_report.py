"""From the units of a profile to predictions, ratios, and one JSON-ready document."""

from __future__ import annotations

from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.measure.forecast import Answered, Forecast
from selfspec.measure.html import html_table, html_text
from selfspec.measure.pairs import paired_ratio
from selfspec.measure.roofline import roofline
from selfspec.measure.round_costs import RoundCosts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from selfspec.measure.settings import ProfileOptions
    from selfspec.runtime.base import Runtime


def point_name(exit_layer: int, gamma: int) -> str:
    """How a point is spelled: K:γ."""
    return f"{exit_layer}:{gamma}"


class ProfileReport:
    """What ``units``, those of `selfspec.measure.profile.Profile`, say; units that are missing say nothing.

    A notebook shows it as tables.
    """

    def __init__(self, runtime: Runtime, options: ProfileOptions, units: Mapping[str, Mapping[str, Any]]) -> None:
        self._runtime, self._options, self._units = runtime, options, units
        self._layers = runtime.config.num_layers

    def document(self) -> dict[str, Any]:
        """Everything; what belongs to a temperature is by its name, such as "0.8"."""
        ceiling = self._units.get("machine", {}).get("ceiling")
        one_row = {context: float(seconds[0]) for context, seconds in self._pass_seconds.items()}
        return {
            "ceiling": ceiling,
            "roofline": roofline(ceiling, self._runtime, one_row) if ceiling else None,
            "passes": [
                {"context": context, "seconds": found.tolist(), "v": self._v[context]}
                for context, found in self._pass_seconds.items()
            ],
            "rounds": {name: self._costs_document(costs) for name, costs in self.costs.items()},
            "exits": {name: self._exits_document(name, found) for name, found in self.forecasts.items()},
            "points": {name: [p.to_dict() for p in found.points] for name, found in self.forecasts.items()},
            "checks": list(self._checks()),
        }

    def _repr_html_(self) -> str:
        return "".join(self._tables()) or html_text("nothing was predicted: the budget was too small")

    def _tables(self) -> Iterator[str]:
        """For each temperature: of every exit its costs, its α, and its best γ."""
        for temperature, found in self.forecasts.items():
            costs, best = self.costs[temperature], max(found.points, key=lambda point: point.speedup)
            where = f"exit layer {best.exit_layer}, γ {best.gamma}"
            caption = f"temperature {temperature}: at best {best.speedup:.2f}x, {where}"
            rows = []
            for k, alpha in zip(found.exits, found.alphas, strict=True):
                own = max((p for p in found.points if p.exit_layer == k), key=lambda point: point.speedup)
                rows.append((f"{k}", f"{costs.c(k):.3f}", f"{alpha:.3f}", f"{own.gamma}", f"{own.speedup:.2f}x"))
            yield html_table(caption, ("exit layer", "c", "α", "best γ", "predicted S"), rows)

    @cached_property
    def costs(self) -> dict[str, RoundCosts]:
        """By temperature."""
        found = {}
        for name in self._temperatures:
            if repetitions := self._of("rounds", name):
                found[name] = RoundCosts.of(self._layers, self._options.gamma, list(repetitions.values()))
        return found

    @cached_property
    def forecasts(self) -> dict[str, Forecast]:
        """By temperature, where costs and answers are known."""
        v = next(iter(self._v.values()), [])
        found = {}
        for name in self._temperatures:
            # an answer of one token has no round
            answers = {
                question: Answered(np.array(unit["ratios"]), np.array(unit["overlaps"]), unit["has_ended"])
                for question, unit in self._of("answers", name).items()
                if unit["overlaps"] is not None
            }
            if answers and name in self.costs:
                found[name] = Forecast(answers, self.costs[name], self._options.gamma, v)
        return found

    @property
    def _temperatures(self) -> list[str]:
        return [f"{temperature:g}" for temperature in self._options.temperatures]

    def _of(self, section: str, first: str) -> dict[str, Any]:
        """The units of a section whose names begin with a word, by the rest of their names."""
        split = ((name.partition(" "), unit) for name, unit in self._units.get(section, {}).items())
        return {rest: unit for (word, _, rest), unit in split if word == first}

    @cached_property
    def _pass_seconds(self) -> dict[int, NDArray[np.float64]]:
        """By context: seconds of passes of 1, 2, ... rows, the medians of the repetitions."""
        found = {context: self._of("passes", str(context)) for context in self._options.context_lengths}
        return {context: np.median([*units.values()], axis=0) for context, units in found.items() if units}

    @cached_property
    def _v(self) -> dict[int, list[float]]:
        """By context: v(1), v(2), ..., the medians of the ratios of each repetition; v(1) is 1."""
        found = {}
        for context in self._pass_seconds:
            times = np.array([*self._of("passes", str(context)).values()])
            found[context] = [float(value) for value in np.median(times / times[:, :1], axis=0)]
        return found

    def _costs_document(self, costs: RoundCosts) -> dict[str, Any]:
        layer, rest = costs.line
        return {
            "plain_seconds": costs.plain_seconds,
            "layer": layer,
            "rest": rest,
            "grid": {
                "exits": list(costs.exits),
                "gammas": list(costs.gammas),
                "draft": costs.stages[:, :, 0].tolist(),
                "verify": costs.stages[:, :, 1].tolist(),
            },
        }

    def _exits_document(self, name: str, forecast: Forecast) -> list[dict[str, Any]]:
        """c, f, α by layer."""
        costs = self.costs[name]
        rows = zip(forecast.exits, forecast.alphas, forecast.by_position, strict=True)
        return [
            {"exit_layer": k, "c": costs.c(k), "f": costs.f(k), "alpha": alpha, "alpha_by_position": by_position}
            for k, alpha, by_position in rows
        ]

    # -- predicted beside measured ------------------------------------------------------------------------

    def _checks(self) -> Iterator[dict[str, Any]]:
        """Every point that was measured, at the first temperature."""
        forecast = self.forecasts.get(self._temperatures[0])
        points = dict.fromkeys(name.partition(" ")[0] for name in self._units.get("checks", {}))
        for name in points if forecast else ():
            assert forecast is not None
            pairs = [
                unit
                for unit in self._of("checks", name).values()
                if unit["question"] in forecast.questions and None not in unit["tpot_seconds"]
            ]
            if pairs:
                yield self._check(name, pairs, forecast)

    def _check(self, name: str, pairs: list[Any], forecast: Forecast) -> dict[str, Any]:
        exit_layer, gamma = map(int, name.split(":"))
        speeds = [(1.0 / plain, 1.0 / draft) for plain, draft in (unit["tpot_seconds"] for unit in pairs)]
        ratio = paired_ratio(speeds, self._options.seed)
        predicted = forecast.speedup(exit_layer, gamma, [unit["question"] for unit in pairs])
        return {
            "exit_layer": exit_layer,
            "gamma": gamma,
            "predicted": predicted,
            "formula": forecast.formula(exit_layer, gamma),
            "measured": asdict(ratio) | {"verdict": ratio.verdict()},
            "error": predicted / ratio.median - 1.0,
            "equal_answers": sum(unit["is_equal"] for unit in pairs),
        }
