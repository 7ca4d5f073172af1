"""Prompts from files and from the package."""

from __future__ import annotations

import json

import pytest

from selfspec.errors import OptionError, PromptError
from selfspec.measure.tasks import choose, read_prompts

TASKS = [
    "mt_bench",
    "translation",
    "summarization",
    "qa",
    "math_reasoning",
    "rag",
    "code",
    "structured",
    "creative",
]


def written(tmp_path, *rows):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return str(path)


def test_the_built_in_set_has_nine_tasks():
    """Guards the set: three or more prompts a task, distinct ids, and a task with more than one turn."""
    prompts = read_prompts(None)
    assert list(dict.fromkeys(prompt.task for prompt in prompts)) == TASKS
    assert all(sum(prompt.task == task for prompt in prompts) >= 3 for task in TASKS)
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    assert all(len(prompt.turns) == 2 for prompt in prompts if prompt.task == "mt_bench")


def test_every_format_is_read(tmp_path):
    """Guards our fields, the training set's, Spec-Bench's own, and a bare prompt."""
    path = written(
        tmp_path,
        {"id": 82, "task": "qa", "category": "x", "turns": ["a", "b"]},
        {"source": "s", "category": "general", "prompt": "c"},
        {"question_id": 81, "category": "writing", "turns": ["d"]},
        {"question_id": 300, "category": "summarization", "turns": ["e"]},
        "",
        {"prompt": "f"},
    )
    found = [(prompt.task, prompt.id, prompt.turns) for prompt in read_prompts(path)]
    assert found == [
        ("qa", "82", ("a", "b")),
        ("general", "2", ("c",)),
        ("mt_bench", "81", ("d",)),
        ("summarization", "300", ("e",)),
        ("all", "6", ("f",)),
    ]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("{", "line 2 .* is not JSON"),
        ("3", "line 2 .* no prompt"),
        ({"turns": []}, "no prompt"),
        ({"turns": ["a", 3]}, "no prompt"),
        ({"prompt": " "}, "no prompt"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path, row, words):
    """Guards against prompts that are silently left out."""
    with pytest.raises(PromptError, match=words):
        read_prompts(written(tmp_path, {"prompt": "a"}, row))


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    """Guards the error: missing, empty, or not UTF-8."""
    (tmp_path / "latin").write_bytes(b"\xff")
    for path in (tmp_path / "none", tmp_path / "latin"):
        with pytest.raises(PromptError, match="cannot be read"):
            read_prompts(str(path))
    with pytest.raises(PromptError, match="no prompts"):
        read_prompts(written(tmp_path, ""))


def test_tasks_and_limits_choose():
    """Guards --tasks and --limit: so many of each task, in the order of the file."""
    prompts = read_prompts(None)
    chosen = choose(prompts, ("code", "qa"), 2)
    assert [prompt.id for prompt in chosen] == ["qa-1", "qa-2", "code-1", "code-2"]
    assert choose(prompts, (), None) == sorted(prompts, key=lambda prompt: TASKS.index(prompt.task))
    with pytest.raises(OptionError, match="no task 'poetry'; there are mt_bench"):
        choose(prompts, ("poetry",), None)


def test_only_line_feeds_end_a_line(tmp_path):
    """Guards JSON strings that hold U+2028 or a form feed, which Python's splitlines would cut."""
    path = tmp_path / "data.jsonl"
    path.write_text('{"task": "a", "prompt": "one\u2028two\x85three"}\r\n', encoding="utf-8", newline="")
    assert [prompt.turns for prompt in read_prompts(str(path))] == [("one\u2028two\x85three",)]
