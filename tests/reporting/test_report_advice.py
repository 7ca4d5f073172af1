"""What the page of `selfspec report` recommends, and why."""

from __future__ import annotations

import copy

import pytest

from selfspec.reporting.advice import advice_of
from selfspec.reporting.results import Result


def ratio(median, low, high, verdict):
    return {"median": median, "low": low, "high": high, "pairs": 12, "verdict": verdict}


def advice(documents, **changed):
    """Of a benchmark whose look-up has this ratio, and of other results with changes."""
    results = []
    for kind, change in changed.items():
        document = copy.deepcopy(documents[kind])
        change(document)
        results.append(Result(kind, kind, document))
    return advice_of(results)


def benched(cell, decoding=None, column="ngram:adaptive=false"):
    def change(document):
        document["overall"] = {column: cell}
        document["decoding"]["all"] = {column: decoding or cell}

    return change


@pytest.mark.parametrize(
    ("cell", "begins", "tone"),
    [
        (ratio(1.30, 1.25, 1.35, "faster"), "Draft with ngram:adaptive=false: ", "gain"),
        (ratio(1.02, 1.015, 1.025, "faster"), "Do not speculate: ", "loss"),
        (ratio(0.70, 0.65, 0.75, "slower"), "Do not speculate: ", "loss"),
        (ratio(1.10, 0.90, 1.30, "undecided"), "Open: ngram:adaptive=false looks best", "open"),
        (ratio(0.95, 0.80, 1.10, "undecided"), "Do not speculate: ", "loss"),
    ],
)
def test_the_recommendation_follows_the_interval(documents, cell, begins, tone):
    """Guards the word that users act on: a draft only where the pairs decide for it, and by more than the noise."""
    found = advice(documents, bench=benched(cell))
    assert found.headline.startswith(begins)
    assert found.tone == tone
    assert f"{cell['median']:.2f}x [{cell['low']:.2f}, {cell['high']:.2f}]" in found.headline


def test_the_recommendation_says_why(documents):
    """Guards the reasons: what a round gave and took, from counts and S after the first token."""

    def change(document):
        benched(ratio(0.9, 0.85, 0.95, "slower"), ratio(0.8, 0.7, 0.85, "slower"))(document)
        document["totals"]["ngram:adaptive=false"] |= {"acceptance_rate": 0.3, "mean_accepted_length": 1.6}

    (why, *_) = advice(documents, bench=change).reasons
    assert "0.30 of its draft tokens held" in why
    assert "1.60 tokens" in why
    assert "2.00 plain rounds" in why


def test_a_draft_that_changed_a_word_is_never_recommended(documents):
    """Guards losslessness in advice: the fastest is out if it wrote another text; a bug goes before all."""

    def change(document):
        wrong = {"column": "ngram:adaptive=false", "is_fault": True, "task": "c", "id": "1"}
        benched(ratio(3.0, 2.9, 3.1, "faster"))(document)
        document["overall"]["early_exit:exit_layer=2:gamma=2"] = ratio(0.5, 0.4, 0.6, "slower")
        document["differences"] = [wrong]

    found = advice(documents, bench=change)
    assert found.headline.startswith("Do not speculate: the best draft that was measured, early_exit")
    assert any("wrote another text" in reason for reason in found.reasons)

    def fail(document):
        document |= {"verdict": "fail", "failed": ["greedy"]}

    worst = advice(documents, bench=benched(ratio(3.0, 2.9, 3.1, "faster")), certify=fail)
    assert worst.headline.startswith("Do not speculate: it changes what is said here (greedy failed)")
    assert worst.tone == "loss"


def test_profiles_and_plans_advise_too(documents):
    """Guards partial input: exits that do not pay, with the α they would need; a plan's sentence; neither."""

    def poor(document):
        for points in document["points"].values():
            for point in points:
                point["speedup"] = 0.5

    found = advice(documents, profile=poor)
    assert found.headline.startswith("Do not speculate with early exits")
    assert "α is" in found.reasons[0]

    def rich(document):
        document["points"][next(iter(document["points"]))][0]["speedup"] = 2.5

    assert "predicted at 2.50x" in advice(documents, profile=rich).headline
    assert advice(documents, plan=lambda _: None).headline == documents["plan"]["recommendation"]
    assert advice(documents, certify=lambda _: None).headline.startswith("Whether to speculate does not follow")
    tuned = advice(documents, tune=lambda _: None, plan=lambda _: None, certify=lambda _: None)
    assert tuned.headline == documents["tune"]["recommendation"]
    assert documents["plan"]["recommendation"] in tuned.reasons
    assert tuned.reasons[-1].startswith("selfspec certify found that drafts change nothing")
