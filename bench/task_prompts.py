"""Prompts about texts that the model wrote itself: summaries, questions on passages, rewriting, facts, translation.

A head learns what the model says to the prompts that it is shown; short questions alone teach it nothing of answers
to long ones. This makes prompts with passages from the answers of a folder of `selfspec train data`, so that no
text of others is needed:

    python bench/task_prompts.py --data answers --out tasks.jsonl --count 1000
    selfspec train data --prompts tasks.jsonl --out task-answers
"""

from __future__ import annotations

import json
from pathlib import Path

import click
import numpy as np

import selfspec
from selfspec.model import EMBEDDED
from selfspec.train.data import read_data

SHORTEST = 20  # tokens of an answer that can be asked about
ON_ONE = (
    "Summarize: {0}",
    "Summarize the following text in two sentences.\n\n{0}",
    "Write a short summary of this article.\n\n{0}\n\nTL;DR:",
    "Give the text below a title and three key points.\n\n{0}",
    "Rewrite the following text so that a child understands it.\n\n{0}",
    "Correct the mistakes in this text.\n\n{0}",
    "Translate into Spanish: {0}",
    "Translate German to English: {0}",
    "List the facts of the following text as JSON.\n\n{0}",
    "What is the main idea of this text?\n\n{0}",
)
ON_SEVERAL = (
    "Answer the question using the passages.\n\nPassage 1: {0}\n\nPassage 2: {1}\n\nPassage 3: {2}\n\n"
    "Question: {3}",
    "Context:\n{0}\n\n{1}\n\n{2}\n\nBased on the context, {3}",
    "Document [1] {0}\n\nDocument [2] {1}\n\nDocument [3] {2}\n\nQuestion: {3}\nAnswer:",
)


@click.command()
@click.option("--data", required=True, help="A folder of `selfspec train data`.")
@click.option("--model", default=EMBEDDED, show_default=True, help="The model that wrote them.")
@click.option("--out", required=True, help="The file that the prompts are written to, JSON Lines.")
@click.option("--count", default=1000, show_default=True)
@click.option(
    "--passage", default=220, type=click.IntRange(SHORTEST), show_default=True, help="Most tokens of a passage."
)
@click.option("--seed", default=0, show_default=True)
def main(data: str, model: str, out: str, count: int, passage: int, seed: int) -> None:
    """Write prompts about texts that the model wrote itself."""
    tokenizer = selfspec.load(model, draft="plain").tokenizer
    assert tokenizer is not None
    rng = np.random.default_rng(seed)
    answers = [text.answer[:passage] for text in read_data(data)]
    if not (answers := [answer for answer in answers if len(answer) >= SHORTEST]):
        raise click.UsageError(f"{data!r} has no answer of {SHORTEST} tokens or more; give another --data")
    prompts: list[str] = []
    for _ in range(count):
        picked = (answers[int(i)].tolist() for i in rng.integers(0, len(answers), size=4))
        *passages, about = (tokenizer.decode(answer).strip() for answer in picked)
        question = f"what does the text say about {' '.join(about.split()[:4])}?"
        if rng.random() < 0.4:
            prompts.append(str(rng.choice(ON_SEVERAL)).format(*passages, question))
        else:
            prompts.append(str(rng.choice(ON_ONE)).format(passages[0]))
    Path(out).write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts), encoding="utf-8")


if __name__ == "__main__":
    main()
