"""``selfspec report``: what was measured, as one page that needs no network."""

from __future__ import annotations

from pathlib import Path

import click

from selfspec.cli.output import check_target, emit_json, examples, note
from selfspec.documents import write_whole
from selfspec.measure.quantities import size

_EXAMPLES = examples(
    "selfspec report bench.json profile.json certificate.json",
    "selfspec report tuned.json plan.json --out ~/tuned.html --json",
)


@click.command("report", epilog=_EXAMPLES)
@click.argument("files", nargs=-1, metavar="FILES")
@click.option("--out", metavar="FILE", default="report.html", show_default=True, help="Where to write the page.")
@click.option("--json", "as_json", is_flag=True, help="Print the recommendation as one JSON document.")
def command(files: tuple[str, ...], out: str, as_json: bool) -> None:
    """One HTML page from results of bench, profile, tune, plan and certify, in any order.

    \b
    bench    methods side by side, memory, acceptance by position and task, who wrote each token
    profile  S over exit layer and draft length, acceptance by layer, v(T)
    tune     the best draft for this machine, and what a profile has
    plan     what fits into a memory
    certify  proof that drafts change nothing

    The page begins with a recommendation and says what is missing, with the command that makes it. It has no
    script and asks for nothing: it can be mailed, and opened from a disk. All files must be of one model in one
    precision.
    """  # noqa: D301 (click keeps the line breaks after a backspace)
    from selfspec.reporting.page import report

    path = Path(out).expanduser()
    check_target(path)
    page, html = report(files)
    write_whole(path, html)
    if as_json:
        emit_json(page.to_dict())
    else:
        click.echo(page.advice.headline)
    note(f"{out}: {size(len(html.encode()))}")
