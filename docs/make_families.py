"""Write docs/families.md from the data of every family; a test keeps the two equal."""

from __future__ import annotations

import re
from pathlib import Path

from selfspec.model.config import Layer, ModelConfig
from selfspec.model.families import FAMILIES, Family, config_from_hf, weights_by_role
from selfspec.model.families.gguf import form_of
from selfspec.model.gguf_pre import STYLES
from selfspec.model.stored import BLOCK_TYPES
from selfspec.runtime.cpu_model import lacking

PAGE = Path(__file__).with_name("families.md")
CASES = Path(__file__).parents[1] / "tests" / "family_models.py"
INTRO = """# Families

Made from the data in `src/selfspec/model/families` by `make docs`. A checkpoint of another architecture, or with an option that is not covered, is refused before anything is read, with a line that names what is supported.

Facts are those of a `config.json` that leaves out what it may (12 layers here); a checkpoint's own come first. *Windows*: how many positions a layer sees, and in how many of the layers; "off" can be switched on. *cpu* is the native core: a checkpoint whose own facts need what the core does not have runs in torch, and a line says why. Every family is compared with transformers in float64 (`tests/test_families_parity.py`): logits of a prefill, of passes of one and of many rows past the window, and of a ragged batch, within 1e-8; greedy texts with `generate`; early exits, a gapped plan, chains and (but for recurrent layers) trees with the oracle; the suite passed with transformers 5.23 too (`make check-transformers VERSION=5.23`), where the families with recurrent layers have not been run. The native core runs 26 of them, all but those with recurrent layers. It is compared with that, in float32 within 2e-5 of logits around 2, and with itself bit for bit: chunks, threads, kernels, batches, trees, and all these drafts (`tests/native/test_core_families.py`). *Tested* lists the variants that are built for it, the plain one first. *gguf* is the architecture in GGUF files.

| family | architecture | gguf | layers | windows | experts | runtimes | tested |
|---|---|---|---|---|---|---|---|
"""
NOTES = f"""
- All families: rope types `default`, `linear`, `llama3`, `yarn`, `longrope` (`dynamic` is refused: its keys change with the length of the text). `longrope` (Phi-3, Phi-4-mini): texts up to the original context, since past it transformers turns all positions anew.
- Windows: the cache of a layer with a window is a ring of window + 1,089 cells (on cpu rounded up to whole 128): γmax in rows, those of the widest comb (γ 64, 16 siblings). It holds a chunk of the prefill (512 rows) too, which smaller rings would cut into more passes. A conversation that goes back behind the ring is read anew.
- Mixtures: only the experts that some row has are read, each once in a pass (`CpuRuntime.expert_reads` counts them); routers stay in float32; `LayerPlan.experts` overrides how many a row has. Weights as checkpoints have them (one tensor for each expert, or joint) and as transformers' modules do.
- Recurrent layers: what a text holds of them does not grow with it (`selfspec info` states it); they verify chains only, so `--siblings` is refused. A conversation whose earlier text changes is read anew. Qwen3.5 checkpoints that see images, too (`ForConditionalGeneration`), run as the text model in them; their other parts are not read. The multi-token module of Qwen3-Next and Qwen3.5 drafts (`--draft mtp`, heads.md).
- Quantised checkpoints (`quantization_config`, MXFP4 of GPT-OSS too) are refused.
- Not covered: ALiBi (old Falcon), `qk_layernorm` of StableLM, OPT-350m (norms after the residual), `clip_qkv` of OLMoE.

## GGUF files

- Every architecture above is compared with the transformers model that its file was written from, by the rules of llama.cpp's converter (`tests/model/test_gguf_families.py`): logits within 2e-6 in float64. A key or tensor that is not known is an error, never passed over. Files in parts must be merged (`llama-gguf-split --merge`).
- Types: F32, F16, BF16, {", ".join(kind.upper() for kind in BLOCK_TYPES)}. Another one is refused by name (MXFP4 of GPT-OSS, IQ and TQ types). In torch all become float32. The native core takes F32, F16, BF16, Q8_0, Q5_0, Q4_0 and Q4_1 over as they are, and Q4_K with its 4-bit levels, whose scales are rounded to fp16 (0.07 % of a matrix, root of the mean square); Q5_1, Q5_K and Q6_K are rounded a second time, to int8 (0.5 to 0.6 %: blocks of 16 with a scale each, or with a minimum, have no place in a block of 32 bytes with one scale), as every type is with `--bits` (4 to 8 % in int4). `selfspec.runtime.packed.find_packed` gives it as `rounding`.
- What a file does not say: the windows of Mistral 7B v0.1, Qwen 2 and Starcoder 2 (all positions are read, as llama.cpp does), layers without experts in a mixture, and `query_pre_attn_scalar` of Gemma (the size of a head, but for the two 27B models). Phi-3's window is in the file and is kept, as in transformers; llama.cpp ignores it.
- Rotary factors (`rope_freqs.weight`) are taken as the rule of Llama 3 where they are its, else as they stand.
- Tokenizers: `gpt2` (byte-level BPE) with the pre-tokenizers {", ".join(STYLES)}; `llama` (SentencePiece, merges by score, bytes for what is left); `t5` (unigrams). Split and normalised as the models' own `tokenizer.json` does, which llama.cpp does not always (NFC, Falcon's digits).
"""


