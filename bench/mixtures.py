"""What drafts are worth in batches, a mixture of experts against a dense model, by the cost model alone.

    python bench/mixtures.py [--ridge 300]

Nothing is measured here: `selfspec.traffic` says what passes read and compute, `selfspec.control` what that is
worth. The tables of docs/mixtures.md are made by it.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

from selfspec import control
from selfspec.traffic import Traffic

BATCHES = (1, 2, 4, 8, 16, 32)
MOST = 7  # γ


class Model(NamedTuple):
    """A name, the share of routed experts in what one row reads, how many there are, and how many a token has."""

    name: str
    share: float
    experts: int
    per_token: int


class Kind(NamedTuple):
    """A kind of draft: its α, and c and f of one text; ``c`` None: half of the experts."""

    name: str
    alpha: float
    c: float | None
    f: float = 0.0


MODELS = (
    Model("dense", 0.0, 1, 1),
    Model("8 experts, 2 a token", 0.9, 8, 2),
    Model("64 experts, 8 a token", 0.8, 64, 8),
    Model("128 experts, 8 a token", 0.8, 128, 8),
)
DRAFTS = (
    Kind("look-up, α 0.6", 0.6, 0.0),
    Kind("early exit at a quarter, α 0.7", 0.7, 0.3, 0.25),
    Kind("half of the experts, α 0.95", 0.95, None),
)


def worth(model: Model, draft: Kind, batch: int, ridge: float) -> str:
    """The best speedup, and the γ that has it."""
    traffic = Traffic(model.share, model.experts, model.per_token, ridge)
    v = traffic.row_costs(batch, MOST)
    if draft.c is None and model.experts == 1:
        return ""
    c = traffic.draft_cost(model.per_token // 2, batch) if draft.c is None else draft.c
    gamma = control.best_gamma(draft.alpha, c, v, draft.f)
    return f"{control.speedup(draft.alpha, gamma, c, v, draft.f):.2f} ({gamma})"


def main() -> None:
    """Print a table for each kind of draft."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ridge", type=float, default=300.0, help="rows that take as long to compute as to read")
    ridge = parser.parse_args().ridge
    for draft in DRAFTS:
        print(f"\n| {draft.name} | " + " | ".join(f"batch {batch}" for batch in BATCHES) + " |")
        print("|---" * (len(BATCHES) + 1) + "|")
        for model in MODELS:
            cells = [worth(model, draft, batch, ridge) for batch in BATCHES]
            if any(cells):
                print(f"| {model.name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
