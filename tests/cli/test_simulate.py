"""``selfspec simulate``."""

from __future__ import annotations

import json

from selfspec.measure.overlap import Setting, predict


def test_page_and_document_say_what_the_model_says(call):
    """Guards the wiring of flags to the model."""
    found = predict(Setting(alpha=0.8, gamma=3, c=0.2, outcomes=4, v=[1, 1.1, 1.2, 1.3], slowdown=1.2, spread=0.5))
    line = (
        "simulate overlap --alpha 0.8 --gamma 3 --c 0.2 --outcomes 4 --v 1,1.1,1.2,1.3 --slowdown 1.2 --spread 0.5"
    )
    made = json.loads(call(*line.split(), "--json").stdout)
    assert (made["hit_rate"], made["speedup"], made["gain"]) == (found.hit_rate, found.speedup, found.gain)
    assert [row["outcomes"] for row in made["table"]] == [1, 2, 4, 8, 16]
    page = [" ".join(row.split()) for row in call(*line.split()).stdout.splitlines()]
    assert f"speedup {found.speedup:.2f}x" in page
    assert any(row.startswith("drafting ahead does not pay") for row in page) == (found.gain < 1.0)


def test_bad_numbers_are_one_line(call):
    """Guards the error, and the group without a command."""
    result = call("simulate", "overlap", "--alpha", "2")
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert "overlap" in call("simulate").stdout