_NO_GGUF = {"mistral": "`llama`"}  # and read as one: the file does not say which of the two it is


def page() -> str:
    """The page, as Markdown."""
    variants = _variants()
    return INTRO + "".join(_row(family, variants[family.name]) for family in FAMILIES) + NOTES


def _variants() -> dict[str, list[str]]:
    """The cases of the parity suite by family."""
    found: dict[str, list[str]] = {}
    for name, variant in re.findall(
        r'^    "(\w+)(?:: ([^"]+))?": \(', CASES.read_text(encoding="utf-8"), re.MULTILINE
    ):
        found.setdefault(name, []).append(variant or "plain")
    return found


def _row(family: Family, variants: list[str]) -> str:
    config = _sample(family)
    missing = lacking(config)
    cells = (
        f"`{family.name}`",
        f"`{family.architectures[0]}`",
        f"`{form.architecture}`" if (form := form_of(family.name)) else _NO_GGUF.get(family.name, "none"),
        _layers(config),
        _windows(family, config),
        _experts(config),
        f"torch; cpu has no {missing}" if missing else "torch, cpu",
        ", ".join(variants),
    )
    return f"| {' | '.join(cells)} |\n"


def _sample(family: Family) -> ModelConfig:
    sizes = {
        "hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 12, "num_attention_heads": 32,
        "vocab_size": 1000, "num_experts": 64, "full_attn_idxs": [2, 5, 8, 10],
    }  # fmt: skip
    return config_from_hf(
        {
            "architectures": [family.architectures[0]],
            **{family.key(fact) or fact: value for fact, value in sizes.items()},
        }
    )


def _layers(config: ModelConfig) -> str:
    """What tells the layers from those of Llama."""
    layers = [config.layer(index) for index in range(config.num_layers)]
    layer, roles = layers[0], set(weights_by_role(config, 0))
    bare = sum(each.rope is None and each.attends for each in layers)
    recurrent, kinds = config.recurrences, {"conv": "short convolution", "delta": "gated delta net"}
    rope = next((each.rope for each in layers if each.rope), None)
    normed = next((each.qk_norm for each in layers if each.attends), "none")
    facts = {
        "learned positions": config.has_positions,
        f"{kinds[recurrent[0].kind]} in {len(recurrent)} of 12" if recurrent else "": bool(recurrent),
        f"no rope in {bare} of 12": 0 < bare < 12,
        "gated attention": any(each.output_gate for each in layers),
        f"rope on {rope.share if rope else 0:g} of a head": rope is not None and rope.share != 1,
        "rope on neighbouring pairs": rope is not None and rope.interleaved,
        "layer norm": layer.norm.startswith("layer"),
        "norm weights + 1": layer.norm == "rms_plus_one",
        "norms after": layer.norm_after and not layer.norm_before,
        "norms before and after": layer.norm_after and layer.norm_before,
        f"parallel residual ({layer.parallel} norm)": not layer.is_sequential,
        f"q/k norm per {normed}": normed != "none",
        "q, k, v biases": "q_bias" in roles and "o_bias" not in roles,
        "biases": bool(roles & {"o_bias", "up_bias"}),
        "fused weights": bool(roles & {"qkv", "qkv_groups", "gate_up"}),
        "plain MLP": "up" in roles and "gate" not in roles,
        layer.activation: layer.activation != "silu",
        "capped scores": layer.soft_cap is not None,
        "own scale of scores": layer.scale is not None,
        "sinks": layer.sinks,
        "scaled embedding": config.embedding_scale != 1,
        "scaled logits": config.logit_scale != 1,
    }
    return ", ".join(fact for fact, holds in facts.items() if holds) or "as Llama"


def _windows(family: Family, config: ModelConfig) -> str:
    layers: list[Layer] = [config.layer(index) for index in range(config.num_layers)]
    windows = {layer.window for layer in layers if layer.window}
    if windows:
        return f"{windows.pop()} in {sum(layer.window is not None for layer in layers)} of 12"
    return "off" if "sliding_window" in family.defaults else "none"


def _experts(config: ModelConfig) -> str:
    found = [experts for index in range(config.num_layers) if (experts := config.layer(index).experts)]
    if not found:
        return "none"
    shared = " and a shared one" if found[0].shared_width else ""
    return f"{found[0].per_token} a token{shared}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
