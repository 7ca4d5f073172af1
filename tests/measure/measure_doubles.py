"""A clock that only moves when something costs, and a model whose passes cost what they are told to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from doubles import TINY

from selfspec.measure.timing import Answer, Column, ColumnError
from selfspec.measure.toy import MarkovCache
from selfspec.runtime.base import Runtime

VOCAB = 64


class Clock:
    """Seconds that pass only by `spend`."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


class Fixed(Column):
    """Takes a fixed time for an answer, or what a function of the number of calls says."""

    def __init__(self, name, clock, seconds, tokens=10, order=None):
        self.name, self._clock, self._tokens = name, clock, tokens
        self._seconds = seconds if callable(seconds) else lambda _: seconds
        self.calls, self._order, self.is_closed = 0, order if order is not None else [], False

    def answer(self, ask, first):
        self._order.append(self.name)
        self.calls += 1
        seconds = self._seconds(self.calls)
        if seconds is None:
            raise ColumnError("out of order")
        self._clock.spend(seconds / 4)
        first()
        self._clock.spend(seconds * 3 / 4)
        return Answer(tuple(range(self._tokens)))

    def close(self):
        self.is_closed = True


class CostlyRuntime(Runtime):
    """The next token is a fixed function of the last; a pass of T rows over all layers costs v(T) seconds."""

    name, precision, value_bytes = "simulated", "float64", 8

    def __init__(self, clock: Clock, v: float) -> None:
        self.config = replace(TINY, vocab_size=VOCAB, hidden_size=VOCAB, context_length=10**6)
        self._clock, self._v = clock, v

    def embed(self, tokens: Any, positions: Any = None) -> Any:
        return np.eye(VOCAB)[[successor(token) for token in tokens]]

    def run(self, hidden: Any, plan: Any, rows: Any, cache: Any, taps: Any = ()) -> Any:
        self._clock.spend((1.0 if len(rows) == 1 else self._v) * plan.row_layers / self.config.num_layers)
        return hidden, {}

    def logits(self, hidden: Any) -> Any:
        return hidden

    def new_cache(self, slots: int, length: int) -> MarkovCache:
        return MarkovCache(slots, length)

    def keep(self, cache: Any, rows: Any) -> None:
        pass


def successor(token: int) -> int:
    return (5 * token + 3) % VOCAB


class LayeredRuntime(Runtime):
    """Exits that agree with the last layer at known places, and passes of known cost.

    A pass of T rows over n layers costs ``layer`` n (1 + ``more`` (T - 1)) seconds, the head ``head`` times the
    same. A hidden state is (token, layers that ran, position); the target says `successor`.
    """

    name, precision, value_bytes = "layered", "float64", 8

    def __init__(self, clock: Clock, layer: float = 1.0, head: float = 4.0, more: float = 0.25) -> None:
        self.config = replace(TINY, vocab_size=VOCAB, context_length=10**4)
        self._clock, self._layer, self._head, self._more = clock, layer, head, more

    def agrees(self, position: int, layer: int) -> bool:
        share = layer / self.config.num_layers
        return layer == self.config.num_layers or (position * 7919 + layer * 104729) % 97 < 97 * share

    def cost(self, layers: float, head: int, rows: int = 1) -> float:
        return (layers * self._layer + head * self._head) * (1 + self._more * (rows - 1))

    def embed(self, tokens: Any, positions: Any = None) -> Any:
        return np.array([(token, 0, -1) for token in tokens], dtype=np.int64).reshape(-1, 3)

    def run(self, hidden: Any, plan: Any, rows: Any, cache: Any, taps: Any = ()) -> Any:
        self._clock.spend(self.cost(plan.row_layers, 0, len(rows)))
        out = hidden.copy()
        out[:, 2] = rows.positions
        tapped = {tap: out + np.array((0, tap.layer + 1, 0)) for tap in taps}
        out[:, 1] += int(plan.row_layers)
        return out, tapped

    def logits(self, hidden: Any) -> Any:
        self._clock.spend(self.cost(0, 1, len(hidden)))
        right = [
            (successor(token) + (0 if self.agrees(position, layer) else 7)) % VOCAB
            for token, layer, position in hidden.tolist()
        ]
        return np.eye(VOCAB)[right] * 5.0

    def new_cache(self, slots: int, length: int) -> MarkovCache:
        return MarkovCache(slots, length)

    def keep(self, cache: Any, rows: Any) -> None:
        pass
