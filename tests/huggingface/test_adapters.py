"""Models that PEFT has wrapped, and torchao's linears, in transformers' ``generate``.

They need packages that are no part of the development environment; nothing is skipped without them:

    pip install peft torchao && pytest -m engines tests/huggingface/test_adapters.py
"""

from __future__ import annotations

import copy

import pytest
import torch
from hf_model import DRAFT

import selfspec
from selfspec.errors import UnsupportedModelError

pytestmark = [
    pytest.mark.engines,
    pytest.mark.filterwarnings("ignore"),  # their own
]
OURS = {"custom_generate": selfspec.hf.generate, **DRAFT}
GREEDY = {"max_new_tokens": 12, "do_sample": False}


def wrapped(model, **options):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    return get_peft_model(copy.deepcopy(model), LoraConfig(r=4, **options)).double()


def test_lora_adapters_are_seen_as_they_are_now(model, batch):
    inputs, plain = batch(3), model.generate(**batch(3), **GREEDY)
    lora = wrapped(model, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    adapted = lora.generate(**inputs, **GREEDY)
    assert not torch.equal(adapted, plain)
    assert torch.equal(lora.generate(**inputs, **GREEDY, **OURS), adapted)
    with lora.disable_adapter():
        assert torch.equal(lora.generate(**inputs, **GREEDY, **OURS), plain)
    lora.add_adapter("other", lora.peft_config["default"])
    lora.set_adapter("other")
    assert not torch.equal(lora.double().generate(**inputs, **GREEDY, **OURS), adapted)
    assert torch.equal(lora.generate(**inputs, **GREEDY, **OURS), lora.generate(**inputs, **GREEDY))
    lora.set_adapter("default")
    lora.merge_adapter()
    assert torch.equal(lora.generate(**inputs, **GREEDY, **OURS), adapted)
    prompt = inputs["input_ids"][0].tolist()
    end = selfspec.load(lora, draft="ngram").generate(prompt, max_new_tokens=12).token_ids
    assert list(end) == adapted[0, len(prompt) :].tolist()[: len(end)]


def test_other_adapters_are_refused_by_name(model, batch):
    from peft import PromptTuningConfig, get_peft_model

    prompts = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    for changed, says in (
        (wrapped(model, target_modules=["q_proj"], use_dora=True), "more than W"),
        (wrapped(model, target_modules=["q_proj"], modules_to_save=["lm_head"]), "ModulesToSaveWrapper"),
        (get_peft_model(copy.deepcopy(model), prompts).double(), "PROMPT_TUNING"),
    ):
        with pytest.raises(UnsupportedModelError, match=says):
            changed.generate(**batch(1), **GREEDY, **OURS)


@pytest.mark.parametrize("kind", ["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig", "int4"])
def test_torchao_linears_multiply_by_themselves(model, batch, kind):
    from torchao import quantization

    config = (
        quantization.IntxWeightOnlyConfig(torch.int4, quantization.PerGroup(32))
        if kind == "int4"
        else getattr(quantization, kind)()
    )
    quantised = copy.deepcopy(model).float()
    quantization.quantize_(quantised, config)
    plain = quantised.generate(**batch(3), **GREEDY)
    out = quantised.generate(**batch(3), **GREEDY, **OURS, return_dict_in_generate=True)
    assert torch.equal(out.sequences, plain)
    assert out.speculation.accepted > 0
    assert type(quantised.model.layers[0].mlp.up_proj.weight).__module__.startswith("torchao")
