"""``selfspec train data``: the model answers prompts; what is done stays done, however a run ends."""

from __future__ import annotations

import hashlib
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from selfspec.cli.flags import MeasuringCommand, asked_of, flag_name, unwrapped, wrapping
from selfspec.cli.meter import meter
from selfspec.cli.opening import open_engine
from selfspec.cli.output import emit_json, examples, note
from selfspec.cli.prompts import read_prompts
from selfspec.cli.reading import decoded, read_file
from selfspec.errors import OptionError, PromptError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from selfspec.engine import Engine
    from selfspec.train.folder import Folder
    from selfspec.train.self_prompts import SelfPrompts
    from selfspec.train.settings import DataOptions
    from selfspec.train.shards import Text

_SELF_PROMPTS = "self-prompts.jsonl"
# what is only for texts that the model writes
_WRITING = ("temperatures", "max_new_tokens", "max_prompt_tokens", "seed", "slots", "draft", "system", "no_chat")

_EXAMPLES = examples(
    "selfspec train data --prompts prompts.jsonl --out answers",
    "selfspec train data --prompts prompts.txt --self-prompts 5000 --out answers --tokens 2000000",
    "selfspec train data --self-prompts 3000 --out answers --model ./my-llama --temperatures 0,1 --json",
    "selfspec train data --text chats.jsonl --text book.txt --out mine",
)


class _Command(MeasuringCommand):
    section = "Data"

    def measured_by(self) -> type[DataOptions]:
        from selfspec.train.settings import DataOptions

        return DataOptions


@dataclass
class _Sums:
    """What is there at the end of a run, and what this run added."""

    texts: int
    answer_tokens: int
    resumed: int
    left_out: int = 0
    tokens: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


@click.command("data", cls=_Command, epilog=_EXAMPLES)
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
    answered at every temperature, in a shuffled order, so that whatever is there is a sample of all. --self-prompts
    has a chat model write prompts too. --text takes texts that are there already, and nothing is generated.

    After a kill or Ctrl-C, run the same command again: only what is missing is done. --tokens, --slots, --draft,
    --threads and a larger --self-prompts may then differ; other prompts, another model, seed or length are refused.

    A token needs 4 bytes on disk: a million tokens of answers are about 6 MB, prompts included. Hidden states are
    not kept; training computes them again.
    """
    from selfspec.train.folder import growing
    from selfspec.train.settings import DataOptions

    asked, opening = asked_of(DataOptions, options)
    given = [name for name in _WRITING if options[name] not in (None, False)]
    if asked.text and given:
        raise OptionError(f"{flag_name(given[0])} is for texts that the model writes; leave it out with --text")
    if asked.self_prompts and options["no_chat"]:
        raise OptionError("--no-chat leaves out the chat template, and --self-prompts needs it; give one of them")
    wrapped = unwrapped({name: opening.pop(name) for name in ("system", "no_chat")})
    files = [(name, read_file(name, "the file")) for name in asked.text or filter(None, [asked.prompts])]
    prompts = read_prompts(asked.prompts) if asked.prompts else []
    beginnings = _beginnings(asked.beginnings)
    engine = open_engine(opening)
    digest = hashlib.sha256(b"".join(raw for _, raw in files)).hexdigest()
    provenance = _provenance(engine, asked) | {
        "kv": opening["kv"],
        "wrapping": wrapped,
        "prompts": {"sha256": digest, "count": len(prompts)},
    }
    with growing(Path(out), provenance) as folder:
        if asked.text:
            sums = _take(engine, folder, files, asked.tokens)
        else:
            if asked.self_prompts:
                writer = _writer(engine, asked, beginnings, wrapped, prompts)
                prompts += _written(writer, Path(out), asked)
            sums = _answer(engine, folder, prompts, asked, wrapped)
    if as_json:
        emit_json(asdict(sums) | {"tokens_per_second": sums.tokens_per_second})
    speed = "" if asked.text else f", {sums.tokens_per_second:.1f} tok/s"
    note(f"{sums.texts} texts · {sums.answer_tokens} tokens of answers · {sums.tokens} of them now{speed}")


def _provenance(engine: Engine, asked: DataOptions) -> dict[str, Any]:
    """What ``data.json`` says of model and options."""
    from selfspec._version import __version__
    from selfspec.train.data import FORMAT
    from selfspec.train.own_text import TEMPERATURE

    special = sorted(engine.tokenizer.special_ids) if engine.tokenizer else []
    found = {
        "format": FORMAT,
        "kind": "text" if asked.text else "answers",
        "model": {
            "name": engine.name,
            "fingerprint": engine.fingerprint,
            "tokenizer": engine.tokenizer.fingerprint if engine.tokenizer else "",
        },
        "vocab_size": engine.config.vocab_size,
        "eos_token_ids": sorted(engine.config.eos_token_ids),
        "special_ids": [token for token in special if token < engine.config.vocab_size],
        "runtime": engine.runtime.name,
        "precision": engine.runtime.precision,
        "temperatures": [TEMPERATURE] if asked.text else asked.temperature_values,
        "seed": asked.seed,
        "max_new_tokens": asked.max_new_tokens,
        "max_prompt_tokens": asked.max_prompt_tokens,
        "version": __version__,
    }
    return found | ({"self_prompts": {"count": asked.self_prompts}} if asked.self_prompts else {})


def _beginnings(file: str | None) -> list[str]:
    """The lines of a file of the user's, or the built-in ones."""
    from selfspec.train.self_prompts import built_in_beginnings

    if file is None:
        return built_in_beginnings()
    text = decoded(read_file(file, "the file of beginnings"), f"the file of beginnings {file!r}")
    found = [line.rstrip() for line in text.split("\n") if line.strip()]
    if not found:
        raise PromptError(f"the file of beginnings {file!r} is empty; give the beginning of a prompt a line")
    return found


