"""``selfspec train eagle`` and ``exit-head``: from flags to a head that drafts, and what is refused."""

from __future__ import annotations

import json

import pytest

from selfspec.cli.train import VERBS


@pytest.fixture(scope="module")
def answers(tiny, tmp_path_factory):
    """A few answers of the tiny model."""
    from click.testing import CliRunner

    from selfspec.cli.main import cli

    folder = tmp_path_factory.mktemp("answers")
    prompts = folder / "prompts.txt"
    prompts.write_text("".join(f"say {n}\n" for n in range(12)))
    flags = [
        "--prompts",
        prompts,
        "--model",
        tiny,
        "--out",
        folder / "d",
        "--max-new-tokens",
        "8",
        "--threads",
        "1",
    ]
    done = CliRunner().invoke(cli, [str(part) for part in ("train", "data", *flags, "--temperatures", "0,1")])
    assert done.exit_code == 0, done.stderr
    return folder / "d"


@pytest.fixture
def flags(tiny, answers, tmp_path):
    common = ["--data", answers, "--model", tiny, "--out", tmp_path / "run", "--threads", "1"]
    return [*common, "--held-out", "0.3", "--vocabulary", "200", "--batch-tokens", "60", "--epochs", "1"]


def test_a_head_is_trained_and_drafts(call, flags, tiny, tmp_path):
    """Guards the verb and its seam to decoding: lines of the run, files, plots, and a text with the head."""
    result = call("train", "eagle", *flags, "--taps", "1,2,3", "--json")
    assert result.exit_code == 0, result.stderr
    for said in ("answer tokens in", "draft vocabulary: 200 tokens", "states of", "held-out α", "KL", "ETA"):
        assert said in result.stderr
    document = json.loads(result.stdout)
    (head,) = document["heads"].values()
    assert document["held_out"]["eagle"].keys() == {"greedy", "sampled"}
    for name in ("loss.svg", "alpha.svg"):
        assert (tmp_path / "run" / name).read_text().startswith("<?xml")
    result = call("generate", "hi", "--model", tiny, "--draft", "eagle", "--head", head, "--max-new-tokens", "9")
    assert result.exit_code == 0, result.stderr
    assert "eagle" in result.stderr
    again = call("train", "eagle", *flags, "--taps", "1,2,3")  # complete: nothing is done
    assert "step" not in again.stderr
    assert str(tmp_path / "run" / "eagle.safetensors") in again.stdout


def test_medusa_heads_are_trained_and_draft(call, flags, tiny, tmp_path):
    """Guards the verb: the states after the last layer are kept once; chains and trees give the plain text."""
    result = call("train", "medusa", *flags, "--heads", "2", "--json")
    assert result.exit_code == 0, result.stderr
    (head,) = json.loads(result.stdout)["heads"].values()
    assert len(json.loads(result.stdout)["held_out"]["medusa"]["greedy"]["alphas"]) == 2
    drafts = ["--draft", "medusa", "--head", head, "--max-new-tokens", "9", "--threads", "1"]
    texts = [call("generate", "hi", "--model", tiny, *drafts, *more) for more in ([], ["--nodes", "5"])]
    plain = call("generate", "hi", "--model", tiny, "--draft", "plain", "--max-new-tokens", "9", "--threads", "1")
    assert [text.stdout for text in texts] == [plain.stdout] * 2
    assert "no head was given" in call("generate", "hi", "--model", tiny, "--draft", "medusa").stderr
    assert (
        "leave one out"
        in call("generate", "hi", "--model", tiny, *drafts, "--nodes", "5", "--siblings", "1").stderr
    )


@pytest.mark.parametrize(
    ("verb", "more", "said"),
    [
        ("exit-head", ["--layers", "4"], "reads after layer 4; this model has 4 layers, so it must be 1 to 3"),
        ("exit-head", [], "no exit layer; give --layers"),
        (
            "exit-head",
            ["--layers", "2", "--form", "mlp"],
            "form is 'mlp'; it must be one of linear, attention, layer",
        ),
        ("eagle", ["--taps", "1,2"], "taps is '1,2'; it must be three layers"),
        ("eagle", ["--disk-budget", "much"], "disk_budget is 'much'; it must be bytes such as 500M"),
        ("eagle", ["--rolling", "0"], "rolling is 0.0; it must be above 0"),
        ("eagle", ["--vocabulary", "2"], "too small"),
        ("eagle", ["--held-out", "0.999999"], "no answer to train on"),
        ("eagle", ["--minutes", "1"], "epochs and minutes are both given"),
        ("eagle", ["--out", __file__], "is a file; name a new folder"),
        ("eagle", ["--init", "nowhere"], "there is no trained head 'nowhere'"),
    ],
)
def test_what_is_refused(call, flags, verb, more, said):
    """Guards one line for each mistake, before anything takes time."""
    result = call("train", verb, *flags, *more)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert result.stderr.strip().splitlines()[-1].startswith("selfspec: error: ")


def test_both_verbs_are_listed(call):
    """Guards the group's table."""
    assert {"eagle", "exit-head"} <= set(VERBS)
    assert "EAGLE-3" in call("train", "--help").stdout
