"""A draft in OpenVINO GenAI, which reads GGUF files of Llama and Qwen models, and makes its own files of the draft.

pip install openvino-genai && pytest -m engines tests/engines/test_openvino.py
"""

from __future__ import annotations

import pytest
from test_llama_cpp import GAMMA, PROMPTS

import selfspec
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


def answers(model, draft=None):
    """Greedy texts, and how many tokens were accepted of those drafted."""
    import openvino_genai

    more = {} if draft is None else {"draft_model": openvino_genai.draft_model(str(draft), "CPU", **EXACT)}
    pipeline = openvino_genai.LLMPipeline(str(model), "CPU", **more, **EXACT)
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = TOKENS, True, False
    config.apply_chat_template = False
    if draft is not None:
        config.num_assistant_tokens = GAMMA
    found = [pipeline.generate([prompt], config) for prompt in PROMPTS]
    told = [] if draft is None else [each.extended_perf_metrics for each in found]
    counts = [each.get_num_accepted_tokens() for each in told], [each.draft_model_metrics for each in told]
    return [each.texts[0] for each in found], counts


def test_openvino_drafts_with_it_as_we_do(tmp_path):
    """Its texts with the draft are its texts without; α differs as in llama.cpp, whose test says why."""
    with unpacked(find_embedded(EMBEDDED), tmp_path) as model:
        draft = f"early_exit:exit_layer=26:gamma={GAMMA}"
        made = export_draft(EMBEDDED, draft, "openvino", tmp_path / "draft", tokens=0)
        plain, _ = answers(model)
        drafted, (accepted, metrics) = answers(model, made.path)
    assert drafted == plain
    proposed = sum(each.get_num_generated_tokens() for each in metrics)
    engine = selfspec.load(EMBEDDED, draft="early_exit", exit_layer=26, gamma=GAMMA, chat=False, ignore_eos=True)
    stats = [engine.generate(prompt, max_new_tokens=TOKENS).stats for prompt in PROMPTS]
    ours = sum(s.accepted for s in stats) / sum(s.drafted for s in stats)
    print(f"OpenVINO {sum(accepted)}/{proposed} = {sum(accepted) / proposed:.3f}, here {ours:.3f}")
    assert abs(sum(accepted) / proposed - ours) < 0.06
