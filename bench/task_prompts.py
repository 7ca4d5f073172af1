"""Prompts about texts that the model wrote itself: summaries, questions on passages, rewriting, facts, translation.

A head learns what the model says to the prompts that it is shown; short questions alone teach it nothing of answers
to long ones. This makes prompts with passages from the answers of a folder of `selfspec train data`, so that no
text of others is needed:

    python bench/task_prompts.py --data answers --out tasks.jsonl --count 1000
    selfspec train data --prompts tasks.jsonl --out task-answers
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import numpy as np

import selfspec
from selfspec.model import EMBEDDED
from selfspec.train.data import read_data
from selfspec.train.self_prompts import key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from selfspec.model.tokenizer import Tokenizer

SHORTEST = 20  # tokens of an answer that can be asked about
LONGEST_QUESTION = 120  # characters
ON_ONE = (
    "Summarize: {0}",
    "Summarize: {0}",
    "Summarize the following text in two sentences.\n\n{0}",
    "Write a short summary of this article.\n\n{0}\n\nTL;DR:",
    "Give the text below a title and three key points.\n\n{0}",
    "Rewrite the following text so that a child understands it.\n\n{0}",
    "Correct the mistakes in this text.\n\n{0}",
    "Translate into Spanish: {0}",
    "List the facts of the following text as JSON.\n\n{0}",
    "What is the main idea of this text?\n\n{0}",
)
ON_SEVERAL = (
    "Answer the question using the passages.\n\nPassage 1: {0}\n\nPassage 2: {1}\n\nPassage 3: {2}\n\n"
    "Question: {3}",
    "Context:\n{0}\n\n{1}\n\n{2}\n\nBased on the context, {3}",
    "Document [1] {0}\n\nDocument [2] {1}\n\nDocument [3] {2}\n\nQuestion: {3}\nAnswer:",
    "{0}\n\n{1}\n\n{2}\n{3}",
)
FROM_GERMAN = ("Translate German to English: {0}", "Translate the following German text into English.\n\n{0}")


class Told(NamedTuple):
    """What a folder of answers can be asked about: passages, questions, and texts in German."""

    passages: list[str]
    questions: list[str]
    german: list[str]

    @classmethod
    def of(cls, data: str, tokenizer: Tokenizer, passage: int) -> Told:
        """Answers cut to ``passage`` tokens; prompts that ask; answers to prompts that want German."""
        found = cls([], [], [])
        empty = tokenizer.render([{"role": "user", "content": ""}]) if tokenizer.has_chat_template else ""
        shown = tokenizer.decode(tokenizer.encode(empty, add_special_tokens=False))
        frame = {key(line) for line in shown.splitlines()}
        for text in read_data(data):
            said = tokenizer.decode(text.prompt.tolist())
            own = [line for line in said.splitlines() if key(line) not in frame]
            if own and own[-1].endswith("?") and len(own[-1]) <= LONGEST_QUESTION:
                found.questions.append(own[-1].strip())
            if len(text.answer) >= SHORTEST:
                answer = tokenizer.decode(text.answer[:passage].tolist()).strip()
                (found.german if re.search(r"\b(in|into|to) German\b", said) else found.passages).append(answer)
        return found

    def prompts(self, count: int, joined: int, rng: np.random.Generator) -> Iterator[str]:
        """An article is 1 to ``joined`` passages; four in ten prompts have three passages and a question."""

        def any_of(choices: Sequence[str]) -> str:
            return choices[int(rng.integers(len(choices)))]

        for _ in range(count):
            kind = rng.random()
            if self.german and kind < 0.1:
                yield any_of(FROM_GERMAN).format(any_of(self.german))
            elif kind < 0.5:
                passages = [any_of(self.passages) for _ in range(3)]
                about = any_of(self.passages)
                asked = f"what does the text say about {' '.join(about.split()[:4])}?"
                # a question of another text as well: often enough passages do not say
                yield any_of(ON_SEVERAL).format(*passages, any_of([asked, *self.questions]))
            else:
                article = "\n\n".join(any_of(self.passages) for _ in range(int(rng.integers(1, joined + 1))))
                yield any_of(ON_ONE).format(article)


@click.command()
@click.option("--data", required=True, help="A folder of `selfspec train data`.")
@click.option("--model", default=EMBEDDED, show_default=True, help="The model that wrote them.")
@click.option("--out", required=True, help="The file that the prompts are written to, JSON Lines.")
@click.option("--count", default=1000, show_default=True)
@click.option("--joined", default=4, type=click.IntRange(1), show_default=True, help="Most passages of an article.")
@click.option(
    "--passage", default=220, type=click.IntRange(SHORTEST), show_default=True, help="Most tokens of a passage."
)
@click.option("--seed", default=0, show_default=True)
def main(data: str, model: str, out: str, count: int, joined: int, passage: int, **options: int) -> None:
    """Write prompts about texts that the model wrote itself."""
    tokenizer = selfspec.load(model, draft="plain").tokenizer
    assert tokenizer is not None
    told = Told.of(data, tokenizer, passage)
    if not told.passages:
        raise click.UsageError(f"{data!r} has no answer of {SHORTEST} tokens or more; give another --data")
    lines = (
        json.dumps({"prompt": one}) for one in told.prompts(count, joined, np.random.default_rng(options["seed"]))
    )
    Path(out).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
