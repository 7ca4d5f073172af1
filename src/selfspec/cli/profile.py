"""``selfspec profile``: what drafts would cost and gain on this model, machine and data, before they are run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from selfspec.cli.flags import MeasuringCommand, asked_of
from selfspec.cli.notebook import Notebook
from selfspec.cli.opening import open_engine
from selfspec.cli.output import check_target, emit_json, examples, note, progress
from selfspec.cli.profile_page import page

if TYPE_CHECKING:
    from selfspec.measure.profile import Profile
    from selfspec.measure.settings import ProfileOptions

# what a later run may ask otherwise and still go on with the measurements
_FREE = ("budget", "check", "points", "pairs")
# of the identity, what the result says too
_SHOWN = ("selfspec", "model", "runtime", "runs_on", "precision", "machine")

_EXAMPLES = examples(
    "selfspec profile",
    "selfspec profile --data question.jsonl --budget 10m --out profile.json",
    "selfspec profile --gamma 4 --points 8:1,15:2,26:2 --check 0 --temperature 0",
)


class _Command(MeasuringCommand):
    def measured_by(self) -> type[ProfileOptions]:
        from selfspec.measure.settings import ProfileOptions

        return ProfileOptions


@click.command("profile", cls=_Command, epilog=_EXAMPLES)
@click.option(
    "--out",
    metavar="FILE",
    help="Keep the measurements and the result there, as JSON; a later run goes on with it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the tables.")
def command(out: str | None, as_json: bool, **options: Any) -> None:
    """What early exits cost and gain here: c by layer, v(T), α by layer, and S of every (k, γ).

    \b
    passes   v(T): passes of 1 to γ+1 rows after so many tokens; bytes, operations, bandwidth
    answers  α: plain decoding's own answers, and how every layer agrees with them
    rounds   c: the loop's own rounds, draft and verification, on a grid of (k, γ)
    checks   S measured, in pairs with plain decoding, beside the prediction

    Predictions replay the rounds that the loop would run along those answers and count what they cost.
    What does not fit into --budget is left out and named; with --out, the same command goes on with it. Run
    nothing else beside it.
    """  # noqa: D301 (click keeps the line breaks after a backspace)
    from selfspec.measure.identity import identity_of
    from selfspec.measure.profile import Profile, questions_of
    from selfspec.measure.settings import ProfileOptions
    from selfspec.measure.tasks import choose, read_prompts

    asked, opening = asked_of(ProfileOptions, options)
    prompts = choose(read_prompts(asked.data), asked.task_names, asked.limit)
    if out is not None:
        check_target(Path(out))
    notebook = Notebook(None if out is None else Path(out))
    engine = open_engine(opening)
    identity = identity_of(engine, asked, _FREE)
    notebook.require(identity)
    profile = Profile(engine, questions_of(engine, prompts, asked), asked, notebook.units)
    try:
        _run(profile, notebook)
    except KeyboardInterrupt:
        if out is not None:
            note(f"what was measured is in {out!r}; run the same command again to go on")
        raise
    head = {name: identity[name] for name in _SHOWN} | {"layers": engine.config.num_layers}
    head["options"] = asdict(asked) | {"data": asked.data or "built-in"}
    document = head | profile.report().document() | {"left_out": profile.left_out}
    notebook.save(document)
    if as_json:
        emit_json(document)
    else:
        click.echo(page(document))


def _run(profile: Profile, notebook: Notebook) -> None:
    """All sections, each with a bar; what is measured is kept at once."""
    for section in profile.sections():
        if not section.missing:
            continue
        with progress(len(section.work), section.num_done, section.name.ljust(8)) as step:
            for _ in section.run():
                notebook.save()
                step(1)
