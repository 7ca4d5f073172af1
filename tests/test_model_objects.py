"""A model object of transformers is run as it is: its tensors, its ends, and none of its dropout."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import selfspec
from selfspec.errors import UnsupportedModelError


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=61, attention_dropout=0.9, eos_token_id=60)
    return LlamaForCausalLM(config).double()


def test_a_model_in_training_mode_answers_as_in_evaluation(model):
    """Draft and verification must not see dropout: each pass would be of another model."""
    model.train()
    ids = list(
        selfspec.load(model, draft="early_exit", exit_layer=2).generate([1, 2, 3], max_new_tokens=8).token_ids
    )
    assert model.training
    noisy = model(torch.tensor([[1, 2, 3, *ids]])).logits
    model.eval()
    with torch.no_grad():
        quiet = model(torch.tensor([[1, 2, 3, *ids]])).logits
    assert quiet[0, 2:-1].argmax(dim=-1).tolist() == ids
    assert (noisy - quiet).abs().max() > 1e-3


def test_the_tensors_of_a_model_object_decide_whether_its_head_is_tied(tiny):
    """Guards a head that was untied after loading: the embedding would be used in its place, without a word."""
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float64)
    assert selfspec.load(model).config.tied_head
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    engine = selfspec.load(model)
    ids = list(engine.generate([1, 2, 3], max_new_tokens=6, ignore_eos=True).token_ids)
    logits = model(torch.tensor([[1, 2, 3, *ids]])).logits
    assert logits[0, 2:-1].argmax(dim=-1).tolist() == ids


@pytest.mark.parametrize("end", [-1, [2, 300]])
def test_an_end_of_text_that_is_no_token_is_one_clear_error(tiny, end):
    """Guards model objects: such an id failed among the logits, or never came, and nothing ended the text."""
    model = AutoModelForCausalLM.from_pretrained(tiny)
    model.generation_config.eos_token_id = end
    with pytest.raises(UnsupportedModelError, match="this model's tokens are 0 to 258"):
        selfspec.load(model)
