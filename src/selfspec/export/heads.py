"""Trained heads in the layouts of others: EAGLE-3's, vLLM's speculators, Medusa's (`model.published_heads`)."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec._version import __version__
from selfspec.errors import OptionError
from selfspec.model.families import family_of
from selfspec.model.head_file import EMBEDDING, LM_HEAD
from selfspec.runtime.attached import require_fits

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from selfspec.model.config import ModelConfig
    from selfspec.model.head_file import HeadFacts, HeadFile
    from selfspec.runtime.base import Runtime

    Floats = NDArray[np.float32]

LAYOUTS = {"eagle3": "eagle", "speculators": "eagle", "medusa": "medusa"}
"""Format -> the kind of head that it is for."""


def write_published(head: HeadFile, runtime: Runtime, kind: str, out: Path, gamma: int, name: str) -> None:
    """Write a head as ``kind``, one of `LAYOUTS`, into an empty folder.

    What a head takes from its target there, its LM head, stands in it here. ``name`` is that of the model.

    Raises
    ------
    OptionError
        The layout is for another kind of head, or the head does not fit the model.
    """
    require_fits(head, runtime.config)
    if head.facts.kind != LAYOUTS[kind]:
        raise OptionError(
            f"{kind} is the layout of {LAYOUTS[kind]} heads, and this is of the kind {head.facts.kind}: give "
            f"--format {' or '.join(layout for layout, own in LAYOUTS.items() if own == head.facts.kind) or 'none'}"
        )
    if kind == "medusa":
        _write_medusa(head, runtime, out, name)
    else:
        _write_eagle(head, runtime, kind, out, (gamma, name))


def _write_medusa(head: HeadFile, runtime: Runtime, out: Path, name: str) -> None:
    """With an LM head over all tokens for each head: a trimmed vocabulary is filled up with the target's rows."""
    facts = head.facts
    tensors: dict[str, NDArray[Any]] = {}
    target = _head_of(runtime)
    for i, lm_head in enumerate(facts.lm_heads):
        mine = f"{i}."
        tensors |= {key: weight for key, weight in head.weights.items() if key.startswith(mine) and key != lm_head}
        rows, own = target, head.weights.get(lm_head)
        if own is not None and head.vocabulary is None:
            rows = own
        elif own is not None:
            raise OptionError(
                "this head has LM heads of its own over a part of the vocabulary, for which Medusa's layout has no "
                "place: export one that drafts all tokens, or shares the model's LM head"
            )
        tensors[f"{i}.{facts.blocks}.weight"] = rows
    settings = {
        "medusa_num_heads": facts.drafts, "medusa_num_layers": facts.blocks, "base_model_name_or_path": name,
        "hidden_size": facts.hidden_size, "vocab_size": runtime.config.vocab_size, "version": "2",
    }  # fmt: skip
    _write(out, settings, tensors, "medusa_lm_head.safetensors")
    if find_spec("torch") is not None:  # what the authors' own program reads
        from selfspec.runtime.torch_files import write_tensors

        write_tensors(out / "medusa_lm_head.pt", tensors)


def _write_eagle(head: HeadFile, runtime: Runtime, kind: str, out: Path, use: tuple[int, str]) -> None:
    config, ids, size = runtime.config, head.vocabulary, runtime.config.vocab_size
    tensors: dict[str, NDArray[Any]] = dict(head.weights)
    if LM_HEAD not in tensors:
        rows = _head_of(runtime)
        tensors[LM_HEAD] = rows if ids is None else rows[ids]
    drafts = np.arange(size) if ids is None else ids
    tensors["d2t"] = (drafts - np.arange(len(drafts))).astype(np.int64)
    tensors["t2d"] = np.isin(np.arange(size), drafts)
    sizes = _sizes(head.facts, config)
    if kind == "eagle3":
        if head.facts.qk_norm:
            raise OptionError("this head norms queries and keys, for which eagle3 has no place: use speculators")
        settings = {"architectures": ["LlamaForCausalLMEagle3"], **sizes, "draft_vocab_size": len(drafts),
                    "eagle_aux_hidden_state_layer_ids": list(head.facts.taps)}  # fmt: skip
        if head.facts.norm_before_residual:
            settings["norm_before_residual"] = True
    else:
        tensors = {key.replace("midlayer.", "layers.0."): tensor for key, tensor in tensors.items()}
        if EMBEDDING not in tensors:
            tensors[EMBEDDING] = _weight(runtime, "embedding")
        settings = _speculators(head.facts, sizes, len(drafts), use)
        verifier = settings["speculators_config"]["verifier"]
        verifier["architectures"] = list(family_of(config).architectures[:1])
    _write(out, settings, tensors, "model.safetensors")


def _sizes(facts: HeadFacts, config: ModelConfig) -> dict[str, Any]:
    """Of a Llama with one layer."""
    scaling = _scaling(facts.rope)
    return {
        "model_type": "qwen3" if facts.qk_norm else "llama",
        "hidden_size": facts.hidden_size, "intermediate_size": facts.intermediate_size,
        "num_attention_heads": facts.num_heads, "num_key_value_heads": facts.num_kv_heads,
        "head_dim": facts.head_dim, "num_hidden_layers": 1, "rms_norm_eps": facts.eps, "hidden_act": "silu",
        "rope_theta": facts.rope_theta, **({"rope_scaling": scaling} if scaling else {}),
        "vocab_size": config.vocab_size, "max_position_embeddings": config.context_length,
        "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False, "torch_dtype": "float32",
    }  # fmt: skip


def _scaling(rope: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `config.Rope` as config.json has them."""
    names = {"kind": "rope_type", "original_context": "original_max_position_embeddings"}
    names |= {"low_freq_factor": "low_freq_factor", "high_freq_factor": "high_freq_factor", "factor": "factor"}
    if not set(rope) <= set(names):
        raise OptionError(f"the rotary embedding of this head, {rope.get('kind')}, has no place in this layout")
    return {names[name]: value for name, value in rope.items()}


def _speculators(facts: HeadFacts, sizes: Mapping[str, Any], drafts: int, use: tuple[int, str]) -> dict[str, Any]:
    gamma, name = use
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": gamma,
        "accept_tolerance": 0.0,
        "verifier_accept_k": 1,
    }
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": f"selfspec {__version__}",
        "draft_vocab_size": drafts,
        "norm_before_residual": facts.norm_before_residual,
        "norm_before_fc": False,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": list(facts.taps),
        "transformer_layer_config": dict(sizes),
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": name},
        },
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }


def _head_of(runtime: Runtime) -> Floats:
    """The LM head of the target, all of it."""
    return _weight(runtime, "head")


def _weight(runtime: Runtime, role: str) -> Floats:
    found = runtime.weight(role)
    assert found is not None
    return found


def _write(out: Path, settings: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], file: str) -> None:
    from safetensors.numpy import save_file

    (out / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    kept = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    save_file(kept, out / file, metadata={"format": "pt"})
