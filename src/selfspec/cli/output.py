"""What verbs print: JSON lines, tables, notes, the summary of a generation, and who wrote which token."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

import click

from selfspec.cli.learned import in_full, in_short, learns
from selfspec.documents import json_line
from selfspec.errors import OptionError
from selfspec.measure.quantities import size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import TextIO

    from selfspec.request import Chunk, Completion

Function = TypeVar("Function", bound="Callable[..., Any]")


def emit_json(document: object) -> None:
    """One line of JSON on stdout."""
    click.echo(json_line(document))


def check_target(path: Path) -> None:
    """Minutes of work must not end with an --out that cannot be written: raises OptionError."""
    if path.is_dir():
        raise OptionError(f"--out {str(path)!r} is a folder; name a file")
    folder = path.absolute().parent
    if not os.access(folder, os.W_OK):
        why = "no permission" if folder.is_dir() else "its folder does not exist"
        raise OptionError(f"--out {str(path)!r} cannot be written: {why}")


def examples(*commands: str) -> str:
    """The end of a verb's help: commands to try, with their line breaks kept."""
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])


def note(line: str) -> None:
    """A remark on stderr that steps back behind the text: dim where colours are shown."""
    click.echo(click.style(line, dim=True) if has_colours(sys.stderr) else line, err=True)


@contextmanager
def progress(total: int, done: int = 0, label: str | None = None) -> Iterator[Callable[[int], None]]:
    """A bar on stderr where somebody watches, nothing in a log; gives what moves it on."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    with click.progressbar(length=total, label=label, file=sys.stderr, show_pos=True) as bar:
        bar.update(done)
        yield bar.update


def has_colours(stream: TextIO | None) -> bool:
    """Whether colours belong on a stream: a terminal, and not switched off by ``NO_COLOR``."""
    return (
        stream is not None
        and stream.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned to the right, two spaces apart; the first row is the header."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Names and values, aligned to the left."""
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in pairs)


def summary(completion: Completion) -> str:
    """How a text came about, on one line."""
    stats = completion.stats
    speed = f"{stats.tokens_per_second:.1f} tok/s"
    if stats.decode_tokens_per_second is not None:
        speed += f" (decode {stats.decode_tokens_per_second:.1f})"
    parts = [f"{stats.tokens} tokens", speed]
    if stats.acceptance_rate is not None:
        parts.append(f"α {stats.acceptance_rate:.2f} ({stats.accepted}/{stats.drafted})")
    if stats.mean_accepted_length is not None:
        parts.append(f"τ {stats.mean_accepted_length:.1f}")
    parts.append(f"{stats.rounds} rounds")
    plan = "" if completion.plan == "none" else f" {completion.plan}"
    gamma = f" γ {completion.gamma}" if completion.gamma else ""
    parts.append(f"{completion.draft}{plan}{gamma}")
    if completion.draft_weight_bytes:
        parts.append(f"+ {size(completion.draft_weight_bytes)} weights, {size(completion.draft_kv_bytes)} KV")
    parts.append(f"{completion.precision} on {completion.runs_on}")
    if learning := (completion.explanation or {}).get("learning"):
        parts.append(in_short(learning))
    if completion.state_bytes:
        parts.append(f"states {size(completion.state_bytes)} ({size(completion.rollback_bytes)} to roll back)")
    return " · ".join(parts)


def explanation(found: Mapping[str, Any]) -> str:
    """The table from which `auto` decided, and what became of speculation; what was learned."""
    said = [_decided(found)] if "choices" in found else []
    return "\n".join([*said, *([in_full(found["learning"])] if "learning" in found else [])])


