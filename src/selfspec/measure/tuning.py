"""What a search found: the draft to use, what it gains on held-out prompts, and why; and `selfspec.tune`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfspec import tuned
from selfspec.documents import FORMAT
from selfspec.engine import DEFAULT_DRAFT, Engine
from selfspec.errors import OptionError
from selfspec.loading import load
from selfspec.measure import quantities
from selfspec.measure.contenders import kind_of
from selfspec.measure.html import html_table, html_text
from selfspec.measure.identity import identity_of
from selfspec.measure.ours import BASELINE
from selfspec.measure.quantities import size
from selfspec.measure.race import ratio_of, sums_of
from selfspec.measure.settings import TuneOptions
from selfspec.measure.tasks import BUILT_IN, choose, read_prompts
from selfspec.measure.tuner import Tuner, Workload
from selfspec.model import EMBEDDED

if TYPE_CHECKING:
    import os

    from selfspec.measure.pairs import Ratio
    from selfspec.measure.race import Lap

FREE = ("budget",)
"""What a later run may ask otherwise and still go on with the measurements."""


@dataclass(frozen=True)
class Decision:
    """Which draft is kept, and whether it gains for certain."""

    draft: str
    pays: bool


def decide(winner: str, held_out: Mapping[str, Ratio | None]) -> Decision:
    """What is kept: the winner, if it gains on held-out prompts; else the default, or nothing where that loses.

    ``held_out`` has S of the winner and of the default drafter; None where nothing was measured. What is not
    decided does not count as a gain. The default drafter switches itself off, so it is kept unless it is slower for
    certain.
    """
    own, default = held_out.get(winner), held_out.get(DEFAULT_DRAFT)
    if own is not None and own.verdict() == "faster":
        return Decision(winner, True)
    if default is not None and default.verdict() == "faster":
        return Decision(DEFAULT_DRAFT, True)
    is_lost = default is not None and default.verdict() == "slower"
    return Decision(BASELINE if is_lost else DEFAULT_DRAFT, False)


class Tuning:
    """The result; a notebook shows it as a table. ``document`` is JSON-ready, and what the file has."""

    def __init__(self, document: Mapping[str, Any], path: Path | None = None) -> None:
        self._document, self.path = document, path

    @property
    def draft(self) -> str:
        """What to use, as ``draft=`` takes it."""
        return str(self._document["choice"]["draft"])

    @property
    def pays(self) -> bool:
        """Whether it is faster than plain decoding on held-out prompts, decided."""
        return bool(self._document["pays"])

    @property
    def speedup(self) -> float | None:
        """S of the draft on held-out prompts, the median; 1 for plain decoding, None where nothing was measured."""
        return 1.0 if self.draft == BASELINE else median_of(self._document, self.draft)

    @property
    def recommendation(self) -> str:
        """In words."""
        return str(self._document["recommendation"])

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return dict(self._document)

    def __repr__(self) -> str:
        return f"Tuning({self.draft!r}: {self.recommendation})"

    def _repr_html_(self) -> str:
        header = ("draft", "expected S", "measured S", "extra memory", "stage")
        caption = f"{self._document['model']}, {self._document['precision']}, tuned for {self._document['aim']}"
        return html_table(caption, header, list(contender_rows(self._document))) + html_text(self.recommendation)


def contender_rows(document: Mapping[str, Any], most: int = 20) -> Iterable[tuple[str, ...]]:
    """Draft, expected and measured S, extra bytes and stage, for a table."""
    for row in document["contenders"][:most]:
        expected = "-" if row["expected"] is None else f"{row['expected']:.2f}"
        yield row["draft"], expected, shown(row["measured"]), size(row["memory"]["bytes"]), row["stage"]


def shown(ratio: Mapping[str, Any] | None) -> str:
    """A ratio with its interval; ? marks what is undecided."""
    return quantities.ratio(ratio).rstrip()  # outside of a column


def median_of(document: Mapping[str, Any], draft: str) -> float | None:
    """S on held-out prompts: after the first token, or of whole answers where texts run together."""
    column = document["held_out"]["columns"].get(draft)
    ratio = column and (column["decoding"] or column["whole"])
    return ratio["median"] if ratio else None


# -- from a search to a document --------------------------------------------------------------------------


def document_of(tuner: Tuner, identity: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """All that was found, with the profile it rests on; ``identity`` says what it was measured on."""
    options, seed = tuner.options, tuner.options.seed
    laps = list(tuner.final.laps.values())
    winner = tuner.winner
    decision = decide(winner, {draft: ratio_of(laps, draft, seed) for draft in (winner, DEFAULT_DRAFT)})
    shown_options = asdict(options) | {"data": options.data or BUILT_IN}
    document = {
        "kind": tuned.KIND,
        "format": FORMAT,
        "identity": dict(identity),
        **{name: identity[name] for name in ("selfspec", "model", "runtime", "runs_on", "precision", "machine")},
        "layers": tuner.engine.config.num_layers,
        "options": shown_options,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": seconds,
        "aim": options.aim,
        "texts": options.texts,
        "choice": _choice(tuner, decision.draft),
        "pays": decision.pays,
        "held_out": {
            "prompts": len(tuner.held),
            "columns": {draft: _column(laps, draft, seed) for draft in dict.fromkeys([winner, DEFAULT_DRAFT])},
        },
        "contenders": _contenders(tuner, decision.draft),
        "tuning_prompts": len(tuner.questions),
        "left_out": tuner.left_out,
        **tuner.report().document(),
    }
    return document | {"recommendation": _words(document, winner)}


def _choice(tuner: Tuner, draft: str) -> dict[str, Any]:
    memory = tuner.memory(draft)
    uses = kind_of(draft) == "auto"
    return {"draft": draft, "uses_profile": uses, "runs": memory.pop("runs"), "memory": memory}


def _column(laps: list[Lap], draft: str, seed: int) -> dict[str, Any]:
    ratios = {what: _ratio(ratio_of(laps, draft, seed, what)) for what in ("decoding", "whole")}
    return ratios | sums_of(laps, draft)


def _ratio(found: Ratio | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found) | {"verdict": found.verdict()}


def _contenders(tuner: Tuner, kept: str) -> list[dict[str, Any]]:
    """Those who were measured first, by what was measured; then by what was expected."""
    finalists, expected = tuner.finalists, tuner.expected
    laps, rows = list(tuner.race.laps.values()), []
    counted = tuner.units.get("screen", {}) | tuner.units.get("replay", {})
    for draft in dict.fromkeys([*finalists, *tuner.contenders]):
        memory = tuner.memory(draft)
        replayed = counted.get(draft) or {}
        rows.append(
            {
                "draft": draft,
                "kind": kind_of(draft),
                "runs": memory.pop("runs"),
                "expected": expected.get(draft),
                "tokens_per_round": replayed.get("tokens_per_round"),
                "row_layers_per_token": replayed.get("row_layers_per_token"),
                "measured": _ratio(ratio_of(laps, draft, tuner.options.seed)),
                "memory": memory,
                "stage": "chosen" if draft == kept else "finalist" if draft in finalists else "screened",
            }
        )
    return sorted(rows, key=lambda row: (row["draft"] not in finalists, -_worth(row)))


def _worth(row: Mapping[str, Any]) -> float:
    measured = row["measured"]
    return float(measured["median"] if measured else row["expected"] or 0.0)


def _words(document: Mapping[str, Any], winner: str) -> str:
    """The recommendation."""
    draft, columns = document["choice"]["draft"], document["held_out"]["columns"]
    among = f"{document['held_out']['prompts']} held-out prompts"
    together = f" with {document['texts']} texts at once" if document["texts"] > 1 else ""
    if document["pays"]:
        column = columns[draft]
        ratio = column["decoding"] or column["whole"]
        said = f"Use {draft}: {shown(ratio)} times plain decoding on {among}{together}"
        extra = document["choice"]["memory"]["bytes"]
        return f"{said}, for {size(extra)} more memory." if extra else f"{said}."
    column = columns[winner]
    ratio = column["decoding"] or column["whole"]
    said = f"Nothing pays for certain{together}: {winner}, the best that was tried, is at {shown(ratio)} of plain "
    said += f"decoding on {among}"
    if draft == BASELINE:
        return f"{said}, and {DEFAULT_DRAFT} is slower. Do not speculate: plain decoding is kept."
    return f"{said}. {DEFAULT_DRAFT} is kept, which drafts only where it pays."


# -- the library function ---------------------------------------------------------------------------------


def tune(
    model: str | os.PathLike[str] | Engine = EMBEDDED,
    *,
    save: bool = True,
    notify: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> Tuning:
    """Find the draft that is fastest for a model, on this machine and these prompts.

    >>> selfspec.tune("smollm2-135m", data="prompts.jsonl", budget="5m").draft  # doctest: +SKIP

    Parameters
    ----------
    model
        As for `selfspec.load`, or an engine.
    save
        Keep the result for `selfspec.load` (`selfspec.tuned`); a model object cannot be told again, so there it
        must be off.
    notify
        Called with the name of each stage as it begins.
    options
        Those of `TuneOptions` (``data``, ``budget``, ``aim``, ``drafts``, ...); others are for `selfspec.load`.

    Raises
    ------
    SelfspecError
        Before anything is measured, for what is wrong with prompts, options or drafters.
    """
    names = {field.name for field in fields(TuneOptions)}
    asked = TuneOptions(**{name: value for name, value in options.items() if name in names})
    placed = {name: value for name, value in options.items() if name not in names}
    prompts = choose(read_prompts(asked.data), asked.task_names, asked.limit)
    if isinstance(model, Engine):
        if placed:
            raise OptionError(f"tune has no option {min(placed)!r}; it has {', '.join(sorted(names))}")
        engine = model
    else:
        engine = load(model, tuned=False, **placed)
    path = tuned.file_for(engine) if save else None
    began = time.perf_counter()
    tuner = Tuner(engine, Workload.of(engine, prompts, asked), asked, {})
    for stage in tuner.stages():
        notify(stage.name)
        for _ in stage.run():
            pass
    document = document_of(tuner, identity_of(engine, asked, FREE), time.perf_counter() - began)
    if path is not None:
        tuned.save(document, path)
    return Tuning(document, path)
