"""``selfspec batch``: a file of prompts, several at a time; what is done stays done, however a run ends."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from selfspec.cli.asking import Asked, asked
from selfspec.cli.flags import ModelCommand, unwrapped, wrapping
from selfspec.cli.opening import open_engine
from selfspec.cli.output import (
    combined,
    controller,
    emit_json,
    examples,
    explaining,
    explanation,
    note,
    progress,
)
from selfspec.cli.reading import read_file, stdin
from selfspec.engine import DEFAULT_SLOTS
from selfspec.errors import OptionError
from selfspec.journal import Journal, opened, partial_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from selfspec.engine import Engine
    from selfspec.request import Completion

EXIT_FAILED = 1

_EXAMPLES = examples(
    "selfspec batch prompts.jsonl answers.jsonl",
    "selfspec batch prompts.jsonl answers.jsonl --slots 4 --draft ngram --max-new-tokens 64",
    "selfspec batch - answers.jsonl --json < prompts.jsonl",
)


@click.command("batch", cls=ModelCommand, epilog=_EXAMPLES)
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
@click.option("--slots", type=int, default=DEFAULT_SLOTS, help=f"Most texts at once.  [default: {DEFAULT_SLOTS}]")
@click.option("--overwrite", is_flag=True, help="Start anew: replace OUT, and drop an unfinished run.")
@wrapping
@explaining
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document with the sums on stdout.")
def command(
    source: str, target: str, slots: int, overwrite: bool, as_json: bool, explain: bool, **options: Any
) -> None:
    """Answer every line of IN (`-` is stdin) and write the results to OUT, in the same order.

    A line of IN is a JSON object: `prompt` or `messages`, perhaps an `id`, and options of its own (`seed`,
    `temperature`, `stop`, `draft`, `gamma`, ...) in the names of Python; the flags are for lines without. The
    lines of OpenAI batch files (`custom_id`, `body`) are understood too. A line of OUT has `line`, `id`, and the
    fields of `generate --json`, or an `error` with `type` and `message`; with --explain also the `explanation`.

    Results are kept in OUT.partial as they come, and OUT appears when all are there. After a kill or Ctrl-C, run
    the same command again: only what is missing is done. Exit code 1 if some lines failed.
    """
    options["draft"] = controller(explain, options)
    if slots < 1:
        raise OptionError(f"--slots is {slots}; it must be at least 1")
    out = Path(target)
    raw = stdin().read() if source == "-" else read_file(source, "the input")
    _check(source, out, overwrite)
    if not raw.strip():
        raise OptionError(f"{source!r} has no lines; each must be a JSON object with a prompt")
    options = unwrapped(options)
    engine = open_engine(options)
    lines = list(asked(raw, {str(options["model"]), engine.name}))
    said = {"explain": True} if explain else {}
    identity = {
        "input": hashlib.sha256(raw).hexdigest(),
        "model": [engine.fingerprint, engine.runtime.name, engine.runtime.precision],
        "tuned": engine.tuned and engine.tuned.draft,
        "options": {name: value for name, value in options.items() if name != "model" and value not in (None, ())}
        | said,
    }
    with opened(out, identity, overwrite) as journal:
        sums = _Sums(len(journal), explain)
        try:
            _answer(engine, lines, journal, slots, sums)
        except KeyboardInterrupt:
            note(f"{len(journal)} of {len(lines)} lines are done; run the same command again for the others")
            raise
        journal.finish(line.number for line in lines)
    _report(sums, len(lines), journal.failed, as_json)
    if journal.failed:
        raise click.exceptions.Exit(EXIT_FAILED)


def _check(source: str, out: Path, overwrite: bool) -> None:
    """Refuse, before anything runs, what could not be written or would destroy something."""
    if str(out) == "-" or out.is_dir():
        raise OptionError(f"OUT is {str(out)!r}; it must be a file, and is written when all lines are done")
    if not out.parent.is_dir():
        raise OptionError(f"OUT is {str(out)!r}, but there is no folder {str(out.parent)!r}; make it first")
    if source != "-" and any(_is_same(Path(source), place) for place in (out, partial_of(out))):
        raise OptionError(f"IN and OUT are both {source!r}; give OUT another name")
    if out.exists() and not overwrite and not partial_of(out).exists():
        raise OptionError(f"OUT {str(out)!r} is there already; give another name, or --overwrite to replace it")


def _is_same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve() or (other.exists() and one.samefile(other))


@dataclass
class _Sums:
    """What this run did: its texts together."""

    resumed: int
    explains: bool
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0
    explanations: list[Mapping[str, Any]] = field(default_factory=list)

    def add(self, found: Completion) -> None:
        self.tokens += found.stats.tokens
        self.drafted += found.stats.drafted
        self.accepted += found.stats.accepted
        if self.explains and found.explanation:
            self.explanations.append(found.explanation)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def acceptance_rate(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None


def _answer(engine: Engine, lines: Sequence[Asked], journal: Journal, slots: int, sums: _Sums) -> None:
    """Every line that has no result yet."""
    if sums.resumed:
        note(f"{sums.resumed} of {len(lines)} lines were done before; going on with the others")
    waiting = [line for line in lines if line.number not in journal]
    began = time.perf_counter()
    with progress(len(lines), sums.resumed) as advance:
        good: list[tuple[Asked, Mapping[str, Any]]] = []
        for line in waiting:
            if isinstance(line.request, Exception):
                journal.add(line.number, _result(line, line.request))
                advance(1)
            else:
                good.append((line, line.request))
        for index, found in engine.batch([request for _, request in good], slots=slots):
            line = good[index][0]
            journal.add(line.number, _result(line, found, sums.explains))
            if not isinstance(found, Exception):
                sums.add(found)
            sums.seconds = time.perf_counter() - began
            advance(1)


def _result(line: Asked, found: Completion | Exception, explains: bool = False) -> dict[str, Any]:
    """What OUT says about a line."""
    if not isinstance(found, Exception):
        said = {"explanation": found.explanation} if explains else {}
        return {"id": line.id, **found.to_dict(), **said}
    return {"id": line.id, "error": {"type": type(found).__name__, "message": " ".join(str(found).split())}}


def _report(sums: _Sums, texts: int, failed: int, as_json: bool) -> None:
    """The sums, on stderr and perhaps as JSON; tokens, speed and acceptance are of this run."""
    parts = [f"done {texts - failed}, failed {failed}", f"{sums.tokens} tokens"]
    parts.append(f"{sums.tokens_per_second:.1f} tok/s")
    if sums.acceptance_rate is not None:
        parts.append(f"α {sums.acceptance_rate:.2f} ({sums.accepted}/{sums.drafted})")
    if as_json:
        emit_json(
            {
                "texts": texts,
                "failed": failed,
                "resumed": sums.resumed,
                "tokens": sums.tokens,
                "seconds": sums.seconds,
                "tokens_per_second": sums.tokens_per_second,
                "acceptance_rate": sums.acceptance_rate,
            }
        )
    if sums.explanations:
        note(explanation(combined(sums.explanations)))
    note(" · ".join(parts))
