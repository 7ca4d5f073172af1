"""What ``selfspec bench`` prints for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from selfspec.cli.output import facts, table
from selfspec.measure.quantities import number, ratio, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from selfspec.measure.baseline import Change
    from selfspec.measure.passes import Ceiling

_SHOWN = 5  # differing answers that are listed


def ceiling_lines(ceiling: Ceiling | None) -> str:
    """What the machine would allow, printed before anything is measured."""
    if ceiling is None:
        return "ceiling: not measured, the weights are on no CPU"
    reached = 1.0 / ceiling.pass_seconds / ceiling.memory_tokens_per_second
    pairs = [
        (
            "memory ceiling",
            f"{ceiling.memory_tokens_per_second:.1f} tok/s of plain decoding: {size(ceiling.weight_bytes)} "
            f"per pass at {ceiling.bytes_per_second / 1e9:.1f} GB/s",
        ),
        (
            "arithmetic ceiling",
            f"{ceiling.arithmetic_tokens_per_second:.1f} rows/s: {ceiling.operations / 1e6:.1f} M operations per "
            f"row at {ceiling.operations_per_second / 1e9:.0f} G/s in float32",
        ),
        ("break-even", f"a pass of {ceiling.break_even_rows:.1f} rows costs as much in arithmetic as in memory"),
        ("one pass of one row", f"{ceiling.pass_seconds * 1e3:.1f} ms, {reached:.2f} of the memory ceiling"),
    ]
    return facts(pairs)


def page(document: Mapping[str, Any]) -> str:
    """The tables."""
    others = [name for name in document["columns"] if name != document["baseline"]]
    parts = [
        _head(document),
        _troubles(document),
        _speedups("task", document["ratios"] | {"all": document["overall"]}, others, document),
        _phases(document, others),
        _speedups("new tokens", document["by_length"], others) if len(document["by_length"]) > 1 else "",
        _speedups("temperature", document["by_temperature"], others) if len(document["by_temperature"]) > 1 else "",
        _columns(document),
        _positions(document),
        _memory(document),
    ]
    return "\n\n".join(part for part in parts if part)


def _head(document: Mapping[str, Any]) -> str:
    machine, options = document["machine"], document["options"]
    return (
        f"{document['model']} · {document['precision']} {document['runtime']} · {machine['processor']}, "
        f"{machine['cores']} cores · {options['max_new_tokens']} tokens, {options['repeats']} repeats, "
        f"temperature {options['temperature']}, data {options['data']}"
    )


def _troubles(document: Mapping[str, Any]) -> str:
    lines = [f"SKIPPED {name}: {why}" for name, why in document["skipped"].items()]
    lines += [f"FAILED {name}: {why}" for name, why in document["failed"].items()]
    lines += [f"TOO LONG for the context: {what}" for what in document["too_long"]]
    faults = [found for found in document["differences"] if found["is_fault"]]
    lines += [
        click.style(f"DIFFERENT OUTPUT {_difference(found)}", fg="red", bold=True) for found in faults[:_SHOWN]
    ]
    if len(faults) > _SHOWN:
        lines.append(f"... and {len(faults) - _SHOWN} more; --json lists them")
    return "\n".join(lines)


def _difference(found: Mapping[str, Any]) -> str:
    is_short = found["gap"] is None
    gap = ", one text ends there" if is_short else f", logit gap {found['gap']:.2g}, noise {found['noise']:.2g}"
    return f"{found['column']} on {found['task']} {found['id']}, turn {found['turn'] + 1}, token {found['at']}{gap}"


def _speedups(
    title: str,
    rows: Mapping[str, Mapping[str, Any]],
    columns: Sequence[str],
    document: Mapping[str, Any] | None = None,
) -> str:
    """S by row and column; with the document, the baseline's tokens per second too."""
    header = [title, *columns]
    lines = _ratio_lines(rows, columns)
    if document is not None:
        base = document["baseline"]
        header.insert(1, f"{base} tok/s")
        summaries = document["tasks"] | {"all": document["totals"]}
        for line in lines:
            line.insert(1, f"{summaries[line[0]][base]['tokens_per_second']['p50']:.1f}")
    if not columns and document is None:
        return ""
    return f"S by {title}: tokens/s ÷ those of plain, median [90 % interval], ? undecided\n" + table(
        [header, *lines]
    )


