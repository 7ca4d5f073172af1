"""Drafts written as GGUF files compute what their plans compute in the models they were cut from."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf_writing import write_gguf
from test_gguf_families import TOKENS, rounded

from selfspec import drafters
from selfspec.errors import UnsupportedModelError
from selfspec.export.drafts import export_draft
from selfspec.model import find_checkpoint
from selfspec.runtime.torch import TorchRuntime
from selfspec.types import LayerPlan, Rows


def logits(model, plan=None):
    found = find_checkpoint(model)
    runtime = TorchRuntime.load(found.config, found.weight_files, "float64", "cpu")
    rows = Rows.of([0] * len(TOKENS), range(len(TOKENS)))
    plan = plan or LayerPlan.full(found.config.num_layers)
    hidden = runtime.embed(TOKENS, rows.positions)
    return runtime.logits(runtime.run(hidden, plan, rows, runtime.new_cache(1, len(TOKENS)))[0])


@pytest.mark.parametrize("case", ["llama", "gpt2", "qwen3_moe", "gemma3_text"])
def test_a_gguf_draft_computes_what_its_plan_computes(tmp_path, case):
    """Blocks stay as they are stored, so the numbers are the same to the last bit."""
    source = tmp_path / "model.gguf"
    write_gguf(source, rounded(case), gguf.GGMLQuantizationType.F16)
    layers = find_checkpoint(source).config.num_layers
    draft = f"layer_skip:skip=({layers - 1} attention 0 mlp 1)"
    made = export_draft(source, draft, "gguf", tmp_path / "draft.gguf", tokens=0)
    assert made.layers == layers - 1
    plan = drafters.create(draft, find_checkpoint(source).config, {}).plan
    assert np.array_equal(logits(tmp_path / "draft.gguf"), logits(source, plan))
    kinds = {tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "draft.gguf").tensors}
    assert "F16" in kinds
    assert sorted(path.name for path in tmp_path.iterdir()) == ["draft.gguf", "model.gguf"]


def test_layers_that_depend_on_their_place_are_not_moved(tmp_path):
    """Gemma 3 has windows in all but every sixth layer: without the first layer they would fall elsewhere."""
    write_gguf(tmp_path / "model.gguf", rounded("gemma3_text"))
    with pytest.raises(UnsupportedModelError, match="go by the place of a layer"):
        export_draft(tmp_path / "model.gguf", "layer_skip:skip=(0)", "gguf", tmp_path / "draft.gguf", tokens=0)
    assert not (tmp_path / "draft.gguf").exists()
