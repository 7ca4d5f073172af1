"""What rounds cost: the real loop with the real drafter, timed stage by stage on a small grid of (k, γ).

A round of an early exit is γ draft steps (embedding, layers [0, k), head, choice), then the verification: layers
[0, k) for the last draft token, layers [k, L) and the head for γ + 1 rows, and the choice of every token that is
looked at. The loop reads its clock between the two, so nothing of this is left out, and every stage is timed in
the order, and with the caches, in which it really runs. Both stages are linear in k, layers being alike.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec import drafters
from selfspec.context import Context
from selfspec.decode import decode
from selfspec.generation import Generation
from selfspec.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from selfspec.engine import Engine

ROUNDS = 3  # that are counted of each kind in one repetition
_UNCOUNTED = 2  # the prefill, and the first round after it


def grid_exits(num_layers: int) -> tuple[int, ...]:
    """The exits whose rounds are timed: the first, the middle, the last."""
    return tuple(sorted({1, num_layers // 2, num_layers - 1}))


def grid_gammas(gamma: int) -> tuple[int, ...]:
    """The draft lengths whose rounds are timed: 1, 2, 4, ... and ``gamma``."""
    return tuple(sorted({2**i for i in range(gamma.bit_length())} | {gamma}))


class Probe:
    """Times rounds after one prompt, which is prefilled once.

    Parameters
    ----------
    prompt
        Token ids; the first of them are taken where it leaves no room for the rounds.
    gamma
        The longest draft that will be asked for.
    """

    def __init__(
        self,
        engine: Engine,
        prompt: Sequence[int],
        gamma: int,
        temperature: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine, self._clock, self._temperature = engine, clock, temperature
        self._new_tokens = self.tokens_needed(gamma)
        self._prompt = list(prompt)[: engine.config.context_length - self._new_tokens]
        self._cache = engine.runtime.new_cache(1, len(self._prompt) + self._new_tokens)
        self._cached = 0

    @staticmethod
    def tokens_needed(gamma: int) -> int:
        """New tokens that its rounds may write, the longest draft of the last of them included."""
        return 1 + (ROUNDS + _UNCOUNTED - 1) * (gamma + 1) + gamma

    def seconds(self, draft: str, options: dict[str, Any]) -> tuple[float, float]:
        """Of one round, the medians: drafting, and all the rest until the next round begins."""
        # nothing may shorten a draft: not the end of the text, nor a draft of an end-of-text token
        config = replace(self._engine.config, eos_token_ids=())
        drafter = drafters.create(draft, config, options)
        request = Request(max_new_tokens=self._new_tokens, temperature=self._temperature, seed=0, ignore_eos=True)
        generation = Generation(self._engine, self._prompt, request, drafter)
        text = generation.open(0, 0, self._cached)
        self._cached = len(self._prompt) - 1
        times: list[tuple[float, float]] = []
        context = Context(self._engine.runtime, self._cache)
        rounds = decode(context, [text], drafter, self._clock, origin=0.0)
        for round_ in islice(rounds, _UNCOUNTED + ROUNDS):
            generation.take(round_)  # what a stream does between two rounds
            times.append((round_.drafted_at - round_.started, self._clock() - round_.drafted_at))
        drafted, rest = zip(*times[_UNCOUNTED:], strict=True)
        return statistics.median(drafted), statistics.median(rest)

    def grid(self, exits: Sequence[int], gammas: Sequence[int], backwards: bool = False) -> dict[str, Any]:
        """One repetition, JSON-ready: seconds of a plain round, and draft and rest of each (k, γ) in plain rounds.

        Plain rounds are timed before and after every point, so that both halves of a ratio are of the same moment;
        ``backwards`` begins with the last point.
        """
        points = [(k, gamma) for k in exits for gamma in gammas]
        plain, found = [self._plain()], {}
        for k, gamma in reversed(points) if backwards else points:
            drafted, rest = self.seconds("early_exit", {"exit_layer": k, "gamma": gamma})
            plain.append(self._plain())
            one = (plain[-2] + plain[-1]) / 2
            found[k, gamma] = [drafted / one, rest / one]
        stages = [[found[k, gamma] for gamma in gammas] for k in exits]
        return {"plain_seconds": statistics.median(plain), "stages": stages}

    def _plain(self) -> float:
        return sum(self.seconds("plain", {}))


@dataclass(frozen=True, eq=False)
class RoundCosts:
    """What rounds cost in plain rounds, interpolated between the points of a grid.

    ``stages`` [exits, γs, 2] are the draft and the rest of a round.
    """

    num_layers: int
    exits: Sequence[int]
    gammas: Sequence[int]
    stages: NDArray[np.float64]
    plain_seconds: float

    @classmethod
    def of(cls, num_layers: int, gamma: int, repetitions: Sequence[Mapping[str, Any]]) -> RoundCosts:
        """The medians of at least one repetition of `Probe.grid`."""
        stages = np.median([found["stages"] for found in repetitions], axis=0)
        plain = statistics.median(found["plain_seconds"] for found in repetitions)
        return cls(num_layers, grid_exits(num_layers), grid_gammas(gamma), stages, plain)

    @cached_property
    def rounds(self) -> NDArray[np.float64]:
        """Whole rounds [L - 1, γ + 1] of exits from 1 on and drafts from 0 tokens on; without one it is plain."""
        exits, lengths = range(1, self.num_layers), range(self.gammas[-1] + 1)
        return np.array([[self._stage(0, k, n) + self._stage(1, k, n) for n in lengths] for k in exits])

    def c(self, exit_layer: int) -> float:
        """One draft step: the mean over drafts of all lengths."""
        steps = np.mean(self.stages[:, :, 0] / np.asarray(self.gammas), axis=1)
        return float(np.interp(exit_layer, self.exits, steps))

    def f(self, exit_layer: int) -> float:
        """Layers [0, k) for one row, a share from 0 to 1: verification runs them for the last draft token only."""
        return min(max(exit_layer * self.line[0], 0.0), 1.0)

    @cached_property
    def line(self) -> tuple[float, float]:
        """(one layer, all the rest) of a pass over one row: c = rest + k · layer, least squares.

        The rest is the head, the choice of a token, and what the loop itself costs; the plain round is a point of
        the line too, that of k = L.
        """
        places = [*self.exits, self.num_layers]
        layer, rest = np.polyfit(places, [*(self.c(k) for k in self.exits), 1.0], 1)
        return float(layer), float(rest)

    def _stage(self, stage: int, exit_layer: int, gamma: int) -> float:
        """The draft (0) or the rest (1) of a round."""
        lengths = [np.interp(exit_layer, self.exits, column) for column in self.stages[:, :, stage].T]
        return float(np.interp(gamma, [0, *self.gammas], [float(stage == 1), *lengths]))
