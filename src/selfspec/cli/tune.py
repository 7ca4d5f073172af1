"""``selfspec tune``: the draft that is fastest here, on the user's prompts, kept for `selfspec.load`."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from selfspec.cli.flags import MeasuringCommand, asked_of
from selfspec.cli.notebook import Notebook
from selfspec.cli.opening import open_engine
from selfspec.cli.output import check_target, emit_json, examples, note, progress
from selfspec.cli.tune_page import page
from selfspec.documents import json_line, write_whole
from selfspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from selfspec.engine import Engine
    from selfspec.measure.settings import TuneOptions
    from selfspec.measure.tasks import Prompt
    from selfspec.measure.tuner import Tuner

_TICKS = 10  # of the bar per second
_BITS = ("4", "8", "16", "32")

_EXAMPLES = examples(
    "selfspec tune",
    "selfspec tune --data prompts.jsonl --budget 10m",
    "selfspec tune --data prompts.jsonl --for latency@4",
    "selfspec tune --drafts suffix,auto,quantized:draft_bits=4 --bits 16",
    "selfspec tune --forget",
)


class _Command(MeasuringCommand):
    def measured_by(self) -> type[TuneOptions]:
        from selfspec.measure.settings import TuneOptions

        return TuneOptions


@click.command("tune", cls=_Command, epilog=_EXAMPLES)
@click.option("--for", "aim", metavar="AIM", help="speed (the default), latency@N for N texts at once, or memory.")
@click.option(
    "--also-bits",
    default="",
    metavar="BITS",
    help="cpu: tune in these bits a weight, too, with commas: 4,8. Each is another target, with other texts.",
)
@click.option("--out", metavar="FILE", help="Write the document to a file too.")
@click.option("--no-save", is_flag=True, help="Keep nothing for later commands; the result is printed only.")
@click.option("--forget", is_flag=True, help="Remove what was tuned for this model, and tune nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the tables.")
def command(
    out: str | None, no_save: bool, forget: bool, also_bits: str, as_json: bool, aim: str | None, **options: Any
) -> None:
    """Find the draft that is fastest on this machine and these prompts, and keep it for this model.

    \b
    profile  costs of passes and rounds, plain decoding's answers, what exits say
    replay   every contender over these answers, on a modelled clock: drafter, exit layer,
             skip set, γ, stop threshold, chains
    race     the best, in pairs with plain decoding; the worse half leaves, again and again
    held out the winner on every third prompt, on which nothing was chosen: the gain reported

    What is found drafts from now on where no draft is named: in generate, chat, batch, serve and
    selfspec.load, for this model, precision and machine. Where nothing pays for certain, that is said, and
    auto or plain is kept. Run nothing else beside it; after Ctrl-C the same command goes on.
    """  # noqa: D301 (click keeps the line breaks after a backspace)
    from selfspec.measure.settings import TuneOptions
    from selfspec.measure.tasks import choose, read_prompts
    from selfspec.measure.tuner import split

    asked, opening = asked_of(TuneOptions, options | {"aim": aim})
    _check(asked, out, also_bits, opening)
    if forget:
        _forget(opening)
        return
    prompts = choose(read_prompts(asked.data), asked.task_names, asked.limit)
    split(prompts)  # raises for too few, before a model is loaded
    variants = _variants(opening, also_bits)
    share = (
        replace(asked, budget=f"{max(asked.budget_seconds / len(variants), 0.001):.3f}s")
        if len(variants) > 1
        else asked
    )
    found = [_tuned(variant, share, prompts, no_save) for variant in variants]
    if out is not None:
        write_whole(Path(out), json_line(found[0] if len(found) == 1 else found) + "\n")
    if as_json:
        emit_json(found[0] if len(found) == 1 else found)
    else:
        click.echo(page(found))


def _check(asked: TuneOptions, out: str | None, also_bits: str, opening: Mapping[str, Any]) -> None:
    """What can be said before a model is loaded."""
    from selfspec.measure.contenders import Space

    Space.of(asked.drafts)
    if out is not None:
        check_target(Path(out))
    bits = [text.strip() for text in also_bits.split(",")] if also_bits else []
    if not all(text in _BITS for text in bits) or len({*bits}) < len(bits):
        raise OptionError(f"--also-bits is {also_bits!r}; it must be some of {', '.join(_BITS)}, each once")
    if str(opening["bits"]) in bits:
        raise OptionError(f"--also-bits has {opening['bits']}, which --bits names; leave one out")


def _variants(opening: Mapping[str, Any], also_bits: str) -> list[dict[str, Any]]:
    """The model as it was named, and in other bits."""
    more = [int(text) for text in also_bits.split(",")] if also_bits else []
    return [dict(opening), *(dict(opening) | {"bits": bits} for bits in more)]


def _forget(opening: Mapping[str, Any]) -> None:
    from selfspec import tuned

    engine = open_engine(opening)
    gone = tuned.forget(engine)
    done = [path for path in gone if path.suffix == ".json"]
    what = f"{engine.name} in {engine.runtime.precision}"
    note(f"forgotten: {len(done)} for {what}" if done else f"nothing was tuned for {what}")


def _tuned(
    opening: Mapping[str, Any], asked: TuneOptions, prompts: Sequence[Prompt], no_save: bool
) -> dict[str, Any]:
    """One precision, from loading to the file; the document."""
    from selfspec import tuned
    from selfspec.measure.identity import identity_of
    from selfspec.measure.tuner import Tuner, Workload
    from selfspec.measure.tuning import FREE, document_of

    began = time.perf_counter()
    engine = open_engine(opening)
    identity = identity_of(engine, asked, FREE)
    target = None if no_save else tuned.file_for(engine)
    work = _work(engine, identity) if target else None
    notebook = Notebook(work)
    notebook.require(identity)
    tuner = Tuner(engine, Workload.of(engine, prompts, asked), asked, notebook.units)
    try:
        _run(tuner, notebook)
    except KeyboardInterrupt:
        if work is not None:
            notebook.save()
            note("what was measured is kept; run the same command again to go on")
        raise
    document = document_of(tuner, identity, time.perf_counter() - began)
    if target is not None:
        tuned.save(document, target)
    if work is not None:
        work.unlink(missing_ok=True)
    return document | {"file": None if target is None else str(target)}


def _work(engine: Engine, identity: Mapping[str, Any]) -> Path:
    """The file of an unfinished run with the same options; its folder is there, or it cannot be made."""
    from selfspec import tuned

    path = tuned.work_for(engine, json_line(identity))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"{str(path.parent)!r} cannot be made: {error.strerror}; give --no-save") from error
    return path


def _run(tuner: Tuner, notebook: Notebook) -> None:
    """All stages, each with a bar of its time; what is measured is kept at once."""
    for stage in tuner.stages():
        with progress(max(1, round(stage.seconds * _TICKS)), label=stage.name.ljust(8)) as step:
            last = time.perf_counter()
            for _ in stage.run():
                notebook.save()
                now = time.perf_counter()
                step(int((now - last) * _TICKS))
                last = now
    notebook.save()
