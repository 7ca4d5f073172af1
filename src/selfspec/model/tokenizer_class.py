"""Tokenizer classes of transformers that put a pipeline of their own in the place of the one in ``tokenizer.json``.

Transformers 5 builds some tokenizers anew from the vocabulary, the merges and the BOS and EOS rule of the file
(its ``convert_to_native_format``); normalizer, pre-tokenizer and decoder are then those of the class, whatever the
file has. What people get from ``AutoTokenizer`` is what they must get here, so these classes are here as data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from selfspec.model.reading import Fields

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import Any

    from tokenizers import Tokenizer as Backend

_GENERIC = ""  # the pipeline of the file
# model type -> the class that transformers registers for it; of others it believes the file
_REGISTERED = {
    "cohere": "CohereTokenizer",
    "cohere2": "CohereTokenizer",
    "gemma": "GemmaTokenizer",
    "gemma2": "GemmaTokenizer",
    "gemma3": "GemmaTokenizer",
    "gemma3_text": "GemmaTokenizer",
    "glm": _GENERIC,
    "glm4": _GENERIC,
    "gpt2": "GPT2Tokenizer",
    "gpt_bigcode": _GENERIC,
    "gpt_neo": "GPT2Tokenizer",
    "gpt_neox": "GPTNeoXTokenizer",
    "gptj": "GPT2Tokenizer",
    "granite": _GENERIC,
    "granitemoe": _GENERIC,
    "granitemoehybrid": _GENERIC,
    "mistral": _GENERIC,
    "mistral3": _GENERIC,
    "mixtral": _GENERIC,
    "olmo": "GPTNeoXTokenizer",
    "olmo2": _GENERIC,
    "olmo3": _GENERIC,
    "olmoe": "GPTNeoXTokenizer",
    "opt": "GPT2Tokenizer",
    "phi": "GPT2Tokenizer",
    "phi3": _GENERIC,
    "phimoe": _GENERIC,
    "qwen2": "Qwen2Tokenizer",
    "qwen2_moe": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
    "qwen3_moe": "Qwen2Tokenizer",
    "qwen3_next": "Qwen2Tokenizer",
    "stablelm": _GENERIC,
    "starcoder2": "GPT2Tokenizer",
}
_NOT_BELIEVED = {"qwen2"}  # here the registered class counts even where the file names another

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def class_of(settings: Fields, config: Fields, file: Path) -> str:
    """The class that `AutoTokenizer` of transformers 5 takes; "" where the ``file`` is left as it is."""
    declared = settings.text("tokenizer_class", config.text("tokenizer_class", _GENERIC)).removesuffix("Fast")
    model_type = config.text("model_type", _GENERIC)
    registered = _REGISTERED.get(model_type)
    if declared == "LlamaTokenizer" and model_type not in _NOT_BELIEVED and b'"ByteLevel"' in file.read_bytes():
        return _GENERIC
    if registered is None:
        return declared
    if declared in ("", registered) or registered == _GENERIC or model_type in _NOT_BELIEVED:
        return registered
    return declared


@dataclass(frozen=True)
class Pipeline:
    """What a class makes of a vocabulary: steps, flags of its BPE model, and its special tokens by default."""

    names: Mapping[str, str]
    steps: Callable[[Fields], tuple[Any, Any, Any]]  # normalizer, pre-tokenizer, decoder
    flags: Mapping[str, Any] = field(default_factory=dict)
    keeps_ends: bool = True  # the BOS and EOS rule of the file

    def apply(self, backend: Backend, settings: Fields, names: Mapping[str, str]) -> None:
        """Put it in the place of what ``backend`` has; ``names`` are its special tokens."""
        backend.normalizer, backend.pre_tokenizer, backend.decoder = self.steps(settings)
        flags: dict[str, Any] = {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False, **self.flags}
        flags["unk_token"] = names.get("unk_token") if self.flags.get("unk_token") else None
        for flag, value in flags.items():
            setattr(backend.model, flag, value)
        if not self.keeps_ends:
            backend.post_processor = None


def pipeline_of(name: str, backend: Backend) -> Pipeline | None:
    """The pipeline of a class; None if the file's own counts."""
    return _PIPELINES.get(name) if isinstance(backend.model, models.BPE) else None


