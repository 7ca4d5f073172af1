"""``selfspec plan``: what fits into a memory, with each way to draft, and which of them to take.

Sizes come from the configuration alone; gains from stated numbers or a saved profile, else they are not known.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfspec.errors import OptionError
from selfspec.loading import PLACING, runtime_for
from selfspec.measure.advice import recommendation, remedies
from selfspec.measure.html import html_table, html_text
from selfspec.measure.prices import can_pack
from selfspec.measure.quantities import bytes_of, size, tokens_of, weights_of
from selfspec.measure.sizes import Sizes, native_sizes, plain_sizes
from selfspec.measure.ways import PLAIN, Second, Way, needs, ways
from selfspec.measure.worth import Saved, Stated, Worth, by_way, row_costs, worth_of
from selfspec.model.embedded import EMBEDDED
from selfspec.model.load import config_of, locate
from selfspec.types import MAX_GAMMA, require_types

if TYPE_CHECKING:
    from collections.abc import Callable

    from selfspec.control import RowCosts

NAMES = ("ngram", "early_exit", "layer_skip", "quantized", "exit_head", "eagle", "draft_model")
_MOST_TEXTS = 65_536


@dataclass(frozen=True)
class PlanOptions:
    """What is planned; fields are options of `plan`.

    ``memory`` and ``reserve`` (what must be left of it for everything else) are bytes or texts with a unit,
    ``context`` tokens of a text, prompt included (None: the model's), ``concurrency`` texts at once, ``gamma``
    the most tokens of a draft. ``runtime``, ``bits``, ``dtype`` and ``kv`` are those of `selfspec.load`;
    ``draft_model`` and ``draft_bits``, or ``draft_size`` (a number of weights), a second model. ``alpha`` and ``c``
    are numbers, or numbers by the names of ways; ``v`` and ``ridge`` those of `selfspec.measure.estimate.Costs`;
    ``profile`` is a file of ``selfspec profile``.
    """

    memory: str | int
    context: str | int | None = None
    concurrency: int = 1
    reserve: str | int = 0
    gamma: int = 4
    runtime: str = "auto"
    bits: int | None = None
    dtype: str | None = None
    kv: str | None = None
    draft_model: str | None = None
    draft_bits: int | None = None
    draft_size: str | int | None = None
    alpha: Mapping[str, float] | float | None = None
    c: Mapping[str, float] | float | None = None
    v: RowCosts | None = None
    ridge: float | None = None
    profile: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        require_types(self)
        if not 1 <= self.concurrency <= _MOST_TEXTS:
            raise OptionError(f"concurrency is {self.concurrency}; it must be 1 to {_MOST_TEXTS} texts at once")
        if not 0 <= self.gamma <= MAX_GAMMA:
            raise OptionError(f"gamma is {self.gamma}; it must be 0 (no drafts) to {MAX_GAMMA}")
        if self.draft_bits is not None and self.draft_model is None:
            raise OptionError("draft_bits is for draft_model; name one")
        if self.draft_size is not None and self.draft_model is not None:
            raise OptionError("draft_size is for a draft model without a name; leave it or draft_model out")
        assert self.second is not None
        assert self.stated is not None
        if self.budget < 1:
            raise OptionError(f"reserve is {self.reserve!r}; of a memory of {self.memory!r} it leaves nothing")

    @property
    def budget(self) -> int:
        """Bytes that may be held."""
        return bytes_of("memory", self.memory) - bytes_of("reserve", self.reserve)

    @property
    def second(self) -> Second:
        """The draft model."""
        weights = None if self.draft_size is None else weights_of("draft_size", self.draft_size)
        return Second(self.draft_model, self.draft_bits, weights)

    @property
    def stated(self) -> Stated:
        """The numbers of the user."""
        return Stated(by_way("alpha", self.alpha, NAMES), by_way("c", self.c, NAMES), self.v, self.ridge)

    def length(self, sizes: Sizes) -> int:
        """Tokens of a text. Raises OptionError for more than the model reads."""
        most = sizes.config.context_length
        length = most if self.context is None else tokens_of("context", self.context)
        if length > most:
            raise OptionError(f"context is {self.context!r}; this model reads at most {most} tokens")
        return length


@dataclass(frozen=True)
class Row:
    """One way in the plan: bytes by part and in all, the largest context and concurrency that fit, and its gain."""

    way: Way
    parts: Mapping[str, int]
    budget: int
    largest_context: int
    largest_concurrency: int
    worth: Worth | None

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())

    @property
    def short(self) -> int:
        """Bytes that are missing; 0 where it fits."""
        return max(self.total - self.budget, 0)

    @property
    def extra(self) -> int:
        """Bytes beyond plain decoding."""
        return sum(held for part, held in self.parts.items() if part.startswith("draft"))

    @property
    def label(self) -> str:
        """Its name, and the precision of a quantized draft."""
        return f"{self.way.name} {self.way.runs}" if self.way.name == "quantized" else self.way.name

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        way = self.way
        return {
            "way": way.name,
            "runs": way.runs,
            "is_built": way.is_built,
            "parts": dict(self.parts),
            "total": self.total,
            "extra": self.extra,
            "fits": not self.short,
            "short": self.short,
            "largest_context": self.largest_context,
            "largest_concurrency": self.largest_concurrency,
            "keeps": way.keeps,
            "c": way.c,
            "f": way.f,
            "expected": None if self.worth is None else self.worth._asdict(),
            "note": way.note,
        }


@dataclass(frozen=True)
class MemoryPlan:
    """What fits, and what to do; a notebook shows it as a table. ``model`` is as given, ``name`` its name."""

    model: str
    sizes: Sizes
    options: PlanOptions
    rows: tuple[Row, ...]
    remedies: tuple[Mapping[str, Any], ...]
    recommendation: str
    notes: tuple[str, ...] = ()
    name: str = ""

    @cached_property
    def length(self) -> int:
        """Tokens of a text."""
        return self.options.length(self.sizes)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        sizes, options = self.sizes, self.options
        return {
            "model": self.model,
            "name": self.name,
            "family": sizes.config.family,
            "layers": sizes.config.num_layers,
            "parameters": sizes.config.parameters,
            "runtime": sizes.runtime,
            "precision": sizes.precision,
            "kv": sizes.kv_precision,
            "kv_bytes_per_token": sizes.kv,
            "memory": bytes_of("memory", options.memory),
            "reserve": bytes_of("reserve", options.reserve),
            "context": self.length,
            "context_length": sizes.config.context_length,
            "concurrency": options.concurrency,
            "gamma": options.gamma,
            "ways": [row.to_dict() for row in self.rows],
            "remedies": [dict(remedy) for remedy in self.remedies],
            "recommendation": self.recommendation,
            "notes": list(self.notes),
        }

    def _repr_html_(self) -> str:
        texts = f"{self.options.concurrency} x {self.length} tokens"
        caption = f"{self.model}, {self.sizes.precision} on {self.sizes.runtime}: {texts}"
        rows = [
            (
                row.label,
                size(row.total),
                "yes" if not row.short else f"{size(row.short)} too much",
                size(row.extra),
                row.way.keeps,
                "-" if row.worth is None else f"{row.worth.speedup:.2f}x",
            )
            for row in self.rows
        ]
        header = ("way", "memory", "fits", "of it for drafts", "to keep", "expected S")
        return html_table(caption, header, rows) + html_text(self.recommendation)


def plan(model: str | os.PathLike[str] = EMBEDDED, **options: Any) -> MemoryPlan:
    """What fits into ``memory`` with every way to draft, and which to take; ``options`` are those of `PlanOptions`.

    A folder needs no more than its ``config.json``; no weights are read.

    >>> plan("smollm2-135m", memory="1GB", context="2k", alpha={"quantized": 0.8}).recommendation  # doctest: +SKIP

    Raises
    ------
    SelfspecError
        An option that is wrong or contradicts another, as `selfspec.load`; a profile of something else.
    """
    named = os.fspath(model)
    if Path(named).name == "config.json":
        named = os.fspath(Path(named).parent)
    return Planner(named, PlanOptions(**options)).plan()


class Planner:
    """Makes a plan."""

    def __init__(self, model: str, options: PlanOptions) -> None:
        self._model, self._options = model, options
        config = config_of(model)
        placed = {name: getattr(options, name) for name in PLACING if hasattr(options, name)}
        given = [name for name, value in placed.items() if value is not None]
        runtime, self._lacks = runtime_for(model, options.runtime, given)
        self._config, self._is_cpu = config, runtime == "cpu"
        self.sizes = self.placed(options.bits, options.kv)
        self._length = options.length(self.sizes)
        self._saved = None if options.profile is None else Saved.read(options.profile)
        self._measured = None
        if self._saved is not None:
            self._saved.require(locate(model)[2], self.sizes)
            self._measured = self._saved.best_exit(options.concurrency, max(options.gamma, 1))

    def placed(self, bits: int | None, kv: str | None) -> Sizes:
        """The model in other bits (torch: 16 is bfloat16), with another cache."""
        if self._is_cpu:
            return native_sizes(self._model, self._config, bits, kv)
        return plain_sizes(self._config, self._options.dtype if bits is None else "bfloat16")

    def plan(self) -> MemoryPlan:
        """The plan."""
        sizes, options = self.sizes, self._options
        v = row_costs(sizes, options.stated, self._saved, options.concurrency, max(options.gamma, 1))
        rows = tuple(self._row(way, v) for way in self.ways(sizes))
        found = tuple(remedies(self, rows[0]))
        notes = tuple(self._notes(rows))
        advice = recommendation(self._model, rows, found, self)
        return MemoryPlan(self._model, sizes, options, rows, found, advice, notes, locate(self._model)[2])

    def ways(self, sizes: Sizes) -> list[Way]:
        """Those there are, in these sizes."""
        exit_layer = self._measured[0] if self._measured else None
        return ways(self._model, sizes, self._options.gamma, self._options.second, exit_layer)

    def total(self, sizes: Sizes, way: Way, length: int | None = None, slots: int | None = None) -> int:
        """Bytes of all parts, by default as planned."""
        where = (length or self._length, slots or self._options.concurrency)
        return sum(needs(sizes, way, *where, self._options.gamma).values())

    def largest(self, sizes: Sizes, way: Way, slots: int | None = None) -> tuple[int, int]:
        """The largest context at the planned concurrency (or ``slots``), and the largest concurrency; 0: none."""
        context = _largest(
            lambda n: self.total(sizes, way, n, slots) <= self._options.budget, self._config.context_length
        )
        return context, _largest(lambda n: self.total(sizes, way, None, n) <= self._options.budget, _MOST_TEXTS)

    @property
    def budget(self) -> int:
        """Bytes that may be held."""
        return self._options.budget

    @property
    def concurrency(self) -> int:
        """Texts at once."""
        return self._options.concurrency

    @property
    def can_pack(self) -> bool:
        """Whether other bits are possible."""
        return can_pack(self._model)

    @property
    def bits(self) -> int | None:
        """Those that were asked for."""
        return self._options.bits

    @property
    def is_cpu(self) -> bool:
        """Whether the native core runs it."""
        return self._is_cpu

    def _row(self, way: Way, v: RowCosts) -> Row:
        options = self._options
        parts = needs(self.sizes, way, self._length, options.concurrency, options.gamma)
        worth = None if way.name == PLAIN else worth_of(way, options.stated, self._measured, v, options.gamma)
        return Row(way, parts, options.budget, *self.largest(self.sizes, way), worth)

    def _notes(self, rows: tuple[Row, ...]) -> list[str]:
        found = [f"{row.label}: {row.way.note}" for row in rows if row.way.note]
        if missing := [row.label for row in rows if not row.way.is_built]:
            found.append(f"{', '.join(missing)}: counted from published shapes; not in this version")
        if self._lacks:
            found.append(f"the native core has no {self._lacks}: torch")
        if self._saved is not None and not self._saved.is_of_this_machine:
            found.append(f"profile {self._saved.path!r} was measured on another machine")
        if any(row.worth and row.worth.source == "stated" for row in rows):
            is_counted = self._saved is None
            found.append(f"S: with the α that was stated; c {'and v ' * is_counted}counted in bytes unless stated")
        return found


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest n from 1 to ``most`` that fits, where every smaller one does; 0 if none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
