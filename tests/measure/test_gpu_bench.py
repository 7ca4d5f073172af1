"""bench/gpu.py in rehearsal: no GPU runs these tests, so this is what keeps it from rotting."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    import gpu as module

    return module


@pytest.fixture
def bench(gpu):
    """As a rehearsal, with less of everything, and nothing compiled."""
    import torch

    name, shape = next(iter(gpu.TINY_SHAPES.items()))
    return gpu.Bench(torch.device("cpu"), {name: shape}, 6, 14, 1, None)


def test_sections_check_and_measure(gpu, bench, tmp_path, capsys):
    """Guards the sections that a GPU is judged by: equal texts, invariant rows, and every figure of a shape."""
    out = tmp_path / "gpu.json"
    gpu.run(
        bench,
        {name: gpu.sections(["1B"])[name] for name in ("machine", "equality", "1B", "compared", "aims")},
        out,
    )
    found = json.loads(out.read_text())
    assert not [name for name, result in found.items() if "failed" in result], found
    for dtype in ("float32", "bfloat16"):
        assert found["equality"][f"{dtype} texts equal"]
        assert found["equality"][f"{dtype} rows bit-identical"]
        assert found["equality"][f"{dtype} tokens per round"] > 3  # the exit is right: upper layers add nothing
    shape = found["1B"]
    assert shape["v"]["1"] == 1.0
    assert {entry["draft"] for entry in shape["speedups"]} == {
        "scripted 0.6",
        "scripted 0.8",
        "scripted 1.0",
        "exit 1",
    }
    assert all(entry["equal"] and entry["S"] > 0 for entry in shape["speedups"])
    assert {row["what"] for row in found["compared"]["1B"]} > {"plain_tokens_per_second", "loop_overhead", "v(8)"}
    judged = {aim["aim"]: aim["met"] for aim in found["aims"]["aims"]}
    assert judged["float32 rows bit-identical"]
    assert judged["1B: texts of all drafts equal"]
    assert judged["1B: loop overhead < 0.03"] is None  # the clock of a CPU says nothing of a GPU
    assert "share_of_bandwidth_limit" in capsys.readouterr().out


def test_a_section_that_fails_or_takes_too_long_is_reported_and_the_others_go_on(gpu, bench, tmp_path):
    """Guards the guards: memory, mistakes and deadlines."""

    def memory(_bench):
        raise MemoryError("out of memory\nand more")

    def long(_bench):
        while True:
            time.sleep(0.01)

    sections = {"memory": (9.0, memory), "long": (0.2, long), "fine": (9.0, lambda _bench: {"figure": 1.5})}
    gpu.run(bench, sections, tmp_path / "gpu.json")
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["memory"]["failed"] == "MemoryError: out of memory"
    assert "are over" in found["long"]["failed"]
    assert found["fine"]["figure"] == 1.5


def figures(**changes):
    """What a shape section has, all aims met."""
    draft = {"draft": "scripted 1.0", "gamma": 7, "alpha": 1.0, "S": 7.9, "formula": 8.0, "equal": True}
    found = {"share_of_bandwidth_limit": 0.81, "loop_overhead": 0.02, "v": {8: 1.02}, "c": 0.3, "f": 0.2}
    return found | {"plain_tokens_per_second": 250.0, "speedups": [draft | changes.pop("draft", {})]} | changes


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, []),
        ({"share_of_bandwidth_limit": 0.79}, ["8B: plain of the bandwidth limit >= 0.8"]),
        ({"loop_overhead": 0.03}, ["8B: loop overhead < 0.03"]),
        ({"draft": {"S": 7.5}}, ["8B: S of scripted 1.0, γ 7, off the formula by <= 0.05"]),
        ({"draft": {"equal": False}}, ["8B: texts of all drafts equal"]),
    ],
)
def test_aims_are_judged_on_a_gpu(gpu, changes, missed):
    """Guards the verdicts: what is missed is called so, and so is a wait or a row that changes."""
    results = {"equality": {"float32 waits in a round": "", "float32 graphs": 3}, "8B": figures(**changes)}
    judged = gpu.aims(results, gpu.SHAPES, is_gpu=True)
    assert [aim["aim"] for aim in judged if not aim["met"]] == missed
    assert not any(aim["met"] for aim in gpu.aims({"8B": {"failed": "no memory"}}, gpu.SHAPES, is_gpu=True))
    results["equality"] = {"float32 rows bit-identical": False, "float32 waits in a round": "item() waits"}
    unmet = [aim["aim"] for aim in gpu.aims(results, gpu.SHAPES, is_gpu=True) if not aim["met"]]
    assert unmet[:2] == ["float32 rows bit-identical", "no float32 waits in a round"]


def test_measured_stands_beside_predicted(gpu):
    """Guards the comparison: a known GPU by its data sheet, another by the bandwidth that was copied."""
    for device, bandwidth in (("NVIDIA H200", 1.0), ("NVIDIA L4", 4.8e12)):
        results = {"machine": {"device": device, "bandwidth": bandwidth}, "8B": figures()}
        rows = {row["what"]: row for row in gpu.compared(results, gpu.SHAPES)["8B"]}
        assert rows["plain_tokens_per_second"]["predicted"] == pytest.approx(252, abs=1)
        assert rows["plain_tokens_per_second"]["ratio"] == pytest.approx(250 / 252, abs=0.01)
        assert rows["S of scripted 1.0, γ 7"]["predicted"] == pytest.approx(8 / 1.03, abs=0.02)


def test_predictions_on_file_are_made_by_the_cost_model(gpu):
    """Guards the table of docs/gpu.md, which is this one, and the file beside it."""
    docs = BENCH.parent / "docs"
    assert gpu.table() in (docs / "gpu.md").read_text(encoding="utf-8")
    assert json.loads((docs / "gpu-predictions.json").read_text(encoding="utf-8")) == gpu.predictions()


def test_the_rehearsal_on_file_is_of_all_sections(gpu):
    """Guards the file that the page points to: nothing failed, and nothing of the machine that it ran on."""
    text = (BENCH.parent / "docs" / "gpu-rehearsal.json").read_text(encoding="utf-8")
    found = json.loads(text)
    assert list(found) == list(gpu.sections(list(gpu.TINY_SHAPES)))
    assert "failed" not in text
    assert "/" not in text.replace("tokens/s", "")
    assert all(aim["met"] is not False for aim in found["aims"]["aims"])


@pytest.mark.slow
@pytest.mark.embedded
def test_the_whole_rehearsal(tmp_path):
    """Guards the command."""
    out = tmp_path / "gpu.json"
    command = [sys.executable, str(BENCH / "gpu.py"), "--rehearse", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["embedded"]["texts equal"]
    assert found["transformers"]["selfspec tokens/s"] > 0
