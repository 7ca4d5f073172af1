"""How often a trained head is right on prompts of other kinds than it was trained on, by task and position.

    python bench/head_card.py eagle.safetensors --data bench.jsonl --limit 5

Prompts are answered with the head as the drafter, γ fixed and without a confidence stop. Of each position of a
draft α is accepted ÷ judged: a draft is judged up to its first wrong token. The figures do not depend on the clock.
They are printed as a table and, with --write, kept in the head's card (matrices are then written in 8 bits).
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from typing import Any

import click

import selfspec
from selfspec.measure.tasks import choose, read_prompts
from selfspec.model.embedded import EMBEDDED
from selfspec.model.head_file import read_head, write_head

KINDS = {"eagle": "eagle", "exit_head": "early_exit", "medusa": "medusa"}


class Tally:
    """Drafts of one task."""

    def __init__(self) -> None:
        self.judged: list[int] = []
        self.right: list[int] = []
        self.tokens = self.rounds = 0

    def add(self, stats: selfspec.Stats) -> None:
        """Count one text: a position is judged where all before it were right."""
        right = list(stats.accepted_per_position)
        judged = [min(pair) for pair in zip(stats.drafted_per_position, [stats.rounds, *right], strict=False)]
        self.judged, self.right = _sums(self.judged, judged), _sums(self.right, right)
        self.tokens, self.rounds = self.tokens + stats.tokens - 1, self.rounds + stats.rounds

    @property
    def facts(self) -> dict[str, Any]:
        """α by position, tokens per round, and how many drafts that is from."""
        alphas = [
            round(right / judged, 3) for right, judged in zip(self.right, self.judged, strict=False) if judged
        ]
        return {"alphas": alphas, "tau": round(self.tokens / max(self.rounds, 1), 3), "drafts": self.judged[0]}


def _sums(ours: list[int], theirs: list[int]) -> list[int]:
    size = max(len(ours), len(theirs))
    ours, theirs = (part + [0] * (size - len(part)) for part in (ours, theirs))
    return [a + b for a, b in zip(ours, theirs, strict=True)]


@click.command()
@click.argument("head")
@click.option("--model", default=EMBEDDED, help="The model that it was trained for.")
@click.option("--bits", type=int, help="cpu: 4, 8, 16 or 32 a weight.  [default: as stored]")
@click.option("--data", help="Prompts, JSON Lines.  [default: those of the package]")
@click.option("--limit", default=5, show_default=True, help="Prompts of each task.")
@click.option("--gamma", default=4, show_default=True)
@click.option("--max-new-tokens", default=96, show_default=True)
@click.option("--temperature", default=0.0, show_default=True)
@click.option("--write", is_flag=True, help="Keep the figures in the card of the head.")
def main(head: str, model: str, data: str | None, write: bool, **options: Any) -> None:
    """Measure a head's acceptance by task and position."""
    engine = selfspec.load(model, bits=options["bits"], tuned=False)
    draft = {"draft": KINDS[read_head(head).facts.kind], "head": head, "gamma": options["gamma"], "confidence": 0.0}
    law = {"temperature": options["temperature"], "max_new_tokens": options["max_new_tokens"], "seed": 0}
    tallies: dict[str, Tally] = defaultdict(Tally)
    for prompt in choose(read_prompts(data), (), options["limit"]):
        stats = engine.generate(prompt.turns[0], **draft, **law).stats
        for name in (prompt.task, "all"):
            tallies[name].add(stats)
    found = {task: tally.facts for task, tally in sorted(tallies.items())}
    print("| task | α by position | tokens per round | drafts |\n|---|---|---|---|")
    for task, facts in found.items():
        print(
            f"| {task} | {' '.join(f'{a:.2f}' for a in facts['alphas'])} | {facts['tau']:.2f} | {facts['drafts']} |"
        )
    if write:
        kept = read_head(head)
        shown = {"gamma": options["gamma"], "temperature": options["temperature"], "tasks": found}
        card = {**(kept.facts.card or {}), "acceptance": shown}
        write_head(head, replace(kept, facts=replace(kept.facts, card=card)), int8=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
