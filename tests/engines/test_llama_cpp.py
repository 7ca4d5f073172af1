"""A GGUF draft in llama.cpp itself, through xllamacpp, whose wheels have its server built in.

pip install xllamacpp && pytest -m engines tests/engines/test_llama_cpp.py
"""

from __future__ import annotations

import gc

import pytest
from safetensors.numpy import load_file

import selfspec
from selfspec.export.acceptance import acceptance_along
from selfspec.export.drafts import export_draft
from selfspec.model import EMBEDDED, find_checkpoint
from selfspec.model.embedded import find_embedded, unpacked
from selfspec.model.head_file import HeadFacts, HeadFile, write_head

pytestmark = [pytest.mark.engines, pytest.mark.embedded]
PROMPTS = [
    "Count from one to twenty in words: one, two,",
    "The capital of France is Paris. The capital of Spain is",
    "def add(a, b):\n    return a + b\n\ndef add_three(a, b, c):",
    "Once upon a time there was a small river that",
    "Bees visit flowers for nectar. On the way they carry",
    "Shopping list: apples, pears, plums,",
    "The moon changes its shape because",
    "Dear Ana,\nthank you for your letter. I",
]
GAMMA, TOKENS = 3, 96


def answers(model, draft=None, prompts=PROMPTS, tokens=TOKENS):
    """Greedy answers of llama.cpp as token ids, and how many tokens were drafted and accepted."""
    import xllamacpp

    asked = xllamacpp.CommonParams()
    asked.model.path = str(model)
    asked.n_ctx, asked.n_parallel, asked.warmup, asked.verbosity = 512, 1, False, -1
    speaking = asked.speculative.draft
    for threads in (asked.cpuparams, asked.cpuparams_batch, speaking.cpuparams, speaking.cpuparams_batch):
        threads.n_threads = 1  # more wait for each other wherever the machine has something else to do
    if draft is not None:
        asked.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        speaking.mparams.path = str(draft)
        speaking.n_max, speaking.n_min, speaking.p_min = GAMMA, 0, 0.0
    server = xllamacpp.Server(asked)
    found = [
        server.handle_completions(
            {
                "prompt": prompt,
                "n_predict": tokens,
                "temperature": 0,
                "ignore_eos": True,
                "verbose": True,
                "cache_prompt": False,
                "return_tokens": True,
            }
        )
        for prompt in prompts
    ]
    del server
    gc.collect()
    counts = [sum(each["timings"].get(name, 0) for each in found) for name in ("draft_n", "draft_n_accepted")]
    return [each["__verbose"]["tokens"] for each in found], counts


def test_llama_cpp_drafts_with_it_as_we_do(tmp_path):
    """Its texts with the draft are its texts without, and along them about as many drafts hold there as here."""
    with unpacked(find_embedded(EMBEDDED), tmp_path) as model:
        made = export_draft(
            EMBEDDED, f"early_exit:exit_layer=26:gamma={GAMMA}", "gguf", tmp_path / "d.gguf", tokens=0
        )
        plain, none = answers(model)
        drafted, (proposed, accepted) = answers(model, made.path)
    assert none == [0, 0]
    assert drafted == plain
    engine = selfspec.load(EMBEDDED, draft="early_exit", exit_layer=26, gamma=GAMMA)
    ours = acceptance_along(engine, zip(PROMPTS, plain, strict=True))
    print(f"llama.cpp {accepted}/{proposed} = {accepted / proposed:.3f}, along its texts here {ours}")
    assert abs(accepted / proposed - ours.alpha) < 0.03


def test_llama_cpp_drafts_with_a_trained_head(tmp_path):
    """The head is a copy of layer 26 with the model's last norm, so that it is right as often as an exit at 27."""
    found = find_checkpoint(EMBEDDED)
    tensors = load_file(found.folder / "model.safetensors")
    prefix, config = "model.layers.26.", found.config
    facts = HeadFacts(
        "exit_head", "layer", (26,), config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim,
        config.intermediate_size, config.norm_eps, config.rope.theta,
    )  # fmt: skip
    weights = {name.replace(prefix, "layer."): t for name, t in tensors.items() if name.startswith(prefix)}
    write_head(tmp_path / "head", HeadFile(facts, weights | {"norm.weight": tensors["model.norm.weight"]}))
    draft, prompts, tokens = f"early_exit:head={tmp_path / 'head'}:gamma={GAMMA}", PROMPTS[:3], 48
    with unpacked(find_embedded(EMBEDDED), tmp_path) as model:
        made = export_draft(EMBEDDED, draft, "gguf", tmp_path / "d.gguf", tokens=0)
        plain, _ = answers(model, None, prompts, tokens)
        drafted, (proposed, accepted) = answers(model, made.path, prompts, tokens)
    assert drafted == plain
    for options in ({"head": str(tmp_path / "head")}, {"exit_layer": 27}):
        engine = selfspec.load(EMBEDDED, draft="early_exit", gamma=GAMMA, **options)
        ours = acceptance_along(engine, zip(prompts, plain, strict=True))
        print(f"llama.cpp {accepted}/{proposed} = {accepted / proposed:.3f}, along its texts here {ours}")
        assert abs(accepted / proposed - ours.alpha) < 0.03
