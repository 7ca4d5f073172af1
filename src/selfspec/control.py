"""The cost model: what a draft is worth, from its acceptance rate and what its passes cost.

Symbols are those of docs/architecture.md: α acceptance rate, γ draft length, c cost of one draft step ÷ one target
step, v(T) cost of a T-row target pass ÷ a 1-row pass, f time share of the layers that verification does not
repeat. Costs are measured, never assumed: with v = 1 the model is the textbook's
``E / (γc + 1)`` (Leviathan et al., arXiv 2211.17192, theorem 3.8).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import TypeAlias

from selfspec.errors import OptionError

MAX_GAMMA = 64  # as in types, which would import NumPy; a test keeps the two equal
_MOST_LAYERS = 10_000

RowCosts: TypeAlias = "float | Sequence[float]"
"""v(T): one number for every pass of more than one row, or the list v(1), v(2), ..., with v(1) = 1."""


def expected_tokens(alpha: float, gamma: int) -> float:
    """E[τ]: expected tokens per round, (1 - α^(γ+1)) / (1 - α); γ + 1 where α is 1."""
    _require_share("alpha", alpha)
    _require_gamma(gamma)
    return math.fsum(alpha**i for i in range(gamma + 1))  # the same sum, exact near α = 1 as well


def ceiling(alpha: float) -> float:
    """The speedup that no draft length exceeds, even with free drafts: 1 / (1 - α); infinite where α is 1."""
    _require_share("alpha", alpha)
    return math.inf if alpha == 1.0 else 1.0 / (1.0 - alpha)


def draft_cost(layers: int, exit_layer: int, head: float = 0.0) -> float:
    """The c of an early exit: (1 - H) k/L + H, where H is the LM head's share of one full pass.

    Raises OptionError unless 1 <= exit_layer < layers and 0 <= head < 1.
    """
    return shared_share(layers, exit_layer, head) + head


def shared_share(layers: int, exit_layer: int, head: float = 0.0) -> float:
    """The f of an early exit: (1 - H) k/L, what verification does not repeat. Raises as `draft_cost`."""
    if not _is_integer(layers) or not 2 <= layers <= _MOST_LAYERS:
        raise OptionError(
            f"layers is {str(layers)[:20]}; an early exit needs a model of 2 to {_MOST_LAYERS} layers"
        )
    if not _is_integer(exit_layer) or not 1 <= exit_layer < layers:
        raise OptionError(
            f"exit layer is {str(exit_layer)[:20]}; with {layers} layers it must be an integer "
            f"from 1 to {layers - 1}"
        )
    if not _is_number(head) or not 0.0 <= head < 1.0:
        raise OptionError(f"head is {head}; it must be a share of one pass, from 0 to below 1")
    return (1.0 - head) * exit_layer / layers


def row_cost(v: RowCosts, rows: int) -> float:
    """v(rows); v(1) is 1 by definition, whatever the constant.

    Raises OptionError for a list that is too short, or values that are not finite and positive.
    """
    if isinstance(v, Sequence):
        _require_costs(v)
        if len(v) < rows:
            raise OptionError(
                f"v has {len(v)} values, v(1) to v({len(v)}); a draft of {rows - 1} tokens needs {rows}"
            )
        return v[rows - 1]
    _require_cost("v", v)
    return 1.0 if rows == 1 else v


def speedup(alpha: float, gamma: int, c: float, v: RowCosts = 1.0, f: float = 0.0) -> float:
    """S = E[τ] / (γc + f + (1 - f) v(γ + 1)): tokens per second over those of plain decoding.

    Raises OptionError for a value outside its range.
    """
    tokens = expected_tokens(alpha, gamma)
    if not _is_number(c) or not 0.0 <= c < math.inf:
        raise OptionError(f"c is {c}; it must be 0 or a positive number")
    _require_share("f", f)
    return tokens / (gamma * c + f + (1.0 - f) * row_cost(v, gamma + 1))


def best_gamma(alpha: float, c: float, v: RowCosts = 1.0, f: float = 0.0, max_gamma: int = MAX_GAMMA) -> int:
    """The draft length, 0 included, with the largest speedup; the shortest where several are equal.

    A list ``v`` limits it to ``len(v) - 1``: nothing is known of longer passes.
    """
    _require_gamma(max_gamma)
    longest = min(max_gamma, len(v) - 1) if isinstance(v, Sequence) else max_gamma
    return max(range(max(longest, 0) + 1), key=lambda gamma: speedup(alpha, gamma, c, v, f))


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _require_share(name: str, value: float) -> None:
    if not _is_number(value) or not 0.0 <= value <= 1.0:
        raise OptionError(f"{name} is {value}; it must be from 0 to 1")


def _require_cost(name: str, value: float) -> None:
    if not _is_number(value) or not 0.0 < value < math.inf:
        raise OptionError(f"{name} is {value}; it must be a finite number above 0")


def _require_gamma(gamma: int) -> None:
    if not _is_integer(gamma) or not 0 <= gamma <= MAX_GAMMA:
        raise OptionError(f"gamma is {gamma}; it must be an integer from 0 (no drafts) to {MAX_GAMMA}")


def _require_costs(v: Sequence[float]) -> None:
    for rows, cost in enumerate(v, start=1):
        _require_cost(f"v({rows})", cost)
    if v and v[0] != 1.0:
        raise OptionError(f"v(1) is {v[0]}; it must be 1, since costs are relative to a pass of one row")
