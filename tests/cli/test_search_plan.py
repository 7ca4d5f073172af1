"""selfspec search-plan, as a user calls it."""

from __future__ import annotations

import json

import pytest

SMALL = ("--trials", 8, "--max-new-tokens", 6, "--limit", 1, "--pairs", 1, "--finalists", 1, "--ignore-eos")


@pytest.fixture
def search(call, tiny, data):
    def run(*args):
        result = call("search-plan", "--model", tiny, "--data", data, *SMALL, *args)
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


def test_it_prints_flags_that_generate_takes(search, call, tiny):
    """Guards the way from a search to a draft."""
    page = search()
    (line,) = [line for line in page.splitlines() if line.startswith("--draft layer_skip")]
    assert "measured in 1 pairs" in page
    skip = line.split('--skip "')[1].rstrip('"')
    flags = ("--draft", "layer_skip", "--skip", skip, "--max-new-tokens", 4)
    result = call("generate", "hi", "--model", tiny, *flags)
    assert result.exit_code == 0, result.output


def test_a_file_is_kept_and_gone_on_with(search, tmp_path, refused, tiny, data):
    """Guards --out: the result, and no other question in the same file."""
    path = tmp_path / "plan.json"
    search("--out", path)
    first = json.loads(path.read_text())
    search("--out", path, "--trials", 9)
    second = json.loads(path.read_text())
    assert first["units"]["plans"].items() <= second["units"]["plans"].items()
    assert second["result"]["best"][0]["skip"]
    other = ("search-plan", "--model", tiny, "--data", data, *SMALL, "--out", path, "--gamma", 3)
    assert "was measured with another" in refused(*other)


def test_json_is_one_document(search):
    """Guards the output of programs."""
    document = json.loads(search("--json"))
    assert set(document["sources"]) == {"ranked", "knapsack", "neighbours", "bayesian"}
    assert document["best"][0]["measured"]["pairs"] == 1
