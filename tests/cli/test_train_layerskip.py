"""``selfspec train layerskip``: from texts to a model that drafts with its early layers, and what is refused."""

from __future__ import annotations

import json

import pytest


@pytest.fixture(scope="module")
def pairs(tiny, tmp_path_factory):
    """Pairs of the user's, as `train data --text` takes them."""
    from click.testing import CliRunner

    from selfspec.cli.main import cli

    folder = tmp_path_factory.mktemp("pairs")
    lines = (json.dumps({"prompt": f"say {n}", "answer": f"{n} it is"}) for n in range(30))
    (folder / "pairs.jsonl").write_text("\n".join(lines))
    flags = ["--text", folder / "pairs.jsonl", "--model", tiny, "--out", folder / "d", "--threads", "1"]
    done = CliRunner().invoke(cli, ["train", "data", *map(str, flags)])
    assert done.exit_code == 0, done.stderr
    return folder / "d"


@pytest.fixture
def flags(tiny, pairs, tmp_path):
    common = ["--data", pairs, "--model", tiny, "--out", tmp_path / "run", "--device", "cpu"]
    return [*common, "--held-out", "0.2", "--batch-tokens", "60"]


def test_a_model_is_trained_and_drafts(call, flags, tmp_path):
    """Guards the verb and its seam to decoding: lines of the run, files, plots, and a text with the noted exit."""
    result = call("train", "layerskip", *flags, "--layers", "2,3", "--draft-vocabulary", "80", "--json")
    assert result.exit_code == 0, result.stderr
    for said in ("answer tokens in", "exits 2, 3", "held-out α", "exit-3", "ETA", "checkpoint"):
        assert said in result.stderr
    document = json.loads(result.stdout)
    assert document["held_out"].keys() == {"exit-2", "exit-3"}
    for name in ("loss.svg", "alpha.svg"):
        assert (tmp_path / "run" / name).read_text().startswith("<?xml")
    made = ["--model", document["model"], "--max-new-tokens", "9", "--threads", "1"]
    drafted = call("generate", "hi", *made, "--draft", "early_exit")
    assert drafted.exit_code == 0, drafted.stderr
    assert "80 tokens" in drafted.stderr
    plain = call("generate", "hi", *made, "--draft", "plain")
    assert plain.stdout == drafted.stdout
    again = call("train", "layerskip", *flags, "--layers", "2,3", "--draft-vocabulary", "80")  # complete
    assert "step" not in again.stderr
    assert str(tmp_path / "run" / "model") in again.stdout


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--layers", "4"], "this model has 4 layers, so an exit must be 1 to 3"),
        (["--curriculum", "slow"], "curriculum is 'slow'; it must be one of rotational, gradual, none"),
        (["--plain", "--draft-vocabulary", "9"], "plain notes no exits"),
        (["--draft-vocabulary", "2"], "too small"),
    ],
)
def test_what_is_refused(refused, flags, tmp_path, more, said):
    assert said in refused("train", "layerskip", *flags, *more)
    assert not (tmp_path / "run").exists()


def test_flags_of_runtimes_are_none_of_its(call, flags):
    """Guards flags that would be ignored: transformers trains the model."""
    result = call("train", "layerskip", *flags, "--bits", "8")
    assert result.exit_code == 2
    assert "No such option" in result.stderr
    assert "--threads" not in call("train", "layerskip", "--help").stdout
