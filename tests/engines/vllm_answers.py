"""Run by a Python that has vLLM: answers prompts greedily, and counts drafts. One JSON document in, one out.

It needs nothing of the tests; `selfspec` must be importable for its proposer.
"""

from __future__ import annotations

import json
import os
import sys

os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


def main() -> None:
    """Answer."""
    from vllm import LLM, SamplingParams

    asked = json.load(sys.stdin)
    llm = LLM(
        asked["model"],
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=4,
        disable_log_stats=False,
        speculative_config=asked["speculative"],
    )
    params = SamplingParams(temperature=0.0, max_tokens=asked["tokens"], ignore_eos=True, detokenize=False)
    found = llm.generate([{"prompt_token_ids": ids} for ids in asked["prompts"]], params, use_tqdm=False)
    counts = {metric.name: getattr(metric, "value", None) for metric in llm.get_metrics()}
    answer = {
        "outputs": [list(each.outputs[0].token_ids) for each in found],
        "drafted": counts.get("vllm:spec_decode_num_draft_tokens"),
        "accepted": counts.get("vllm:spec_decode_num_accepted_tokens"),
    }
    print("ANSWER " + json.dumps(answer))


if __name__ == "__main__":
    main()
