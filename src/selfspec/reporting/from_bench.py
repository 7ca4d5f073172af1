"""What a benchmark shows: methods side by side, acceptance by position and task, who wrote each token."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from selfspec.measure.quantities import number, ratio, size
from selfspec.reporting.cells import level, measured
from selfspec.reporting.drawing import Interval, intervals
from selfspec.reporting.view import Plot, Sample, Section, Words, Writing, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from selfspec.reporting.results import Result
    from selfspec.reporting.view import Cell, Part, Table

COMMAND = "selfspec bench --repeats 7 --out bench.json"
_KINDS = ("whole answers", "after the first token")
_WHO = {"draft": "accepted draft", "bonus": "bonus token", "plain": "no draft"}


def bench_sections(result: Result, name: str) -> Iterator[Section]:
    """Those that a benchmark has something for; ``name`` begins their anchors."""
    document = result.document
    others = [column for column in document["columns"] if column != document["baseline"]]
    parts: list[Part] = [*_troubles(document)]
    if others:
        parts += [_methods(document, others, name), _tasks(document, others)]
    yield Section(f"{name}-methods", "Methods side by side", (*parts, _held(document)))
    if positions := [*_positions(document)]:
        yield Section(f"{name}-positions", "Acceptance by position and task", tuple(positions))
    if samples := [*_samples(document)]:
        yield Section(f"{name}-samples", "Who wrote each token", tuple(samples), is_long=True)


def _troubles(document: Mapping[str, Any]) -> Iterator[Words]:
    lines = [f"Skipped: {name}: {why}" for name, why in document["skipped"].items()]
    lines += [f"Failed: {name}: {why}" for name, why in document["failed"].items()]
    lines += [f"Too long for the context: {what}" for what in document["too_long"]]
    wrong = [found for found in document["differences"] if found["is_fault"]]
    lines += [f"{found['column']} wrote another text on {found['task']} {found['id']}" for found in wrong]
    if lines:
        yield Words(tuple(lines))


def _interval(cell: Mapping[str, Any] | None) -> Interval | None:
    return None if cell is None else Interval(float(cell["median"]), float(cell["low"]), float(cell["high"]))


def _methods(document: Mapping[str, Any], others: Sequence[str], name: str) -> Plot:
    whole, decoding = document["overall"], document["decoding"]["all"]
    rows = [(column, (_interval(whole.get(column)), _interval(decoding.get(column)))) for column in others]
    known = [column for column in others if column in whole]
    best = max(known, key=lambda column: float(whole[column]["median"]), default=None)
    says = (
        "No method finished a pair."
        if best is None
        else (
            "S of each method: tokens per second ÷ those of plain decoding, median and 90 % interval. "
            f"The largest is {best}, {ratio(whole[best]).strip()}."
        )
    )
    drawn = [row for row in rows if any(row[1])]
    svg = intervals(f"{name}-S", drawn, _KINDS, "S") if drawn else ""
    return Plot(svg, says, _speeds(document, best))


def _speeds(document: Mapping[str, Any], best: str | None) -> Table:
    rows: list[tuple[str | Cell, ...]] = []
    for column, found in document["totals"].items():
        whole, decoding = (cells.get(column) for cells in (document["overall"], document["decoding"]["all"]))
        rows.append(
            (
                column if document["columns"][column]["is_ours"] else f"{column} (another program)",
                measured(whole, column == best),
                measured(decoding),
                f"{found['tokens_per_second']['p50']:.1f}",
                number(found["ttft_seconds"], 1e3, ".0f"),
                number(found.get("acceptance_rate"), 1, ".2f"),
                number(found.get("mean_accepted_length"), 1, ".2f"),
                number(found.get("row_layers_per_token"), 1, ".1f"),
                _outputs(document, column),
            )
        )
    head = ("method", "S, whole answers", "S after the first token", "tokens/s", "first token, ms", "α", "τ")
    return table(
        "Speed of each method over all tasks",
        (*head, "row-layers/token", "output"),
        rows,
        "α: accepted ÷ drafted tokens. τ: tokens per round, the bonus token included. "
        "? marks what the pairs do not decide.",
    )


def _outputs(document: Mapping[str, Any], column: str) -> str:
    if column == document["baseline"]:
        return "baseline"
    return ", ".join(f"{kind} {count}" for kind, count in document["outputs"][column].items())


def _tasks(document: Mapping[str, Any], others: Sequence[str]) -> Table:
    rows: list[tuple[str | Cell, ...]] = [
        (task, *(measured(cells.get(column)) for column in others)) for task, cells in document["ratios"].items()
    ]
    return table("S of whole answers by task", ("task", *others), rows)


def _held(document: Mapping[str, Any]) -> Table:
    """Memory, and what must be kept."""
    rows: list[tuple[str | Cell, ...]] = []
    for column, found in document["totals"].items():
        parts = dict(found["memory"])
        cache, weights, kv = (int(parts.pop(part, 0)) for part in ("KV cache", "draft weights", "draft KV"))
        about = document["columns"][column]
        buffers = size(sum(map(int, parts.values())))
        rows.append(
            (
                column,
                about.get("keeps", "-"),
                about.get("plan", "-"),
                *((size(weights), size(kv), buffers, size(cache)) if found["memory"] else ("-",) * 4),
                size(int(found["peak_bytes"])),
            )
        )
    peak = "of a run" if document["has_peaks_per_run"] else "of the process so far"
    return table(
        "Memory and pieces to keep",
        ("method", "besides the model", "runs", "draft weights", "draft cache", "buffers", "cache", "peak"),
        rows,
        f"Buffers are what a round holds beyond plain decoding. The peak is that {peak}, with weights and program.",
    )


def _positions(document: Mapping[str, Any]) -> Iterator[Table]:
    """For each method a heat map: tasks, and positions in the draft."""
    tasks = document["tasks"] | {"all": document["totals"]}
    for column in document["columns"]:
        rates = {task: found.get(column, {}).get("acceptance_per_position") for task, found in tasks.items()}
        known = {task: found for task, found in rates.items() if found}
        if not known:
            continue
        most = max(map(len, known.values()))
        rows: list[tuple[str | Cell, ...]] = [
            (task, *(level(rate) for rate in found), *("-",) * (most - len(found))) for task, found in known.items()
        ]
        yield table(
            f"{column}: accepted ÷ drafted tokens at each place of the draft",
            ("task", *(f"{place}" for place in range(1, most + 1))),
            rows,
        )


def _samples(document: Mapping[str, Any]) -> Iterator[Sample]:
    for found in document.get("samples", ()):
        answers = found["answers"]
        ours = [column for column in document["columns"] if column in answers]
        shown = [column for column in ours if column != document["baseline"]] or ours
        title = f"{found['task']} {found['id']}, temperature {found['temperature']:g}"
        yield Sample(title, found["prompt"], tuple(_writing(column, answers[column]) for column in shown))


def _writing(column: str, pieces: Sequence[Sequence[str]]) -> Writing:
    tokens = tuple((str(text), str(source)) for text, source in pieces)
    if wrong := [source for _, source in tokens if source not in _WHO]:
        raise ValueError(f"{wrong[0]!r} wrote a token; it must be one of {', '.join(_WHO)}")
    totals = {name: sum(source == kind for _, source in tokens) for kind, name in _WHO.items()}
    runs = [(source, [text for text, _ in run]) for source, run in groupby(tokens, key=lambda token: token[1])]
    rows: list[tuple[str | Cell, ...]] = [
        (f"{place}", _WHO[source], f"{len(texts)}", "".join(texts)) for place, (source, texts) in enumerate(runs, 1)
    ]
    counts = " · ".join(f"{name} {count}" for name, count in totals.items() if count)
    return Writing(
        column,
        f"{len(tokens)} tokens · {counts}",
        tokens,
        table(f"The same as a table, {column}", ("run", "written by", "tokens", "text"), rows),
    )
