"""One tiny model of transformers in float64, with an early exit that is right now and then."""

from __future__ import annotations

import pytest
import torch
from hf_model import PROMPTS
from transformers import AutoModelForCausalLM, AutoTokenizer, logging

logging.disable_progress_bar()


@pytest.fixture(scope="session")
def tokenizer(tiny):
    tokenizer = AutoTokenizer.from_pretrained(tiny, padding_side="left")
    tokenizer.pad_token = "<|endoftext|>"
    return tokenizer


@pytest.fixture(scope="session")
def model(tiny, tokenizer):
    """Its last layer adds little, so that three of four layers are often right."""
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float64)
    with torch.no_grad():
        for part in (model.model.layers[3].self_attn.o_proj, model.model.layers[3].mlp.down_proj):
            part.weight *= 0.3
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


@pytest.fixture(scope="session")
def batch(tokenizer):
    return lambda size: tokenizer(PROMPTS[:size], return_tensors="pt", padding=True)
