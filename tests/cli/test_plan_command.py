"""``selfspec plan`` on the command line."""

import json
import subprocess
import sys

import pytest
from tiny_folder import CONFIG

ASKED = ("--memory", "40MB", "--context", "1k", "--concurrency", "2", "--runtime", "cpu")


@pytest.fixture
def folder(tmp_path):
    """A configuration without weights."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def document(call, *args):
    result = call("plan", *args, "--json")
    assert result.exit_code == 0, result.stderr
    assert len(result.stdout.splitlines()) == 1
    return json.loads(result.stdout)


def test_the_flags_are_the_options(call, folder):
    """Guards the wiring: every flag reaches the plan, and a config.json is as good as its folder."""
    found = document(
        call, folder / "config.json", *ASKED, "--reserve", "1MB", "--gamma", "3", "--bits", "16", "--kv", "int8",
        "--draft-model", folder, "--draft-bits", "8", "--alpha", "0.7", "--alpha", "draft_model=0.9", "--c", "0.5",
        "--v", "1,1.1,1.2,1.3",
    )  # fmt: skip
    assert (found["memory"], found["reserve"], found["context"], found["concurrency"]) == (40e6, 1e6, 1024, 2)
    assert (found["precision"], found["kv"], found["gamma"]) == ("bfloat16", "int8", 3)
    rows = {row["way"]: row for row in found["ways"]}
    second = rows["draft_model"]["expected"]
    assert (second["alpha"], second["c"], second["source"]) == (0.9, 0.5, "stated")
    assert second["speedup"] == pytest.approx((1 - 0.9 ** (second["gamma"] + 1)) / 0.1 / (second["gamma"] / 2 + (
        1.0, 1.1, 1.2, 1.3)[second["gamma"]]))  # fmt: skip
    assert rows["draft_model"]["runs"].endswith("int8")
    assert rows["early_exit"]["expected"]["alpha"] == 0.7
    assert found["recommendation"].startswith("Draft with draft_model")
    sized = document(call, folder, *ASKED, "--draft-size", "10k", "--ridge", "4", "--alpha", "0.7")
    assert "its KV is a guess" in " ".join(sized["notes"])
    torch = document(call, folder, *ASKED[:6], "--runtime", "torch", "--dtype", "bfloat16")
    assert (torch["runtime"], torch["precision"]) == ("torch", "bfloat16")


def test_the_page(call, folder):
    """Guards the text that people read: parts, tables, notes, and the sentence at its end."""
    page = call("plan", folder, *ASKED, "--draft-size", "10k").stdout
    for words in (
        "without a draft",
        "largest context",
        "to keep",
        "exit_head",
        "a second checkpoint",
        "2 at once",
    ):
        assert words in page
    assert page.splitlines()[-1].startswith("Whether a draft pays does not follow from sizes")
    short = call("plan", folder, "--memory", "200kB", "--context", "1k", "--runtime", "cpu").stdout
    assert "too much" in short
    assert short.splitlines()[-1].startswith("It does not fit")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "Missing option '--memory'"),
        ("--memory 24", "memory is '24'; it must be a number of bytes with its unit (B, kB, MB, GB, TB, KiB"),
        ("--memory 24gb", "memory is '24gb'"),
        ("--memory 24GB --context 1kB", "context is '1kB'; it must be a number of tokens"),
        ("--memory 24GB --context 8k", "context is '8k'; this model reads at most 4096 tokens"),
        ("--memory 24GB --concurrency two", "'two' is not a valid integer"),
        ("--memory 24GB --alpha x", "--alpha is 'x'; it must be a number, or WAY=NUMBER"),
        ("--memory 24GB --alpha nan", "alpha is nan"),
        ("--memory 24GB --c medusa=0.1", "c is given for 'medusa'; it must be one of"),
        ("--memory 24GB --v 1,,2", "v is '1,,2'"),
        ("--memory 24GB --alpha 0.5 --v 1.2,2", "v(1) is 1.2"),
        ("--memory 24GB --profile missing.json", "profile 'missing.json' cannot be read"),
        ("--memory 24GB --draft-model missing", "there is no folder or file"),
        ("--memory 24GB --draft-size 1GB", "draft_size is '1GB'; it must be a number of weights"),
    ],
)
def test_wrong_values_are_one_line(refused, folder, line, says):
    """Guards the exit code and the single line."""
    assert says in refused("plan", folder, *line.split(), "--json")


def test_no_torch_is_imported(folder):
    """Guards the base package, which has no torch, even where torch is planned for."""
    program = (
        "import sys; from selfspec.cli.main import cli\n"
        "try: cli.main(sys.argv[1:])\n"
        "finally: assert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-c", program, "plan", str(folder), "--memory", "1GB", "--runtime", "torch"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.embedded
def test_the_embedded_model(call):
    """Guards the default model, of a GGUF's header alone."""
    found = document(call, "--memory", "1GB", "--context", "2k", "--runtime", "cpu")
    assert (found["precision"], found["layers"]) == ("int4, head int8", 30)
    assert found["ways"][0]["parts"]["cache"] == 2048 * 30 * 2 * 3 * 64 * 2
