"""From matches to the document."""

from __future__ import annotations

import pytest
from doubles import tiny_runtime

from selfspec.measure.bench import Match, Measurements
from selfspec.measure.report import Report
from selfspec.measure.tasks import Prompt
from selfspec.measure.timing import Answer, Ask, Column, Run
from selfspec.rounds import Stats


class Named(Column):
    def __init__(self, name, is_ours=True, is_comparable=True):
        self.name, self.is_ours, self.is_comparable = name, is_ours, is_comparable

    def answer(self, ask, first):
        raise NotImplementedError


def run(tokens, seconds, stats=None, **more):
    return Run(Answer(tuple(tokens), stats=stats, **more), seconds, seconds / 10, 1000)


def match(task, temperature=0.0, **runs):
    return Match(Prompt(task, "1", ("hello",)), 0, Ask((3, 5), 300, temperature), runs)


def report(*matches, columns=("plain", "draft")):
    named = [Named(name) if isinstance(name, str) else name for name in columns]
    return Report(Measurements("plain", list(matches)), named, tiny_runtime())


def test_ratios_are_by_task_length_and_temperature():
    """Guards the groups: every pair is in one row of each table, and in the overall row."""
    short, long = range(10), range(100)
    document = report(
        match("qa", plain=run(short, 2.0), draft=run(short, 1.0)),
        match("qa", plain=run(long, 8.0), draft=run(long, 2.0)),
        match("rag", 0.7, plain=run(short, 3.0), draft=run(short, 1.0)),
    ).document()
    assert {task: cells["draft"]["median"] for task, cells in document["ratios"].items()} == {"qa": 3.0, "rag": 3.0}
    assert document["overall"]["draft"]["pairs"] == 3
    assert {name: cells["draft"]["median"] for name, cells in document["by_length"].items()} == {
        "<=50": 2.5,
        "<=200": 4.0,
    }
    assert set(document["by_temperature"]) == {"0", "0.7"}
    assert set(document["ratios"]["qa"]) == {"draft"}, "the baseline has no ratio to itself"
    assert set(document["ratios"]["qa"]["draft"]) == {"median", "low", "high", "pairs", "verdict"}


def test_the_parts_of_an_answer_have_ratios_of_their_own():
    """Guards decoding and prefill: what follows the first token apart from the time to it, where both are told."""
    slow, fast = Run(Answer(tuple(range(11))), 6.0, 1.0, 0), Run(Answer(tuple(range(11))), 4.5, 2.0, 0)
    silent, single = Run(Answer((1, 2, 3)), 1.0, None, 0), Run(Answer((1,)), 1.0, 0.5, 0)
    document = report(
        match("qa", plain=slow, draft=fast),
        match("rag", plain=slow, draft=silent),
        match("code", plain=slow, draft=single),
    ).document()
    assert {task: cells.get("draft", {}).get("median") for task, cells in document["decoding"].items()} == {
        "qa": pytest.approx(2.0),
        "rag": None,
        "code": None,
        "all": pytest.approx(2.0),
    }
    assert document["prefill"]["qa"]["draft"]["median"] == pytest.approx(0.5)
    assert document["prefill"]["all"]["draft"]["pairs"] == 2


def test_counts_are_sums_over_all_answers():
    """Guards α, τ with and without the bonus, waste and row-layers: over tokens, not means of means."""
    one = Stats(
        1,
        7,
        3,
        6,
        3,
        draft_row_layers=12.0,
        verify_row_layers=30.0,
        prefill_row_layers=5.0,
        drafted_per_position=[3, 3],
        accepted_per_position=[2, 1],
    )
    two = Stats(
        1,
        4,
        1,
        3,
        2,
        draft_row_layers=6.0,
        verify_row_layers=12.0,
        prefill_row_layers=5.0,
        drafted_per_position=[1, 1, 1],
        accepted_per_position=[1, 1],
    )
    found = report(
        match("qa", plain=run(range(7), 1.0), draft=run(range(7), 1.0, one)),
        match("qa", plain=run(range(4), 1.0), draft=run(range(4), 1.0, two)),
    ).document()["totals"]["draft"]
    assert (found["drafted"], found["accepted"], found["wasted"], found["rounds"]) == (9, 5, 4, 4)
    assert found["acceptance_rate"] == pytest.approx(5 / 9)
    assert found["acceptance_per_position"] == [3 / 4, 2 / 4]
    assert found["mean_accepted_length"] == 9 / 4
    assert found["accepted_per_round"] == 5 / 4
    assert found["row_layers_per_token"] == 60 / 9


def test_speeds_and_memory():
    """Guards p95, which is the slow end, and the largest of each part of memory."""
    runs = [run(range(10), seconds, memory={"KV cache": int(seconds)}) for seconds in (1.0, 2.0, 5.0)]
    found = report(*(match("qa", plain=each) for each in runs), columns=["plain"]).document()["totals"]["plain"]
    assert found["tokens_per_second"]["p50"] == 5.0
    assert 2.0 <= found["tokens_per_second"]["p95"] < 2.5
    assert found["memory"] == {"KV cache": 5}
    assert found["ttft_seconds"] == pytest.approx(0.2)
    assert found["tpot_seconds"] == pytest.approx(0.2)


def test_a_changed_word_is_a_fault_of_ours_only():
    """Guards the alarm: ours and greedy; not another program in another precision, nor sampled texts."""
    other = Named("rival", is_ours=False, is_comparable=False)
    same = Named("shared", is_ours=False)
    right, wrong = run((1, 2, 3), 1.0), run((1, 9, 3), 1.0)
    made = report(
        match("qa", plain=right, draft=wrong, rival=wrong, shared=wrong),
        match("qa", 0.5, plain=right, draft=wrong),
        columns=["plain", "draft", other, same],
    )
    assert [found.column for found in made.faults] == ["draft"]
    document = made.document()
    assert document["outputs"]["draft"] == {"different": 1, "not compared": 1}
    assert {found["column"]: found["is_fault"] for found in document["differences"]} == {
        "draft": True,
        "rival": False,
        "shared": True,
    }
    assert document["differences"][0]["at"] == 1


def test_a_column_that_left_has_what_it_finished():
    """Guards failures: the pairs before it count, and nothing stands for those after."""
    document = report(
        match("qa", plain=run((1, 2), 1.0), draft=run((1, 2), 0.5)),
        match("rag", plain=run((1, 2), 1.0)),
    ).document()
    assert document["overall"]["draft"]["pairs"] == 1
    assert document["ratios"]["rag"] == {}
    assert "draft" not in document["tasks"]["rag"]
