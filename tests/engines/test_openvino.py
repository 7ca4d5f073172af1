"""A draft in OpenVINO GenAI, which reads GGUF files of Llama and Qwen models, and makes its own files of the draft.

pip install openvino-genai && pytest -m engines tests/engines/test_openvino.py
"""

from __future__ import annotations

import pytest
from test_llama_cpp import GAMMA, PROMPTS

import selfspec
from selfspec.export.acceptance import acceptance_along
from selfspec.export.drafts import export_draft
from selfspec.model import EMBEDDED
from selfspec.model.embedded import find_embedded, unpacked

pytestmark = [pytest.mark.engines, pytest.mark.embedded]
TOKENS = 96
EXACT = {  # by default rows are rounded together, so that a draft may change a word (openvino.genai #4476)
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    "INFERENCE_NUM_THREADS": 1,
}


def answers(model, prompts, draft=None):
    """Greedy answers to token ids, as token ids, and how many tokens were drafted and accepted."""
    import numpy as np
    import openvino
    import openvino_genai

    more = {} if draft is None else {"draft_model": openvino_genai.draft_model(str(draft), "CPU", **EXACT)}
    pipeline = openvino_genai.LLMPipeline(str(model), "CPU", **more, **EXACT)
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = TOKENS, True, False
    if draft is not None:
        config.num_assistant_tokens = GAMMA
    found = [pipeline.generate(openvino.Tensor(np.array([ids], np.int64)), config) for ids in prompts]
    told = [] if draft is None else [each.extended_perf_metrics for each in found]
    drafted = sum(each.draft_model_metrics.get_num_generated_tokens() for each in told)
    return [list(each.tokens[0]) for each in found], (drafted, sum(e.get_num_accepted_tokens() for e in told))


def test_openvino_drafts_with_it_as_we_do(tmp_path):
    """Its texts with the draft are its texts without, and along them about as many drafts hold there as here."""
    engine = selfspec.load(EMBEDDED, draft="early_exit", exit_layer=26, gamma=GAMMA, bits=32)
    prompts = [engine.encode(prompt, chat=False) for prompt in PROMPTS]
    with unpacked(find_embedded(EMBEDDED), tmp_path) as model:
        draft = f"early_exit:exit_layer=26:gamma={GAMMA}"
        made = export_draft(EMBEDDED, draft, "openvino", tmp_path / "draft", tokens=0)
        plain, _ = answers(model, prompts)
        drafted, (proposed, accepted) = answers(model, prompts, made.path)
    assert drafted == plain
    ours = acceptance_along(engine, zip(prompts, plain, strict=True))
    print(f"OpenVINO {accepted}/{proposed} = {accepted / proposed:.3f}, along its texts here {ours}")
    assert abs(accepted / proposed - ours.alpha) < 0.03
