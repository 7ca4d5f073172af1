"""Run by a Python that has OpenVINO GenAI: answers prompts greedily. One JSON document in, one out."""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Answer."""
    import openvino_genai

    asked = json.load(sys.stdin)
    more = {"draft_model": openvino_genai.draft_model(asked["draft"], "CPU")} if asked["draft"] else {}
    pipeline = openvino_genai.LLMPipeline(asked["model"], "CPU", **more, INFERENCE_NUM_THREADS=1)
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = asked["tokens"], True, False
    config.apply_chat_template = False
    if asked["draft"]:
        config.num_assistant_tokens = asked["gamma"]
    texts, accepted, drafted = [], 0, 0
    for prompt in asked["prompts"]:
        found = pipeline.generate([prompt], config)
        texts += found.texts
        if asked["draft"]:
            told = found.extended_perf_metrics
            accepted += told.get_num_accepted_tokens()
            drafted += told.draft_model_metrics.get_num_generated_tokens()
    print("ANSWER " + json.dumps({"texts": texts, "accepted": accepted, "drafted": drafted}))


if __name__ == "__main__":
    main()