def _has_prefix_space(settings: Fields, default: bool) -> bool:
    return settings.flag("add_prefix_space", default)


def _byte_level(settings: Fields) -> tuple[Any, Any, Any]:
    space = _has_prefix_space(settings, False)
    return None, pre_tokenizers.ByteLevel(add_prefix_space=space), decoders.ByteLevel()


def _composed_byte_level(settings: Fields) -> tuple[Any, Any, Any]:
    return normalizers.NFC(), *_byte_level(settings)[1:]


def _digits(settings: Fields) -> tuple[Any, Any, Any]:
    normalizer, byte_level, decoder = _composed_byte_level(settings)
    return normalizer, pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level]), decoder


def _code_llama(settings: Fields) -> tuple[Any, Any, Any]:
    _, metaspace, _ = _sentencepiece("first" if _has_prefix_space(settings, True) else "never")
    return None, metaspace, _sentencepiece("first")[2]


def _qwen2(settings: Fields) -> tuple[Any, Any, Any]:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=_has_prefix_space(settings, False), use_regex=False)
    split = pre_tokenizers.Split(Regex(_QWEN2), behavior="isolated")
    return normalizers.NFC(), pre_tokenizers.Sequence([split, byte_level]), decoders.ByteLevel()


def _sentencepiece(scheme: str) -> tuple[Any, Any, Any]:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if scheme != "never":
        steps.append(decoders.Strip(" ", 1, 0))
    return None, pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False), decoders.Sequence(steps)


def _llama(settings: Fields) -> tuple[Any, Any, Any]:
    if not _has_prefix_space(settings, True):
        return _sentencepiece("never")
    return _sentencepiece("always" if settings.flag("legacy", False) else "first")


def _gemma(_: Fields) -> tuple[Any, Any, Any]:
    split = pre_tokenizers.Split(" ", "merged_with_previous")
    return normalizers.Replace(" ", "▁"), split, _sentencepiece("never")[2]


def _all(token: str, *names: str) -> dict[str, str]:
    return {f"{name}_token": token for name in names}


_LLAMA_NAMES = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
_BYTES = {"fuse_unk": True, "byte_fallback": True}
_PIPELINES = {
    "CodeLlamaTokenizer": Pipeline(
        _LLAMA_NAMES
        | {
            "prefix_token": "▁<PRE>",
            "middle_token": "▁<MID>",
            "suffix_token": "▁<SUF>",
            "eot_token": "▁<EOT>",
            "fill_token": "<FILL_ME>",
        },
        _code_llama,
        {**_BYTES, "unk_token": True},
    ),
    "CohereTokenizer": Pipeline(
        {
            "unk_token": "<UNK>",
            "bos_token": "<BOS_TOKEN>",
            "eos_token": "<|END_OF_TURN_TOKEN|>",
            "pad_token": "<PAD>",
            "cls_token": "<CLS>",
            "sep_token": "<SEP>",
            "mask_token": "<MASK_TOKEN>",
        },
        _digits,
    ),
    "GPT2Tokenizer": Pipeline(_all("<|endoftext|>", "unk", "bos", "eos"), _byte_level),
    "GPTNeoXTokenizer": Pipeline(
        _all("<|endoftext|>", "unk", "bos", "eos") | {"pad_token": "<|padding|>"},
        _composed_byte_level,
        keeps_ends=False,
    ),
    "GemmaTokenizer": Pipeline(
        {
            "unk_token": "<unk>",
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "pad_token": "<pad>",
            "mask_token": "<mask>",
        },
        _gemma,
        {**_BYTES, "unk_token": True},
    ),
    "LlamaTokenizer": Pipeline(_LLAMA_NAMES, _llama, _BYTES),
    "Qwen2Tokenizer": Pipeline(_all("<|endoftext|>", "unk", "eos", "pad"), _qwen2),
}