def _phases(document: Mapping[str, Any], columns: Sequence[str]) -> str:
    """The two parts of an answer: speculation changes only what follows the first token."""
    if not columns:
        return ""
    rows = document["decoding"] | {"all, to the first token": document["prefill"]["all"]}
    return "S after the first token, by task\n" + table([["task", *columns], *_ratio_lines(rows, columns)])


def _ratio_lines(rows: Mapping[str, Mapping[str, Any]], columns: Sequence[str]) -> list[list[str]]:
    """The name of each row and its ratios."""
    return [[name, *(ratio(cells.get(column)) for column in columns)] for name, cells in rows.items()]


def _columns(document: Mapping[str, Any]) -> str:
    header = (
        *("column", "runs", "tok/s p50", "p95", "TTFT ms", "TPOT ms", "α", "τ", "accepted/round"),
        *("drafted", "wasted", "row-layers/token", "output"),
    )
    rows = [(name, *_cells(cell), _outputs(document, name)) for name, cell in document["totals"].items()]
    return "columns over all tasks\n" + table([header, *rows])


def _cells(cell: Mapping[str, Any]) -> Iterable[str]:
    speed = cell["tokens_per_second"]
    return (
        f"{cell['runs']}",
        f"{speed['p50']:.1f}",
        f"{speed['p95']:.1f}",
        number(cell["ttft_seconds"], 1e3, ".0f"),
        number(cell["tpot_seconds"], 1e3, ".1f"),
        number(cell.get("acceptance_rate"), 1, ".2f"),
        number(cell.get("mean_accepted_length"), 1, ".2f"),
        number(cell.get("accepted_per_round"), 1, ".2f"),
        number(cell.get("drafted"), 1, ".0f"),
        number(cell.get("wasted"), 1, ".0f"),
        number(cell.get("row_layers_per_token"), 1, ".1f"),
    )


def _outputs(document: Mapping[str, Any], name: str) -> str:
    if name == document["baseline"]:
        return "baseline"
    counts = document["outputs"][name]
    total = sum(counts.values())
    if set(counts) == {"equal"}:
        return f"equal {total}/{total}"
    kinds = {kind: kind for kind in counts}
    if document["columns"][name]["is_comparable"]:
        kinds["different"] = "DIFFERENT"
    return ", ".join(f"{kinds[kind]} {count}/{total}" for kind, count in counts.items())


def _positions(document: Mapping[str, Any]) -> str:
    lines = [
        (name, " ".join(f"{rate:.2f}" for rate in cell["acceptance_per_position"]))
        for name, cell in document["totals"].items()
        if cell.get("acceptance_per_position")
    ]
    return "acceptance by position in the draft\n" + facts(lines) if lines else ""


def _memory(document: Mapping[str, Any]) -> str:
    whose = "of the run" if document["has_peaks_per_run"] else "of the process so far"
    lines = []
    for name, cell in document["totals"].items():
        parts = [f"{part} {size(held)}" for part, held in cell["memory"].items() if held]
        lines.append((name, ", ".join([f"peak {size(cell['peak_bytes'])}", *parts])))
    return f"memory: the peak {whose}, and what is held beyond the weights\n" + facts(lines)


def worse_lines(changes: Sequence[Change]) -> str:
    """What got slower than before, and out of how many."""
    if not changes:
        return "compared with the baseline file: it has no task and column of this run"
    worse = [change for change in changes if change.is_worse]
    lines = [
        f"SLOWER {change.column} on {change.task}: {change.before:.2f} -> {change.now:.2f}"
        + ("" if change.is_ours else " (the rival gained on plain decoding)")
        for change in worse
    ]
    return "\n".join([*lines, f"compared with the baseline file: {len(worse)} of {len(changes)} ratios got worse"])
