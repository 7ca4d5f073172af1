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
        {"machine": (9.0, gpu.machine), "equality": (60.0, gpu.equality), "1B": (60.0, gpu.shape_section("1B"))},
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


def test_predictions_are_made_by_the_cost_model(gpu):
    """Guards the table of docs/gpu.md, which is this one."""
    page = (BENCH.parent / "docs" / "gpu.md").read_text(encoding="utf-8")
    assert gpu.predictions() in page


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
