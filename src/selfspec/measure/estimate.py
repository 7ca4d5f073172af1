"""What a draft is worth, at stated numbers: the cost model of `selfspec.control` with its costs put together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from selfspec import control
from selfspec.errors import OptionError
from selfspec.measure.html import html_table
from selfspec.traffic import Traffic

TABLE = 11  # γ = 0 .. 10
_MOST_TEXTS = 1_000_000


@dataclass(frozen=True)
class Costs:
    """From what the costs of passes follow; None is what was not stated.

    ``layers``, ``exit_layer`` and ``head`` (the LM head's share of a full pass) are an early exit; ``c`` is the
    cost of a draft step, which replaces that of the exit; ``v`` what rows cost (`selfspec.control.RowCosts`), or
    ``experts``, ``per_token`` and ``expert_share`` (a mixture), ``batch`` (texts that share a pass) and ``ridge``,
    of which it follows (`selfspec.traffic`); ``draft_experts`` a draft with fewer of them.
    """

    layers: int | None = None
    exit_layer: int | None = None
    head: float | None = None
    c: float | None = None
    v: control.RowCosts | None = None
    experts: int | None = None
    per_token: int | None = None
    expert_share: float | None = None
    draft_experts: int | None = None
    batch: int | None = None
    ridge: float | None = None


@dataclass(frozen=True)
class Estimate:
    """Expected tokens per round and speedup over plain decoding; a notebook shows it as a table."""

    alpha: float
    gamma: int
    c: float
    v: control.RowCosts
    f: float

    def __post_init__(self) -> None:
        control.speedup(self.alpha, self.gamma, self.c, self.v, self.f)  # raises for what is out of range

    @property
    def expected_tokens(self) -> float:
        """Per round, the bonus token included."""
        return control.expected_tokens(self.alpha, self.gamma)

    @property
    def speedup(self) -> float:
        """S: tokens per second over those of plain decoding."""
        return control.speedup(self.alpha, self.gamma, self.c, self.v, self.f)

    @property
    def best_gamma(self) -> int:
        """The draft length of the largest S; 0: do not speculate."""
        return control.best_gamma(self.alpha, self.c, self.v, self.f)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready but for a ceiling that is infinite; ``table`` has γ from 0 on, as far as v is known."""
        known = len(self.v) if isinstance(self.v, list) else TABLE
        best = self.best_gamma
        return {
            "alpha": self.alpha,
            "c": self.c,
            "f": self.f,
            "v": self.v,
            **self._row(self.gamma),
            "ceiling": control.ceiling(self.alpha),
            "best_gamma": best,
            "best_speedup": control.speedup(self.alpha, best, self.c, self.v, self.f),
            "table": [self._row(length) for length in range(min(known, TABLE))],
        }

    def _row(self, gamma: int) -> dict[str, Any]:
        return {
            "gamma": gamma,
            "expected_tokens": control.expected_tokens(self.alpha, gamma),
            "speedup": control.speedup(self.alpha, gamma, self.c, self.v, self.f),
        }

    def _repr_html_(self) -> str:
        found = self.to_dict()
        caption = (
            f"α {self.alpha:g}, c {self.c:.3f}, f {self.f:.3f}: best γ {found['best_gamma']}, "
            f"{found['best_speedup']:.2f}x"
        )
        rows = [
            (f"{row['gamma']}", f"{row['expected_tokens']:.2f}", f"{row['speedup']:.2f}x") for row in found["table"]
        ]
        return html_table(caption, ("γ", "tokens per round", "speedup"), rows)


def estimate(alpha: float, gamma: int = 4, **costs: Any) -> Estimate:
    """The estimate for an acceptance rate and a draft length; ``costs`` are the fields of `Costs`.

    >>> round(estimate(0.7, layers=32, exit_layer=8).speedup, 2)
    1.39

    Raises
    ------
    OptionError
        A value outside its range, costs that contradict each other, or none.
    """
    return _estimated(alpha, gamma, Costs(**costs))


def row_costs_of(text: str) -> control.RowCosts:
    """What rows cost, as it is typed: a number, or the list v(1),v(2),... Raises OptionError."""
    try:
        values = [float(value) for value in text.split(",")]
    except ValueError:
        raise OptionError(f"v is {text!r}; it must be a number, or numbers with commas: v(1),v(2),...") from None
    return values if len(values) > 1 else values[0]


def _estimated(alpha: float, gamma: int, costs: Costs) -> Estimate:
    traffic, batch, c = _traffic(costs), costs.batch or 1, costs.c
    if traffic is not None and costs.v is not None:
        raise OptionError("v says what rows cost; leave it out, or experts, batch and ridge")
    if costs.draft_experts is not None:
        if costs.experts is None or c is not None or costs.exit_layer is not None:
            raise OptionError("draft-experts is a draft of its own: give experts, and neither c nor exit")
        assert traffic is not None
        c = traffic.draft_cost(costs.draft_experts, batch)
    stated = 1.0 if costs.v is None else costs.v
    v = stated if traffic is None else traffic.row_costs(batch)
    if isinstance(v, Sequence):
        v = [*v]
    return Estimate(alpha, gamma, *_draft_costs(costs, c, v))


def _traffic(costs: Costs) -> Traffic | None:
    """What passes read, if that is asked for."""
    mixture = {"experts": costs.experts, "per-token": costs.per_token, "expert-share": costs.expert_share}
    if missing := [name for name, value in mixture.items() if value is None]:
        if len(missing) < len(mixture):
            raise OptionError(f"{missing[0]} is missing; a mixture needs {', '.join(mixture)}")
        if costs.batch is None and costs.ridge is None:
            return None
    if costs.batch is not None and not 1 <= costs.batch <= _MOST_TEXTS:
        raise OptionError(f"batch is {costs.batch}; it must be 1 to {_MOST_TEXTS} texts")
    one = (1 if costs.experts is None else costs.experts, 1 if costs.per_token is None else costs.per_token)
    return Traffic(costs.expert_share or 0.0, *one, math.inf if costs.ridge is None else costs.ridge)


def _draft_costs(costs: Costs, c: float | None, v: control.RowCosts) -> tuple[float, control.RowCosts, float]:
    """c, v and f."""
    layers, exit_layer, head = costs.layers, costs.exit_layer, costs.head
    if layers is None and exit_layer is None:
        if c is None:
            raise OptionError("no draft cost; give layers and exit, or c")
        if head is not None:
            raise OptionError("head says nothing beside c alone; give layers and exit with it")
        return c, v, 0.0
    if layers is None or exit_layer is None:
        there, missing = ("layers", "exit") if exit_layer is None else ("exit", "layers")
        raise OptionError(f"{there} is given without {missing}; give both")
    share = control.shared_share(layers, exit_layer, head or 0.0)
    return (control.draft_cost(layers, exit_layer, head or 0.0) if c is None else c), v, share
