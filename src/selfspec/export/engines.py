"""How other engines are told to use an exported draft; docs/exports.md says which were run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Use(NamedTuple):
    """An engine, and the line that starts it with a model, a draft and γ."""

    engine: str
    line: str


_EAGLE_IN_VLLM = (
    "vllm serve {model} --speculative-config "
    '\'{{"method": "eagle3", "model": "{draft}", "num_speculative_tokens": {gamma}}}\''
)
_LINES: dict[str, dict[str, str]] = {
    "hf": {
        "transformers": 'model.generate(**inputs, assistant_model=AutoModelForCausalLM.from_pretrained("{draft}"))',
        "vllm": "vllm serve {model} --speculative-config "
        '\'{{"method": "draft_model", "model": "{draft}", "num_speculative_tokens": {gamma}}}\'',
        "sglang": "python -m sglang.launch_server --model-path {model} --speculative-algorithm STANDALONE "
        "--speculative-draft-model-path {draft} --speculative-num-steps {gamma} --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens {rows}",
        "tensorrt-llm": 'LLM("{model}", speculative_config=DraftTargetDecodingConfig(max_draft_len={gamma}, '
        'speculative_model="{draft}"), disable_overlap_scheduler=True)',
    },
    "gguf": {
        "llama.cpp": "llama-server -m {model} -md {draft} --spec-type draft-simple --spec-draft-n-max {gamma} "
        "--spec-draft-p-min 0",
    },
    "openvino": {
        "openvino-genai": 'openvino_genai.LLMPipeline("{model}", "CPU", '
        'draft_model=openvino_genai.draft_model("{draft}", "CPU"))  # num_assistant_tokens={gamma}',
    },
    "eagle3": {"vllm": _EAGLE_IN_VLLM, "sglang": "python -m sglang.launch_server --model-path {model} "
        "--speculative-algorithm EAGLE3 --speculative-draft-model-path {draft} --speculative-num-steps {gamma} "
        "--speculative-eagle-topk 1 --speculative-num-draft-tokens {rows}"},
    "speculators": {"vllm": _EAGLE_IN_VLLM},
    "medusa": {"medusa": "python -m medusa.inference.cli --model {draft}",
        "tgi": "text-generation-launcher --model-id {draft} --speculate {gamma}"},
}  # fmt: skip
FORMATS = tuple(_LINES)


def uses(kind: str, model: str, draft: str, gamma: int) -> list[Use]:
    """The lines for a draft in one of the `FORMATS`."""
    fill: Callable[[str], str] = lambda line: line.format(model=model, draft=draft, gamma=gamma, rows=gamma + 1)  # noqa: E731
    return [Use(engine, fill(line)) for engine, line in _LINES[kind].items()]
