"""What a search for the best draft, a plan, and a certificate show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selfspec.measure.quantities import number, size
from selfspec.reporting.cells import measured, speedup
from selfspec.reporting.view import Cell, Section, Words, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from selfspec.reporting.results import Result
    from selfspec.reporting.view import Table

TUNE = "selfspec tune --out tuned.json"
PLAN = "selfspec plan --memory SIZE --json > plan.json"
CERTIFY = "selfspec certify --out certificate.json"
_PASSED = {True: Cell("holds", "gain", 0.6), False: Cell("FAILS", "loss", 1.0), None: Cell("does not apply")}


def tune_sections(result: Result, name: str) -> Iterator[Section]:
    """What was tried, and what the choice gains on prompts that it was not chosen on."""
    document = result.document
    choice, held = document["choice"], document["held_out"]
    tried = _contenders(document)
    held_bytes = choice["memory"]["bytes"]
    said = (
        f"The choice: {choice['draft']} ({choice['runs']}); beyond the model it holds {size(int(held_bytes))}.",
        document["recommendation"],
        *(f"Left out: {what}: {why}" for what, why in document["left_out"].items()),
    )
    columns: list[tuple[str | Cell, ...]] = [
        (
            column,
            measured(found["whole"]),
            measured(found["decoding"]),
            number(found["acceptance_rate"], 1, ".2f"),
            number(found["mean_accepted_length"], 1, ".2f"),
            f"{found['equal_answers']} of {found['answers']}",
        )
        for column, found in held["columns"].items()
    ]
    head = ("draft", "S, whole answers", "S after the first token", "α", "τ", "equal answers")
    parts = (
        Words(said),
        table(f"On {held['prompts']} prompts that nothing was chosen on", head, columns),
        tried,
    )
    yield Section(f"{name}-tuned", "Tuned on this machine", parts)


def _contenders(document: Mapping[str, Any]) -> Table:
    """Those that were replayed or measured."""
    found = document["contenders"]
    known = [one for one in found if one["expected"] is not None or one["measured"] is not None]
    rows: list[tuple[str | Cell, ...]] = [
        (
            one["draft"],
            one["stage"],
            number(one["expected"], 1, ".2f"),
            measured(one["measured"], one["stage"] == "chosen"),
            number(one["tokens_per_round"], 1, ".2f"),
            number(one["row_layers_per_token"], 1, ".1f"),
            size(int(one["memory"]["bytes"])),
        )
        for one in known
    ]
    rest = len(found) - len(known)
    return table(
        f"Contenders on {document['tuning_prompts']} prompts, {document['seconds']:.0f} s, aim {document['aim']}",
        ("draft", "stage", "S by replay", "S measured", "tokens per round", "row-layers/token", "memory"),
        rows,
        f"And {rest} more that were neither replayed nor measured." if rest else "",
    )


def plan_sections(result: Result, name: str) -> Iterator[Section]:
    """What fits into a memory."""
    document = result.document
    rows: list[tuple[str | Cell, ...]] = [
        (
            way["way"] if way["is_built"] else f"{way['way']} (not in this version)",
            size(int(way["total"])),
            "yes" if way["fits"] else f"{size(int(way['short']))} too much",
            size(int(way["extra"])),
            way["keeps"],
            way["runs"],
            _expected(way["expected"]),
        )
        for way in document["ways"]
    ]
    texts = f"{document['concurrency']} x {document['context']} tokens in {size(int(document['memory']))}"
    parts = (
        Words((document["recommendation"], *document["notes"])),
        table(
            f"Ways to draft: {texts}",
            ("way", "memory", "fits", "of it for drafts", "besides the model", "runs", "expected S"),
            rows,
        ),
    )
    yield Section(f"{name}-plan", "What fits into the memory", parts)


def _expected(worth: Mapping[str, Any] | None) -> Cell:
    if worth is None:
        return Cell("-")
    return speedup(float(worth["speedup"]), f"{worth['speedup']:.2f} at γ {worth['gamma']}")


def certify_sections(result: Result, name: str) -> Iterator[Section]:
    """Every check and what it found."""
    document = result.document
    rows: list[tuple[str | Cell, ...]] = [
        (
            check["name"],
            _PASSED[check["passed"]],
            check["summary"],
        )
        for check in document["checks"]
    ]
    drafters = ", ".join(drafter["label"] for drafter in document["drafters"])
    caption = f"Checks with {document['prompts']['count']} prompts, made {document['created']}"
    parts = (
        Words((f"Drafters that were tried: {drafters}.",)),
        table(caption, ("claim", "verdict", "what was found"), rows),
    )
    yield Section(f"{name}-proof", "Proof that drafts change nothing", parts)
