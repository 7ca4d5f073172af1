"""Which exits and skip sets a search looks at, and what they say along plain decoding's answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from selfspec.drafters.layer_skip import plan_without
from selfspec.measure import voices
from selfspec.measure.contenders import Point
from selfspec.measure.plan_search import PlanSearch
from selfspec.measure.recorded import Tape
from selfspec.measure.settings import SearchOptions
from selfspec.types import LayerPlan, Sampling

if TYPE_CHECKING:
    from selfspec.engine import Engine
    from selfspec.measure.contenders import Space
    from selfspec.measure.profile import Question
    from selfspec.measure.profile_report import ProfileReport
    from selfspec.measure.settings import TuneOptions

    Units = dict[str, dict[str, Any]]
    Work = Mapping[str, Callable[[], Any]]

_EXITS = 4  # whose confidences are looked at
_SKIPS = 2  # sets of sub-layers that are replayed
_TRIALS = 60  # sets that are tried at all
_COURSES = 4  # answers along which they are


def chosen(units: Units, name: str, choose: Callable[[], Any]) -> Any:
    """What was chosen once stays, however much is measured later."""
    choices = units.setdefault("choices", {})
    if name not in choices:
        choices[name] = choose()
    return choices[name]


@dataclass(frozen=True)
class Listener:
    """Reads the ``answers`` of a profile in ``units``, and writes ``exits`` and ``skips``.

    ``report`` is the profile so far, ``clock`` that of all times.
    """

    engine: Engine
    questions: Sequence[Question]
    options: TuneOptions
    space: Space
    units: Units
    report: Callable[[], ProfileReport]
    clock: Callable[[], float]

    @property
    def sampling(self) -> Sampling:
        """That of the workload."""
        return Sampling(temperature=self.options.temperatures[0])

    @cached_property
    def _answers(self) -> dict[str, tuple[Question, dict[str, Any]]]:
        """The answers of more than two tokens, by the names of their questions."""
        temperature = f"{self.sampling.temperature:g} "
        known = self.units["answers"]
        found = {q.name: (q, known[temperature + q.name]) for q in self.questions if temperature + q.name in known}
        return {name: one for name, one in found.items() if len(one[1]["tokens"]) > 2}

    def _exits(self) -> list[Point]:
        """(k, γ) by what the forecast says, the best first."""
        forecast = self.report().forecasts.get(f"{self.sampling.temperature:g}")
        if forecast is None or not self.space.searches("early_exit"):
            return []
        ranked_points = sorted(forecast.points, key=lambda point: -point.speedup)
        return [
            Point("early_exit", (("exit_layer", str(p.exit_layer)),), p.gamma, p.speedup) for p in ranked_points
        ]

    def exit_voices(self) -> Work:
        """The work of the section ``exits``."""
        layers = [int(dict(point.layers)["exit_layer"]) for point in self._exits()]
        exits = chosen(self.units, "exits", lambda: list(dict.fromkeys(layers))[:_EXITS])
        if not exits:
            return {}
        return {
            name: partial(voices.of_exits, self.engine, question.prompt, answer["tokens"], exits, self.sampling)
            for name, (question, answer) in self._answers.items()
        }

    def skip_voices(self, ends: float) -> Work:
        """The work of the section ``skips``; the search for sets takes half of the time until ``ends``."""
        sets = chosen(self.units, "skips", partial(self._search_skips, ends))
        layers = self.engine.config.num_layers
        return {
            f"{number} {name}": partial(
                voices.of_plan,
                self.engine,
                question.prompt,
                answer["tokens"],
                plan_without(worth["skip"], layers),
                self.sampling,
            )
            for name, (question, answer) in self._answers.items()
            for number, worth in enumerate(sets)
        }

    def _search_skips(self, ends: float) -> list[dict[str, Any]]:
        """The best sets of sub-layers of those that were tried while there was time."""
        if not self.space.searches("layer_skip") or self.engine.config.recurrences or not self._answers:
            return []
        options = self.options
        asked = SearchOptions(
            temperature=options.temperature,
            max_new_tokens=options.max_new_tokens,
            seed=options.seed,
            gamma=options.gamma,
            trials=_TRIALS,
        )
        known = list(self._answers.items())[:_COURSES]
        units: Units = {"answers": {name: answer["tokens"] for name, (_, answer) in known}}
        search = PlanSearch(self.engine, [question for _, (question, _) in known], asked, units, self.clock)
        for _ in search.prepare():
            pass
        ends = (self.clock() + ends) / 2
        for name, (_, plans) in search.sources().items():
            if name == "bayesian":  # it wants hundreds of trials, and a package of its own
                continue
            for plan in plans:
                search.worth(plan)
                if self.clock() >= ends:
                    break
        return [worth._asdict() for worth in search.best(_SKIPS)]

    @cached_property
    def points(self) -> list[Point]:
        """Exits and skip sets, the best first."""
        skips = [
            Point("layer_skip", (("skip", f"({worth['skip']})"),), worth["gamma"], worth["speedup"])
            for worth in self.units.get("choices", {}).get("skips", [])
        ]
        heard = self.units.get("choices", {}).get("exits", [])
        exits = [point for point in self._exits() if int(dict(point.layers)["exit_layer"]) in heard]
        return sorted([*exits, *skips], key=lambda point: -point.speedup)

    @cached_property
    def tapes(self) -> list[Tape]:
        """The answers with all that was listened to."""
        layers, found = self.engine.config.num_layers, []
        skips = [plan_without(w["skip"], layers) for w in self.units.get("choices", {}).get("skips", [])]
        for number, (name, (question, answer)) in enumerate(self._answers.items()):
            heard = {
                LayerPlan.exit_at(layers, int(k)): kept for k, kept in self.units["exits"].get(name, {}).items()
            }
            of_skips = ((plan, self.units["skips"].get(f"{i} {name}")) for i, plan in enumerate(skips))
            heard |= {plan: kept for plan, kept in of_skips if kept is not None}
            said = {
                plan: voices.voice_of(kept, (self.options.seed, number, i))
                for i, (plan, kept) in enumerate(heard.items())
            }
            found.append(Tape(question.prompt, tuple(answer["tokens"]), answer["has_ended"], said))
        most = max((len(tape.voices) for tape in found), default=0)
        return [tape for tape in found if len(tape.voices) == most]  # all that a draft may ask for