def _decided(found: Mapping[str, Any]) -> str:
    rows = [["drafter", "rounds", "probes", "c", "γ", "expected tok/s", "measured", "α by position", "accepted"]]
    for choice in found["choices"]:
        alphas = " ".join(f"{alpha:.2f}" for alpha in choice.get("alphas", [])[:4])
        accepted, drafted = sum(choice["accepted_per_position"]), sum(choice["drafted_per_position"])
        rows.append(
            [
                choice["drafter"],
                str(choice["rounds"]),
                str(choice["probes"]),
                f"{choice['c']:.2f}" if "c" in choice else "-",
                str(choice.get("gamma") or "-"),
                f"{speed:.1f}" if (speed := choice.get("expected_tokens_per_second")) else "-",
                f"{speed:.1f}" if (speed := choice["measured_tokens_per_second"]) is not None else "-",
                alphas or "-",
                f"{accepted}/{drafted}",
            ]
        )
    return f"{table(rows)}\n{found['verdict']}"


def explaining(function: Function) -> Function:
    """The flag that shows what the controller decided; `controller` checks it."""
    text = "Show what the controller (auto) decided, and from which numbers; or what was learned (--learn)."
    return click.option("--explain", is_flag=True, help=text)(function)


def controller(explain: bool, options: Mapping[str, Any]) -> str | None:
    """The drafter, with --explain the controller where none is named, even if another one was tuned.

    Raises UsageError for --explain with another drafter, which decides nothing, unless it learns.
    """
    from selfspec.engine import DEFAULT_DRAFT

    draft: str | None = options["draft"]
    if not explain or learns(options):
        return draft
    if (draft or DEFAULT_DRAFT).partition(":")[0] != "auto":
        raise click.UsageError(
            "--explain shows what auto decided, or what was learned, and another drafter drafts; add --draft auto, "
            "or --learn"
        )
    return draft or DEFAULT_DRAFT


def combined(explanations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What `auto` decided in several texts: the counts of each candidate, without what it expected of them.

    What was learned is what the last of them knew.
    """
    choices: dict[str, dict[str, Any]] = {}
    learned = {name: value for found in explanations for name, value in found.items() if name == "learning"}
    if not (explanations := [found for found in explanations if "choices" in found]):
        return learned
    for choice in (choice for found in explanations for choice in found["choices"]):
        empty = {"drafter": choice["drafter"], "rounds": 0, "probes": 0, "measured_tokens_per_second": None}
        lists: dict[str, Any] = {"drafted_per_position": [], "accepted_per_position": []}
        line = choices.setdefault(choice["drafter"], empty | lists)
        for name in ("rounds", "probes"):
            line[name] += choice[name]
        for name in lists:
            line[name] = [a + b for a, b in zip_longest(line[name], choice[name], fillvalue=0)]
    rounds, plain = (sum(line["rounds"] for line in lines) for lines in (choices.values(), [choices["plain"]]))
    verdict = f"{rounds - plain} of {rounds} rounds of {len(explanations)} texts drafted"
    return {"rounds": rounds, "choices": list(choices.values()), "verdict": verdict} | learned


class Painter:
    """Shows who wrote each token: accepted drafts are green, or in ⟦ ⟧ where there are no colours.

    A character belongs to the token that completed it, so none is ever cut.
    """

    def __init__(self, has_colours: bool) -> None:
        self._has_colours = has_colours
        self._is_open = False

    @property
    def legend(self) -> str:
        """What the marks mean."""
        if self._has_colours:
            return f"{click.style('accepted draft', fg='green')} · bonus token of the target"
        return "⟦accepted draft⟧ · bonus token of the target"

    def paint(self, chunk: Chunk) -> str:
        """The text of one token, marked; a run of draft tokens shares one pair of brackets."""
        is_draft = chunk.source == "draft"
        if not chunk.text:
            return ""
        if self._has_colours:
            return click.style(chunk.text, fg="green") if is_draft else chunk.text
        mark = "" if is_draft == self._is_open else "⟦" if is_draft else "⟧"
        self._is_open = is_draft
        return mark + chunk.text

    def end(self) -> str:
        """Close what is open."""
        return "⟧" if self._is_open else ""
