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
from typing import TYPE_CHECKING, Any

import click

import selfspec
from selfspec.drafters.trained import DRAFTERS
from selfspec.measure.report import sum_of
from selfspec.measure.tasks import choose, read_prompts
from selfspec.model.embedded import EMBEDDED
from selfspec.model.head_file import read_head, write_head

if TYPE_CHECKING:
    from collections.abc import Sequence


def judged(stats: selfspec.Stats) -> list[int]:
    """How many drafts had a token at each depth, and only right ones before it."""
    there, right = stats.drafted_per_position, stats.accepted_per_position
    return list(map(min, there, [*there[:1], *right]))


def acceptance(parts: Sequence[selfspec.Stats]) -> dict[str, Any]:
    """α by position, tokens per round, and how many drafts that is from."""
    total = sum_of(parts)
    counts = zip(total.accepted_per_position, judged(total), strict=False)
    return {
        "alphas": [round(right / of, 3) for right, of in counts if of],
        "tau": round(total.mean_accepted_length, 3),
        "drafts": total.drafted_per_position[0],
    }


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
    draft = {
        "draft": DRAFTERS[read_head(head).facts.kind],
        "head": head,
        "gamma": options["gamma"],
        "confidence": 0.0,
    }
    law = {"temperature": options["temperature"], "max_new_tokens": options["max_new_tokens"], "seed": 0}
    done: dict[str, list[selfspec.Stats]] = defaultdict(list)
    for prompt in choose(read_prompts(data), (), options["limit"]):
        stats = engine.generate(prompt.turns[0], **draft, **law).stats
        for name in (prompt.task, "all"):
            done[name].append(stats)
    found = {task: acceptance(parts) for task, parts in sorted(done.items())}
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
