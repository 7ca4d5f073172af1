"""A model as a table of its logits: every text is run once, so the real loop may replay it thousands of times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.runtime.base import Cache, Runtime
from selfspec.types import LayerPlan, Rows, SubLayer, on_host

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.types import Array, Integers

Steps = tuple[SubLayer, ...]


class TableCache(Cache):
    """The token of every cell: which text a row sees follows from its slot, position and cells alone."""

    def __init__(self, slots: int, length: int) -> None:
        self.slots, self.length = slots, length
        self.tokens = np.full((slots, length), -1, dtype=np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.tokens.nbytes

    def longer(self, length: int) -> TableCache:
        """A longer copy."""
        longer = TableCache(self.slots, length)
        longer.tokens[:, : self.length] = self.tokens
        return longer


class Table(Runtime):
    """Answers like ``runtime`` for texts that begin with ``prompt``, each from one pass that is remembered.

    A hidden state [2] is the number of the (text, sub-layers run so far) that it stands for, and its token.
    """

    def __init__(self, runtime: Runtime, prompt: Sequence[int], new_tokens: int) -> None:
        self.name, self.precision = f"table of {runtime.name}", runtime.precision
        self.value_bytes, self.config = runtime.value_bytes, runtime.config
        self.full = LayerPlan.full(runtime.config.num_layers)
        self._runtime = runtime
        self._known = len(prompt) - 1  # cells that every text shares
        self._cache = runtime.new_cache(1, len(prompt) + new_tokens)
        if self._known:
            rows = _rows(0, self._known)
            runtime.run(runtime.embed(prompt[:-1], rows.positions), self.full, rows, self._cache)
        self._keys: list[tuple[tuple[int, ...], Steps]] = []
        self._numbers: dict[tuple[tuple[int, ...], Steps], int] = {}
        self._logits: dict[int, Array] = {}

    def embed(self, tokens: Sequence[int], positions: Integers | None = None) -> Array:  # noqa: ARG002
        """States [R, 2] that stand for nothing yet."""
        return np.asarray([(-1, token) for token in tokens], dtype=np.int64).reshape(-1, 2)

    def run(
        self,
        hidden: Array,
        plan: LayerPlan,
        rows: Rows,
        cache: Cache,
        taps: Sequence[SubLayer] = (),
    ) -> tuple[Array, dict[SubLayer, Array]]:
        """Note which text each row sees, and that ``plan`` ran over it; taps are not known here."""
        assert isinstance(cache, TableCache)
        assert not taps
        cache.tokens[rows.slots, rows.cells] = hidden[:, 1]
        out = hidden.copy()
        for r, (state, token) in enumerate(hidden.tolist()):
            before = () if state < 0 else self._keys[state][1]
            seen = cache.tokens[rows.slots[r], _cells(rows, r)].tolist()
            assert seen[-1] == token
            out[r, 0] = self._number((tuple(seen), before + plan.steps))
        return out, {}

    def logits(self, hidden: Array) -> Array:
        """Logits [R, V] of the model for what the states stand for."""
        return np.stack([self._row(int(state)) for state in hidden[:, 0]])

    def after(self, tokens: Sequence[int]) -> Array:
        """Logits [V] of the full model for the token that follows ``tokens``."""
        return self._row(self._number((tuple(tokens), self.full.steps)))

    def new_cache(self, slots: int, length: int) -> TableCache:
        """An empty one."""
        return TableCache(slots, length)

    def keep(self, cache: Cache, rows: Rows) -> None:
        """Move the tokens of an accepted branch."""
        assert isinstance(cache, TableCache)
        cache.tokens[rows.slots, rows.positions] = cache.tokens[rows.slots, rows.cells]

    def _number(self, key: tuple[tuple[int, ...], Steps]) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self._keys)
            self._keys.append(key)
        return self._numbers[key]

    def _row(self, state: int) -> Array:
        if state not in self._logits:
            self._logits[state] = self._measured(*self._keys[state])
        return self._logits[state]

    def _measured(self, tokens: tuple[int, ...], steps: Steps) -> Array:
        """One pass of the model over what follows the shared cells."""
        plan = LayerPlan(self.full.num_layers, _layers(steps, "attention"), _layers(steps, "mlp"))
        rows = _rows(self._known, len(tokens))
        hidden = self._runtime.embed(tokens[self._known :], rows.positions)
        hidden, _ = self._runtime.run(hidden, plan, rows, self._cache)
        return on_host(self._runtime.logits(hidden[-1:]))[0]


def _layers(steps: Steps, part: str) -> tuple[int, ...]:
    return tuple(step.layer for step in steps if step.part == part)


def _rows(start: int, stop: int) -> Rows:
    return Rows.of([0] * (stop - start), range(start, stop))


def _cells(rows: Rows, r: int) -> Any:
    """The cells that row r sees, in the order of their positions."""
    if rows.lineage is None:
        return np.arange(rows.positions[r] + 1)
    root = rows.lineage[r, 0]
    depth = rows.positions[r] - root
    return np.concatenate([np.arange(root), rows.lineage[r, : depth + 1]])
