"""GGUF files of every family that llama.cpp has, against the transformers model that they were written from."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from family_models import CASES as ALL
from family_models import LLAMA3, build, family_name, wide_softmax
from gguf_writing import ARCHITECTURES, write_gguf

from selfspec.model import find_checkpoint
from selfspec.model.families import FAMILIES
from selfspec.runtime.torch import TorchRuntime
from selfspec.types import LayerPlan, Rows

TOKENS = np.random.default_rng(0).integers(3, 101, 24).tolist()
# files do not keep the windows of these families, nor layers of two kinds
PLAIN = {"sliding_window": None}
MOE = {"moe_intermediate_size": 24, "num_experts": 6, "num_experts_per_tok": 2}
KEPT = (
    "llama", "granite", "olmo2", "olmo3", "exaone4", "exaone4: no windows", "phi3", "phi3: longrope", "stablelm",
    "stablelm: parallel", "cohere2", "glm4", "gpt2", "gpt_neox", "gpt_neox: sequential", "falcon", "falcon: new",
    "falcon: new, one norm", "olmoe", "granitemoe", "qwen2: yarn",
)  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {case: ALL[case] for case in KEPT} | {
    "llama: 3.1": (
        "Llama",
        {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 8192}, "head_dim": 16},
    ),
    "llama: biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "mixtral": ("Mixtral", {**PLAIN, "num_local_experts": 5}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "smollm3": ("SmolLM3", {}),
    "starcoder2": ("Starcoder2", PLAIN),
    "qwen2_moe": ("Qwen2Moe", {**MOE, "shared_expert_intermediate_size": 40}),
    "qwen3_moe": ("Qwen3Moe", {**MOE, "head_dim": 16, "norm_topk_prob": True}),
    "gemma2": ("Gemma2", {**ALL["gemma2"][1], "query_pre_attn_scalar": 16}),
    "gemma3_text": (
        "Gemma3Text",
        {
            **ALL["gemma3_text"][1],
            "query_pre_attn_scalar": 16,
            "num_hidden_layers": 7,
            "layer_types": ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
        },
    ),
}
EVERY = pytest.mark.parametrize("case", CASES)


def rounded(case):
    """The model of a case with its weights rounded to float32, in float64."""
    return copy.deepcopy(build(case, *CASES[case])).float().double()


def theirs(model):
    with torch.no_grad(), wide_softmax():
        return model(torch.tensor([TOKENS])).logits[0].numpy()


def ours(checkpoint):
    runtime = TorchRuntime.load(checkpoint.config, checkpoint.weight_files, "float64", "cpu")
    rows = Rows.of([0] * len(TOKENS), range(len(TOKENS)))
    plan = LayerPlan.full(checkpoint.config.num_layers)
    cache = runtime.new_cache(1, len(TOKENS))
    return runtime.logits(runtime.run(runtime.embed(TOKENS, rows.positions), plan, rows, cache)[0])


def test_every_family_of_llama_cpp_has_a_case():
    """Guards the table: what is claimed is tested, and what is left out is not in llama.cpp."""
    assert {family_name(case) for case in CASES} == set(ARCHITECTURES)
    left = {family.name for family in FAMILIES} - set(ARCHITECTURES)
    assert left == {"mistral", "opt", "gpt_oss"}


@EVERY
def test_logits_equal_those_of_the_original(case, tmp_path):
    """Guards every fact and every change of order: a wrong one gives fluent nonsense, not an error."""
    model = rounded(case)
    write_gguf(tmp_path / "model.gguf", model)
    checkpoint = find_checkpoint(tmp_path / "model.gguf")
    assert checkpoint.config.family == family_name(case)
    assert np.abs(ours(checkpoint) - theirs(model)).max() < 2e-6
