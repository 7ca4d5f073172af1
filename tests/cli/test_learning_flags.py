"""`--learn` on the command line: what is shown, what is kept, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from selfspec.cli.learned import in_full, in_short, learns
from selfspec.learning.course import Course

FLAGS = ["--draft", "early_exit", "--exit-layer", "2", "--learn", "--max-new-tokens", "16", "--ignore-eos"]


@pytest.fixture
def at_once(monkeypatch):
    """A course that keeps a head for every row that it takes: nobody waits for real learning here."""
    take = Course.take

    def kept(self, *rows):
        take(self, *rows)
        weights = {**self.head.weights, "norm.weight": self.head.weights["norm.weight"] * np.float32(1.01)}
        self.counts.kept += 1
        self.counts.first_alpha, self.counts.alpha = 0.25, 0.5
        self._use(type(self.head)(self.head.facts, weights))

    monkeypatch.setattr(Course, "take", kept)


def test_generate_says_what_was_learned_and_keeps_it(call, tiny, tmp_path, at_once):
    """Guards the summary, --explain, --json, and a file that the next run goes on with; the text is plain."""
    out = tmp_path / "head.safetensors"
    plain = call("generate", "hello", "--model", tiny, "--draft", "plain", *FLAGS[5:]).stdout
    result = call(
        "generate", "hello", "--model", tiny, *FLAGS, "--learn-share", "1", "--learn-out", out, "--explain"
    )
    assert result.exit_code == 0, result.stderr
    assert result.stdout == plain
    assert "learning head" in result.stderr
    assert "steps" in result.stderr
    if out.exists():  # the text may have ended before the thread took a row
        assert f"what was learned is in {out}" in result.stderr
    else:
        assert "nothing was learned" in result.stderr
    document = json.loads(call("generate", "hello", "--model", tiny, *FLAGS, "--json", "--explain").stdout)
    assert document["explanation"]["learning"]["failure"] is None
    assert "learning" not in json.loads(call("generate", "hello", "--model", tiny, *FLAGS, "--json").stdout)


def test_a_batch_learns_and_goes_on_from_its_file(call, tiny, tmp_path, at_once):
    """Guards batches: one learner for all texts, its last word in the report, its head in the file."""
    lines, out, head = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "head.safetensors"
    lines.write_text("".join(json.dumps({"prompt": f"hello {i}"}) + "\n" for i in range(20)))
    flags = [*FLAGS, "--learn-share", "1", "--learn-out", head, "--explain"]
    result = call("batch", lines, out, "--model", tiny, *flags)
    assert result.exit_code == 0, result.stderr
    assert "heads kept" in result.stderr
    assert head.exists()
    assert f"--head {head}" in result.stderr
    again = call("generate", "hello", "--model", tiny, "--draft", "early_exit", "--head", head, "--learn")
    assert again.exit_code == 0, again.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--learn"], "add --draft early_exit"),
        (["--draft", "eagle", "--learn"], "add --draft early_exit"),
        (["--draft", "early_exit", "--learn-share", "0.1"], "give learn, too"),
        (["--draft", "early_exit", "--learn", "--learn-share", "2"], "at most 1"),
        (["--draft", "early_exit", "--learn", "--learn-out", "/nowhere/x"], "its folder does not exist"),
    ],
)
def test_a_mistake_is_said_before_a_model_is_loaded(refused, flags, said):
    """Guards the flags: one line, exit code 2; the model does not exist."""
    assert said in refused("generate", "hi", "--model", "/no/model", *flags)


def test_the_line_of_a_learner():
    """Guards what people read: both α, what was dropped, and why it ended."""
    facts = {
        "rows": 1234, "dropped": 5, "steps": 64, "kept": 3, "thrown_away": 1, "alpha": 0.625, "first_alpha": 0.25,
        "vocabulary": 512, "cpu_seconds": 2.0, "share": 0.05, "memory_bytes": 1 << 20, "failure": None,
    }  # fmt: skip
    line = in_full(facts)
    for part in ("1,234 rows (5 dropped)", "3 of 4 heads", "0.25 -> 0.62", "512 draft tokens", "5 % of a core"):
        assert part in line
    assert "0.25 -> 0.62" in in_short(facts)
    assert in_short(facts | {"kept": 0}) == "nothing learned yet"
    assert in_short(facts | {"failure": "x"}) == "learning has ended"
    assert "ended: x" in in_full(facts | {"failure": "x", "alpha": None})


def test_who_learns_by_options_in_a_name():
    """Guards --explain beside a chain whose stage learns."""
    assert learns({"learn": True, "draft": None})
    assert learns({"learn": None, "draft": "suffix>early_exit:exit_layer=2:learn=on"})
    assert not learns({"learn": None, "draft": "early_exit:learn=off"})
