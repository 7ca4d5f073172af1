"""Which runtime runs what: by default, by option, and what is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

import selfspec
from selfspec import loading
from selfspec.errors import OptionError, RuntimeMissingError


@pytest.mark.parametrize(
    ("options", "runtime", "precision"),
    [
        ({}, "cpu", "float32"),
        ({"runtime": "cpu", "bits": 8}, "cpu", "int8"),
        ({"bits": 4}, "cpu", "int4"),
        ({"threads": 1}, "cpu", "float32"),
        ({"runtime": "torch"}, "torch", "float32"),
        ({"dtype": "float64"}, "torch", "float64"),
        ({"device": "cpu"}, "torch", "float32"),
    ],
    ids=str,
)
def test_options_choose_the_runtime(tiny, options, runtime, precision):
    """Guards the default (the core on a CPU, the stored precision) and every option that decides."""
    engine = selfspec.load(tiny, **options)
    assert (engine.runtime.name, engine.runtime.precision) == (runtime, precision)
    done = engine.generate([1, 2, 3], max_new_tokens=3)
    assert (done.runtime, done.precision) == (runtime, precision)
    assert done.runs_on.startswith(runtime)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"runtime": "gpu"}, "runtime is 'gpu'; it must be one of auto, torch, cpu"),
        ({"bits": 8, "dtype": "float32"}, "dtype is for the torch runtime and cannot go with bits"),
        ({"runtime": "torch", "bits": 8}, "bits is for the cpu runtime and cannot go with runtime torch"),
        ({"runtime": "cpu", "device": "cuda"}, "device is for the torch runtime and cannot go with runtime cpu"),
        ({"bits": 3}, "bits is 3; it must be one of 4, 8, 16, 32"),
        ({"threads": 0}, "threads is 0"),
    ],
    ids=str,
)
def test_what_cannot_go_together_is_one_line(tiny, options, words):
    """Guards contradictions: none of the two is silently ignored."""
    with pytest.raises(OptionError) as caught:
        selfspec.load(tiny, **options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_the_core_torch_runs_and_says_so(tiny, monkeypatch):
    """Guards an installation without a compiler: auto takes torch; asking for the core names the way out."""
    monkeypatch.setattr(loading, "has_native", lambda: False)
    assert selfspec.load(tiny).runtime.name == "torch"
    monkeypatch.setitem(sys.modules, "selfspec._native", None)
    monkeypatch.delattr("selfspec._native", raising=False)
    with pytest.raises(RuntimeMissingError, match="compiler"):
        selfspec.load(tiny, runtime="cpu")


def test_torch_is_not_imported_for_the_core(tiny):
    """Guards the light start: the default runtime on a CPU needs no torch, no transformers, no array_api_compat."""
    code = (
        "import sys, selfspec\n"
        f"engine = selfspec.load({tiny!r}, draft='early_exit', exit_layer=2)\n"
        "engine.generate('hello', max_new_tokens=8, temperature=1.0)\n"
        "bad = {'torch', 'transformers', 'array_api_compat'} & set(sys.modules)\n"
        "sys.exit(f'loaded {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
