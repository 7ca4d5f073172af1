"""What got slower since an earlier benchmark."""

from __future__ import annotations

import json

import pytest

from selfspec.errors import OptionError
from selfspec.measure.baseline import changes, other_options, read_baseline, require_same


def document(median, low, high, is_ours=True, **head):
    cell = {"median": median, "low": low, "high": high}
    return {"ratios": {"qa": {"x": cell}}, "columns": {"x": {"is_ours": is_ours}}, **head}


@pytest.mark.parametrize(
    ("before", "now", "is_ours", "is_worse"),
    [
        ((2.0, 1.9, 2.1), (1.5, 1.4, 1.6), True, True),
        ((2.0, 1.9, 2.1), (1.5, 1.4, 1.95), True, False),  # the intervals touch
        ((1.5, 1.4, 1.6), (2.0, 1.9, 2.1), True, False),  # faster
        ((0.5, 0.45, 0.55), (0.8, 0.7, 0.9), False, True),  # a rival gained on plain
        ((0.5, 0.45, 0.75), (0.8, 0.7, 0.9), False, False),  # the intervals touch
        ((0.8, 0.7, 0.9), (0.5, 0.45, 0.55), False, False),
    ],
)
def test_only_intervals_that_exclude_one_tell(before, now, is_ours, is_worse):
    """Guards CI against noise, and against missing what is real."""
    (change,) = changes(document(*before), document(*now, is_ours=is_ours))
    assert change.is_worse is is_worse
    assert (change.before, change.now) == (before[0], now[0])


def test_what_only_one_of_them_has_is_not_compared():
    """Guards new columns and tasks."""
    now = document(1.0, 0.9, 1.1)
    now["ratios"] |= {"rag": now["ratios"]["qa"]}
    now["ratios"]["qa"] = now["ratios"]["qa"] | {"y": now["ratios"]["qa"]["x"]}
    assert [(change.task, change.column) for change in changes(document(1.0, 0.9, 1.1), now)] == [("qa", "x")]


def test_the_last_line_of_a_log_is_enough(tmp_path):
    """Guards `bench --json > file`: tables before the document do not hinder."""
    path = tmp_path / "log"
    path.write_text("a table\n" + json.dumps(document(1.0, 0.9, 1.1)) + "\n")
    assert read_baseline(str(path)) == document(1.0, 0.9, 1.1)


@pytest.mark.parametrize(
    "text",
    ["", "a table", "[]", "{}", '{"ratios": 3}', '{"ratios": {"qa": {"x": {"median": 1, "low": 0, "high": 2}}}}'],
)
def test_another_file_is_refused(tmp_path, text):
    """Guards minutes of measuring that could not be compared in the end."""
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(OptionError, match="is no benchmark"):
        read_baseline(str(path))
    with pytest.raises(OptionError, match="cannot be read"):
        read_baseline(str(tmp_path / "none"))


def test_other_options_are_named():
    """Guards against a change of flags that looks like a change of speed."""
    now = {
        "options": {"data": "built-in", "limit": 2, "max_new_tokens": 64, "temperature": "0", "ignore_eos": False}
    }
    before = {"options": now["options"] | {"limit": None, "repeats": 9}}
    assert other_options(before, now) == ["limit"]
    assert other_options({}, now) == []


def test_like_is_compared_with_like():
    """Guards against a regression that is another model."""
    head = {"model": "a", "runtime": "torch", "precision": "float32", "baseline": "plain"}
    require_same(head, head)
    with pytest.raises(OptionError, match="precision 'float32', this is 'bfloat16'"):
        require_same(head, head | {"precision": "bfloat16"})
