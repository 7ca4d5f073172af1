"""What `selfspec tune` prints: who was tried, who was measured, what holds on held-out prompts, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selfspec.cli.output import facts, table
from selfspec.measure.quantities import number, size
from selfspec.measure.tuning import contender_rows, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST = 16  # contenders that are listed


def page(documents: Sequence[Mapping[str, Any]]) -> str:
    """One part for each precision, and a word on several."""
    parts = [_part(document) for document in documents]
    if len(documents) > 1:
        speeds = [(d["precision"], _plain_speed(d)) for d in documents]
        rows = [(name, f"{speed:.1f}") for name, speed in speeds]
        parts.append(
            "plain decoding by precision; each is another target, with other texts; S compares within one\n"
            + table([("precision", "tok/s"), *rows])
        )
    return "\n\n".join(parts)


def _plain_speed(document: Mapping[str, Any]) -> float:
    """Tokens per second of plain rounds, as the profile timed them."""
    (rounds,) = document["rounds"].values()
    return float(1.0 / rounds["plain_seconds"])


def _part(document: Mapping[str, Any]) -> str:
    parts = [_head(document), _contenders(document), _held_out(document)]
    if document["left_out"]:
        parts.append("\n".join(f"LEFT OUT {name}: {why}" for name, why in document["left_out"].items()))
    parts.append(_equal(document))
    parts.append(document["recommendation"])
    parts.append(_kept(document))
    return "\n\n".join(part for part in parts if part)


def _head(document: Mapping[str, Any]) -> str:
    options = document["options"]
    data = f"{options['data']}, {document['tuning_prompts']} prompts to tune on, "
    data += f"{document['held_out']['prompts']} held out"
    return facts(
        [
            ("model", f"{document['model']}, {document['precision']} on {document['runs_on']}"),
            ("data", data),
            ("answers", f"up to {options['max_new_tokens']} tokens, temperature {options['temperature']}"),
            ("for", f"{document['aim']}, {document['seconds']:.0f} s of a budget of {options['budget']}"),
        ]
    )


def _contenders(document: Mapping[str, Any]) -> str:
    rows = [
        (draft, expected, measured, memory, stage)
        for draft, expected, measured, memory, stage in contender_rows(document, _MOST)
    ]
    more = len(document["contenders"]) - len(rows)
    title = "contenders; S expected from the replay of recorded answers, measured on the prompts to tune on"
    end = f"\nand {more} more" if more > 0 else ""
    return f"{title}\n{table([('draft', 'expected', 'measured', 'memory', 'stage'), *rows])}{end}"


def _held_out(document: Mapping[str, Any]) -> str:
    rows = [
        (
            draft,
            shown(column["decoding"]),
            shown(column["whole"]),
            number(column["acceptance_rate"], 1, ".2f"),
            number(column["mean_accepted_length"], 1, ".2f"),
            number(column["row_layers_per_token"], 1, ".1f"),
        )
        for draft, column in document["held_out"]["columns"].items()
    ]
    header = ("draft", "S after the first token", "S", "α", "τ", "row-layers/token")
    return "on held-out prompts: S ÷ plain, median [90 % interval], ? undecided\n" + table([header, *rows])


def _equal(document: Mapping[str, Any]) -> str:
    """A line where greedy answers were not plain decoding's."""
    if document["options"]["temperature"] != "0":
        return ""
    columns = document["held_out"]["columns"].items()
    other = [f"{d}: {c['answers'] - c['equal_answers']}" for d, c in columns if c["equal_answers"] < c["answers"]]
    if not other:
        return ""
    return f"ANSWERS DIFFER from plain decoding's ({', '.join(other)}); `selfspec certify` says whether by rounding"


def _kept(document: Mapping[str, Any]) -> str:
    if document["file"] is None:
        return f"not kept; use it with --draft '{document['choice']['draft']}'"
    held = document["choice"]["memory"]
    extra = f", {size(held['bytes'])} beyond plain decoding" if held["bytes"] else ""
    return (
        f"kept in {document['file']}{extra}: it drafts wherever no draft is named; --no-tuned ignores it, "
        "selfspec tune --forget removes it"
    )
