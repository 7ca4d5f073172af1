"""``selfspec search-plan``: which sub-layers a draft should leave out, on this model, machine and data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from selfspec.cli.flags import MeasuringCommand, asked_of
from selfspec.cli.notebook import Notebook, identity_of
from selfspec.cli.opening import open_engine
from selfspec.cli.output import check_target, emit_json, examples, note, progress, table

if TYPE_CHECKING:
    from selfspec.engine import Engine
    from selfspec.measure.plan_search import PlanSearch, Worth
    from selfspec.measure.profile import Question
    from selfspec.measure.settings import SearchOptions

# what a later run may ask otherwise and still go on with what was tried
_FREE = ("trials", "finalists", "pairs")

_EXAMPLES = examples(
    "selfspec search-plan --data question.jsonl --limit 4 --out plan.json",
    "selfspec search-plan --bits 8 --trials 60 --finalists 0",
    'selfspec generate "Name three rivers." --draft layer_skip --skip "attention 7,20,26"',
)


class _Command(MeasuringCommand):
    def measured_by(self) -> type[SearchOptions]:
        from selfspec.measure.settings import SearchOptions

        return SearchOptions


@click.command("search-plan", cls=_Command, epilog=_EXAMPLES)
@click.option("--out", metavar="FILE", help="Keep what was tried and found there, as JSON; a later run goes on.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the tables.")
def command(out: str | None, as_json: bool, **options: Any) -> None:
    """Search for the sub-layers that a draft of the same model should leave out (for --draft layer_skip).

    Plans are tried along plain decoding's own answers: how often a draft token would be accepted, and what a
    draft step costs here. The best are then measured in pairs with plain decoding. Small models have little to
    leave out: a best speedup below 1 is an answer too. Run nothing else beside it.
    """
    from selfspec.measure.plan_search import PlanSearch
    from selfspec.measure.profile import questions_of
    from selfspec.measure.settings import SearchOptions
    from selfspec.measure.tasks import choose, read_prompts

    asked, opening = asked_of(SearchOptions, options)
    prompts = choose(read_prompts(asked.data), asked.task_names, asked.limit)
    if out is not None:
        check_target(Path(out))
    notebook = Notebook(None if out is None else Path(out))
    engine = open_engine(opening)
    identity = identity_of(engine, asked, _FREE)
    notebook.require(identity)
    questions = questions_of(engine, prompts, asked)
    search = PlanSearch(engine, questions, asked, notebook.units)
    try:
        sources = _run(search, questions, notebook)
        document = identity | _document(engine, search, sources, questions)
    except KeyboardInterrupt:
        if out is not None:
            notebook.save()
            note(f"what was tried is in {out!r}; run the same command again to go on")
        raise
    notebook.save({"result": document})
    if as_json:
        emit_json(document)
    else:
        click.echo(_page(document))


def _run(search: PlanSearch, questions: list[Question], notebook: Notebook) -> dict[str, Worth | None]:
    """Everything but the measured pairs; the best plan that each source proposed."""
    with progress(len(questions) + 1, 0, "answers") as step:
        for _ in search.prepare():
            notebook.save()
            step(1)
    found: dict[str, Worth | None] = {}
    for name, (count, plans) in search.sources().items():
        with progress(count, 0, name.ljust(10)) as step:
            tried = []
            for plan in plans:
                tried.append(search.worth(plan))
                step(1)
        found[name] = max(tried, key=lambda worth: worth.speedup, default=None)
        notebook.save()
    return found


def _document(
    engine: Engine, search: PlanSearch, sources: dict[str, Worth | None], questions: list[Question]
) -> dict[str, Any]:
    from selfspec.measure.plan_search import measured

    best = search.best(max(1, search.options.finalists))
    finalists = [worth._asdict() for worth in best]
    for row, worth in zip(finalists[: search.options.finalists], best, strict=False):
        row["measured"] = measured(engine, worth, questions, search.options)
    return {
        "layers": engine.config.num_layers,
        "costs": asdict(search.costs),
        "tried": search.num_tried,
        "sources": {name: worth._asdict() if worth else None for name, worth in sources.items()},
        "best": finalists,
    }


# -- printing ---------------------------------------------------------------------------------------------


def _page(document: dict[str, Any]) -> str:
    rows = [
        (
            name,
            *((f"{w['speedup']:.3f}", f"{w['alpha']:.3f}", f"{w['c']:.3f}", f"{w['gamma']}") if w else ("-",) * 4),
        )
        for name, w in document["sources"].items()
    ]
    parts = [
        f"best of each source, of {document['tried']} plans tried; S is predicted\n"
        + table([("source", "S", "α", "c", "γ"), *rows])
    ]
    lines = []
    for found in document["best"]:
        lines.append(f'--draft layer_skip --gamma {found["gamma"]} --skip "{found["skip"]}"')
        said = f"  S {found['speedup']:.2f} predicted"
        if ratio := found.get("measured"):
            said += (
                f", {ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}] measured in {ratio['pairs']} "
                "pairs with plain decoding"
            )
        lines.append(said)
    if max(found.get("measured", {}).get("median", found["speedup"]) for found in document["best"]) <= 1.0:
        lines.append("nothing that was found is faster than plain decoding here")
    return "\n\n".join([*parts, "\n".join(lines)])