def _writer(
    engine: Engine,
    asked: DataOptions,
    beginnings: Sequence[str],
    wrapped: Mapping[str, Any],
    prompts: Sequence[Mapping[str, Any]],
) -> SelfPrompts:
    """The model as its own user, who asks nothing that the file of prompts asks."""
    from selfspec.train.self_prompts import SelfPrompts, key

    taken = frozenset(key(entry["prompt"]) for entry in prompts if "prompt" in entry)
    return SelfPrompts(engine, beginnings, asked.seed, wrapped.get("system"), taken)


def _written(writer: SelfPrompts, out: Path, asked: DataOptions) -> list[dict[str, str]]:
    """The prompts of the model's own; all candidates stay in a journal, so that there may be more later."""
    from selfspec import journal

    file = out / _SELF_PROMPTS
    with (
        journal.opened(file, writer.identity, remedy=f"or remove it with {file.name!r}") as kept,
        meter("prompts", asked.self_prompts) as step,
    ):
        for count in writer.write(asked.self_prompts, kept, asked.slots):
            step(count, f"{len(kept)} candidates")
        chosen = writer.chosen(asked.self_prompts, kept)
        kept.write(chosen)
        return [{"prompt": kept[number]["prompt"]} for number in chosen]


def _answer(
    engine: Engine,
    folder: Folder,
    prompts: Sequence[Mapping[str, Any]],
    asked: DataOptions,
    wrapped: Mapping[str, Any],
) -> _Sums:
    """The texts that are missing."""
    from selfspec.train.answers import Answering

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
    sums = _begun(folder)
    total, done = _measure(folder, asked.tokens, answering.texts)
    began = time.perf_counter()
    with meter("tokens" if asked.tokens else "texts", total, done) as step:
        try:
            for text in answering.run(folder, asked.slots, asked.draft):
                sums.tokens += len(text.answer)
                sums.seconds = time.perf_counter() - began
                words = f"{folder.answer_tokens} tokens in {len(folder)} texts, {sums.tokens_per_second:.0f} tok/s"
                step(_measure(folder, asked.tokens, answering.texts)[1], words)
        except KeyboardInterrupt:
            note(f"{len(folder)} texts are kept; run the same command again for the others")
            raise
    if asked.tokens is not None and folder.answer_tokens < asked.tokens:
        note("all prompts are answered, at temperature 0 only once; for more tokens give more prompts")
    return _ended(sums, folder, answering.left_out, "prompts")


def _measure(folder: Folder, tokens: int | None, texts: int) -> tuple[int, int]:
    """How much there is to be, and how much is there: tokens where they are the target, else texts."""
    return (texts, len(folder)) if tokens is None else (tokens, folder.answer_tokens)


def _take(engine: Engine, folder: Folder, files: Sequence[tuple[str, bytes]], most: int | None) -> _Sums:
    """The user's own texts, those that are not there yet."""
    sums = _begun(folder)
    left_out: dict[int, str] = {}
    for source, text in _texts(engine, files):
        if most is not None and folder.answer_tokens >= most:
            break
        if isinstance(text, Exception):
            left_out[source] = str(text)
        elif folder.number(text.source, text.temperature, text.draw) not in folder:
            folder.add(text)
            sums.tokens += len(text.answer)
    return _ended(sums, folder, left_out, "entries")


def _texts(engine: Engine, files: Sequence[tuple[str, bytes]]) -> Iterator[tuple[int, Text | PromptError]]:
    from selfspec.train.own_text import own_texts

    first = 0
    for name, raw in files:
        last = first - 1
        for last, text in own_texts(engine, raw, name, first):
            yield last, text
        first = last + 1


def _begun(folder: Folder) -> _Sums:
    if len(folder):
        note(f"{len(folder)} texts, {folder.answer_tokens} tokens of answers were there; going on")
    return _Sums(len(folder), folder.answer_tokens, resumed=len(folder))


def _ended(sums: _Sums, folder: Folder, left_out: Mapping[int, str], what: str) -> _Sums:
    """Say what was left out, and why; fill in the sums. Raises PromptError where nothing is left."""
    if left_out and not len(folder):
        source, why = min(left_out.items())
        raise PromptError(f"none of the {len(left_out)} {what} can be used; number {source + 1}: {why}")
    if left_out:
        source, why = min(left_out.items())
        note(f"{len(left_out)} {what} are left out; number {source + 1}: {' '.join(why.split())}")
    sums.texts, sums.answer_tokens, sums.left_out = len(folder), folder.answer_tokens, len(left_out)
    return sums
