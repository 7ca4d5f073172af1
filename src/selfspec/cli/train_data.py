"""``selfspec train data``: the model answers prompts; what is done stays done, however a run ends."""

from __future__ import annotations

import hashlib
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from selfspec.cli.flags import DataCommand, asked_of, unwrapped, wrapping
from selfspec.cli.opening import open_engine
from selfspec.cli.output import emit_json, examples, note
from selfspec.cli.prompts import read_prompts
from selfspec.cli.reading import read_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from selfspec.engine import Engine
    from selfspec.train.answers import Answering
    from selfspec.train.folder import Folder
    from selfspec.train.settings import DataOptions

_EVERY = 60.0  # seconds between two lines in a log

_EXAMPLES = examples(
    "selfspec train data --prompts prompts.jsonl --out answers",
    "selfspec train data --prompts prompts.txt --out answers --temperatures 0,1 --tokens 400000",
    "selfspec train data --prompts prompts.jsonl --out answers --model ./my-llama --bits 8 --json",
)


@click.command("data", cls=DataCommand, epilog=_EXAMPLES)
@click.option(
    "--out",
    required=True,
    metavar="DIR",
    help="The folder that the texts are kept in; a later run goes on with it.",
)
@wrapping
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document with the sums on stdout.")
def command(out: str, as_json: bool, **options: Any) -> None:
    """Let the model answer prompts, several at a time, and keep the texts in the folder of --out.

    A head that drafts should say what the model says, so it learns from the model's own answers. Every prompt is
    answered at every temperature, in a shuffled order, so that whatever is there is a sample of all. After a kill
    or Ctrl-C, run the same command again: only what is missing is done. --tokens, --slots, --draft and --threads
    may then differ; other prompts, another model, seed or length are refused.

    A token needs 4 bytes on disk: a million tokens of answers are about 6 MB, prompts included. Hidden states are
    not kept; training computes them again.
    """
    from selfspec.train.answers import Answering
    from selfspec.train.folder import growing
    from selfspec.train.settings import DataOptions

    asked, opening = asked_of(DataOptions, options)
    assert asked.prompts is not None
    raw, prompts = read_file(asked.prompts, "the prompt file"), read_prompts(asked.prompts)
    wrapped = unwrapped({name: opening.pop(name) for name in ("system", "no_chat")})
    engine = open_engine(opening)
    answering = Answering(
        engine,
        prompts,
        asked.temperature_values,
        seed=asked.seed,
        max_new_tokens=asked.max_new_tokens,
        max_prompt_tokens=asked.max_prompt_tokens,
        tokens=asked.tokens,
        wrapping=wrapped,
    )
    source = {"sha256": hashlib.sha256(raw).hexdigest(), "count": len(prompts)}
    with growing(Path(out), _provenance(engine, opening["kv"], asked, wrapped, source)) as folder:
        sums = _answer(answering, folder, asked)
    _report(sums, answering, as_json)


def _provenance(
    engine: Engine, kv: str | None, asked: DataOptions, wrapped: dict[str, Any], prompts: dict[str, Any]
) -> dict[str, Any]:
    """What ``data.json`` says."""
    from selfspec._version import __version__
    from selfspec.train.data import FORMAT

    special = sorted(engine.tokenizer.special_ids) if engine.tokenizer else []
    return {
        "format": FORMAT,
        "kind": "answers",
        "model": {"name": engine.name, "fingerprint": engine.fingerprint},
        "vocab_size": engine.config.vocab_size,
        "eos_token_ids": sorted(engine.config.eos_token_ids),
        "special_ids": [token for token in special if token < engine.config.vocab_size],
        "runtime": engine.runtime.name,
        "precision": engine.runtime.precision,
        "kv": kv,
        "temperatures": asked.temperature_values,
        "seed": asked.seed,
        "max_new_tokens": asked.max_new_tokens,
        "max_prompt_tokens": asked.max_prompt_tokens,
        "wrapping": wrapped,
        "prompts": prompts,
        "version": __version__,
    }


def _answer(answering: Answering, folder: Folder, asked: DataOptions) -> dict[str, Any]:
    """Run what is missing; the sums."""
    before = len(folder)
    if before:
        note(f"{before} texts, {folder.answer_tokens} tokens of answers were there; going on")
    began, tokens = time.perf_counter(), 0
    seconds = 0.0
    with _watched(answering, folder) as step:
        try:
            for text in answering.run(folder, asked.slots, asked.draft):
                tokens += len(text.answer)
                seconds = time.perf_counter() - began
                step(tokens / seconds)
        except KeyboardInterrupt:
            note(f"{len(folder)} texts are kept; run the same command again for the others")
            raise
    return {
        "texts": len(folder),
        "resumed": before,
        "left_out": len(answering.left_out),
        "answer_tokens": folder.answer_tokens,
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds if seconds else 0.0,
    }


@contextmanager
def _watched(answering: Answering, folder: Folder) -> Iterator[Callable[[float], None]]:
    """A bar where somebody watches, else a line a minute; gives what is told the tokens per second of this run."""
    by_tokens = answering.tokens is not None
    total = answering.tokens if answering.tokens is not None else answering.texts
    start, began = folder.answer_tokens if by_tokens else len(folder), time.perf_counter()
    last = began

    def state(rate: float, done: int) -> str:
        elapsed = time.perf_counter() - began
        left = elapsed * (total - done) / max(1, done - start)
        return f"{folder.answer_tokens} tokens, {rate:.0f} tok/s, {_time(max(0.0, left))} left"

    def log(rate: float) -> None:
        nonlocal last
        done = folder.answer_tokens if by_tokens else len(folder)
        if time.perf_counter() - last >= _EVERY:
            last = time.perf_counter()
            note(f"{len(folder)} texts, {state(rate, done)}")

    if sys.stderr is None or not sys.stderr.isatty():
        yield log
        return
    shown = ""
    bar: Any
    with click.progressbar(
        length=total, file=sys.stderr, show_eta=False, show_percent=True, item_show_func=lambda _: shown
    ) as bar:
        bar.update(min(start, total))

        def move(rate: float) -> None:
            nonlocal shown
            done = folder.answer_tokens if by_tokens else len(folder)
            shown = state(rate, done)
            bar.update(min(done, total) - bar.pos)

        yield move


def _time(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 90 else f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def _report(sums: dict[str, Any], answering: Answering, as_json: bool) -> None:
    """The sums, on stderr and perhaps as JSON."""
    if answering.left_out:
        source, why = min(answering.left_out.items())
        note(f"{len(answering.left_out)} prompts are left out; number {source + 1}: {' '.join(why.split())}")
    if as_json:
        emit_json(sums)
    note(
        f"{sums['texts']} texts · {sums['answer_tokens']} tokens of answers · {sums['tokens']} of them now, "
        f"{sums['tokens_per_second']:.1f} tok/s"
    )
