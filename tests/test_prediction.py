"""Predictions: what is asked, who uses it, what is reported; it never changes a word."""

from __future__ import annotations

import json

import numpy as np
import pytest

import selfspec
from selfspec.errors import OptionError

LONG = {"max_new_tokens": 40, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine(tiny):
    return selfspec.load(tiny, draft="plain", **LONG)


@pytest.fixture(scope="module")
def plain(engine):
    return engine.generate("hello")


@pytest.mark.parametrize("draft", ["suffix", "ngram"])
def test_a_right_prediction_saves_rounds_and_a_wrong_one_costs_no_word(engine, plain, draft):
    """Guards the whole way from the option to accepted tokens, and the two counts."""
    options = {"draft": draft, "adaptive": False, "gamma": 7}
    alone = engine.generate("hello", **options)
    right = engine.generate("hello", prediction=plain.token_ids, **options)
    wrong = engine.generate("hello", prediction=[3] * 30, **options)
    part = engine.generate("hello", prediction=[*plain.token_ids[:12], 5, 5, *plain.token_ids[13:]], **options)
    for done in (alone, right, wrong, part):
        assert done.token_ids == plain.token_ids
    assert right.stats.rounds <= 6 < part.stats.rounds < alone.stats.rounds
    assert right.stats.accepted_prediction_tokens == right.stats.accepted == 39 - right.stats.rounds
    assert right.stats.rejected_prediction_tokens <= 7
    assert part.stats.accepted_prediction_tokens > 20
    assert part.stats.rejected_prediction_tokens > 0
    assert wrong.stats.accepted_prediction_tokens == 0
    assert alone.stats.accepted_prediction_tokens == alone.stats.rejected_prediction_tokens == 0
    assert right.to_dict()["accepted_prediction_tokens"] == right.stats.accepted_prediction_tokens


def test_leaves_of_a_comb_count_as_they_come(engine, plain):
    """Guards the counts in a tree, where the accepted tokens are not the first ones."""
    done = engine.generate("hello", prediction=plain.token_ids, draft="suffix", adaptive=False, siblings=2, gamma=4)
    stats = done.stats
    assert done.token_ids == plain.token_ids
    assert 20 < stats.accepted_prediction_tokens <= stats.accepted
    assert stats.accepted_prediction_tokens + stats.rejected_prediction_tokens <= stats.drafted


def test_each_text_of_a_batch_has_its_own(engine, plain):
    """Guards batches whose texts share a drafter."""
    asked = [{"prompt": "hello", "prediction": plain.token_ids}, {"prompt": "hello"}]
    found = dict(engine.batch(asked, draft="suffix", adaptive=False))
    assert [found[i].token_ids for i in range(2)] == [plain.token_ids] * 2
    assert [found[i].stats.accepted_prediction_tokens > 0 for i in range(2)] == [True, False]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prediction": "yes", "draft": "early_exit"}, "the drafter 'early_exit' does not use a prediction"),
        ({"prediction": "yes", "draft": "plain"}, "the drafter 'plain' does not use a prediction"),
        ({"prediction": ""}, "prediction is empty"),
        ({"prediction": []}, "prediction is empty"),
        ({"prediction": 5}, "prediction is a int; it must be text or token ids"),
        ({"prediction": b"yes"}, "prediction is a bytes"),
        ({"prediction": [1, -2]}, "prediction has -2"),
        ({"prediction": [1, 4000]}, "prediction has token 4000; this model's tokens are 0 to"),
        ({"prediction": {"type": "content"}}, "prediction is a dict"),
        ({"prediction": np.zeros(0, dtype=np.int64)}, "prediction is empty"),
    ],
)
def test_what_is_refused(engine, options, words):
    """Guards against a prediction that is silently ignored, and one that cannot be."""
    with pytest.raises(OptionError, match=words) as caught:
        engine.generate("hi", **{"draft": "suffix"} | options)
    assert "\n" not in str(caught.value)


def test_a_text_needs_a_tokenizer(engine):
    """Guards engines of model objects: token ids are the way there."""
    bare = selfspec.Engine(engine.runtime, None, "bare", draft="suffix")
    with pytest.raises(OptionError, match="prediction is a text, but there is no tokenizer"):
        bare.generate([1, 2], prediction="yes")
    assert bare.generate([1, 2], prediction=np.array([5, 6]), max_new_tokens=3).token_ids


def test_the_command_line(tiny, plain, tmp_path):
    """Guards --prediction TEXT and @FILE, and OpenAI's form in a batch."""
    from click.testing import CliRunner

    from selfspec.cli.main import cli

    (tmp_path / "expected.txt").write_text(f"{plain.text}\n", encoding="utf-8")
    flags = ["--model", str(tiny), "--max-new-tokens", "40", "--ignore-eos", "--draft", "suffix", "--no-adaptive"]

    def run(*args):
        return CliRunner().invoke(cli, [*map(str, args), *flags])

    for prediction in (plain.text, f"@{tmp_path / 'expected.txt'}"):
        result = run("generate", "hello", "--json", "--prediction", prediction)
        assert result.exit_code == 0, result.stderr
        found = json.loads(result.stdout)
        assert found["token_ids"] == list(plain.token_ids)
        assert found["accepted_prediction_tokens"] > 0
    assert "'nowhere' cannot be read" in run("generate", "hello", "--prediction", "@nowhere").stderr
    contents = [plain.text, [{"type": "text", "text": plain.text}], [{"type": "image"}], None]
    messages = [{"role": "user", "content": "hello"}]
    lines = [
        {"body": {"messages": messages, "prediction": {"type": "content", "content": content}}}
        for content in contents
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert run("batch", tmp_path / "in.jsonl", tmp_path / "out.jsonl").exit_code == 1
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [answer.get("accepted_prediction_tokens", 0) > 0 for answer in answers] == [True, True, False, False]
    for answer in answers[2:]:
        assert "prediction must be a text, or" in answer["error"]["message"]
