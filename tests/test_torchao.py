"""Matrices in int8 by torchao, here on a CPU; int4 needs a GPU.

pip install torchao && pytest -m engines tests/test_torchao.py
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from doubles import run, tiny_runtime, tiny_static

from selfspec.runtime.torch import TorchRuntime
from selfspec.runtime.torch_quantised import quantise

PROMPTS = [[5, 17, 3, 3, 42, 5, 17]]


@pytest.mark.engines
def test_torchao_comes_without_words():
    """Guards the terminal: what torchao logs of kernels for other machines is not for the user."""
    script = (
        "import torch; from selfspec.runtime.torch_quantised import _quantiser as q; q('int8', torch.device('cpu'))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.engines
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tied_head", [True, False])
def test_int8_matrices_multiply_and_compile(tied_head):
    """Guards weight-only int8: near the model, smaller, and with drafts the same text, compiled too."""
    wide = tiny_runtime(dtype="float32", tied_head=tied_head)
    weights = dict(wide.weights)
    quantise(wide.config, weights, "int8")
    narrow = TorchRuntime(wide.config, weights)
    narrow.precision = "int8"
    assert type(weights["model.layers.0.mlp.up_proj.weight"]) is not torch.Tensor
    assert type(weights["model.embed_tokens.weight"]) is torch.Tensor
    assert narrow.pass_bytes < 0.6 * wide.pass_bytes
    again = narrow.weight("up", 0)
    error = abs(again - wide.weight("up", 0)).max() / abs(again).max()
    assert 0.0 < error < 0.01
    expected = run(narrow, PROMPTS)[0].tokens
    assert run(narrow, PROMPTS, "early_exit", {"exit_layer": 2})[0].tokens == expected
    static = tiny_static("aot_eager", dtype="float32", tied_head=tied_head)
    static.__init__(wide.config, weights)
    static.compiler.backend = "aot_eager"
    assert run(static, PROMPTS, "early_exit", {"exit_layer": 2})[0].tokens == expected
    assert static.compiler.count >= 4
