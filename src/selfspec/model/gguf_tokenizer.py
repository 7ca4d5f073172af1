"""The tokenizer inside a GGUF file, as one of the ``tokenizers`` library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer, decoders, models, processors

from selfspec.errors import CorruptModelError, UnsupportedModelError
from selfspec.model.gguf_pre import STYLES, Style
from selfspec.model.gguf_sentencepiece import merging, unigram
from selfspec.model.reading import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from selfspec.model.reading import Fields

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_SPECIAL_KEYS = {
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "unk_token_id": "unknown_token_id",
    "pad_token_id": "padding_token_id",
}
_ENDS_OF_TURNS = ("eot_token_id", "eom_token_id")
_SENTENCEPIECE: Mapping[str, Style] = {"llama": Style((), adds_bos=True), "t5": Style((), adds_eos=True)}
"""What the models that split nothing add to a text where the file does not say."""


def token_strings(metadata: Fields) -> list[str]:
    """The vocabulary, by id."""
    tokens = metadata.raw("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise CorruptModelError(f"{metadata.source} has no tokenizer.ggml.tokens; download the file again")
    return tokens


def special_ids(metadata: Fields) -> dict[str, Any]:
    """``bos_token_id``, ``eos_token_id`` and so on, as ``config.json`` has them; all are in the vocabulary.

    The end of a turn, or of a message, ends a text too.
    """
    size = len(token_strings(metadata))
    ids: dict[str, Any] = {}
    for name, key in _SPECIAL_KEYS.items():
        if f"tokenizer.ggml.{key}" in metadata:
            ids[name] = _token_id(metadata, key, size)
    if "eos_token_id" in ids:
        ends = [_token_id(metadata, key, size) for key in _ENDS_OF_TURNS if f"tokenizer.ggml.{key}" in metadata]
        every = list(dict.fromkeys([ids["eos_token_id"], *ends]))
        ids["eos_token_id"] = every if len(every) > 1 else every[0]
    return ids


def _token_id(metadata: Fields, key: str, size: int) -> int:
    number = metadata.integer(f"tokenizer.ggml.{key}", minimum=0)
    if number >= size:
        raise metadata.wrong(key, number, f"below the size of the vocabulary ({size})")
    return number


def build_tokenizer(metadata: Fields) -> Tokenizer:
    """The tokenizer that the metadata describes.

    Raises
    ------
    UnsupportedModelError
        A model of tokenizer, or a way of splitting text, that is not known here.
    CorruptModelError
        Vocabulary, token types, scores and merges do not fit together.
    """
    style, tokens = _style(metadata), token_strings(metadata)
    kinds = _kinds(metadata, tokens)
    if len(set(tokens)) != len(tokens):
        raise CorruptModelError(f"{metadata.source} has a token twice; download the file again")
    model = metadata.text("tokenizer.ggml.model")
    if model == "gpt2":
        tokenizer = _byte_level(metadata, tokens, style)
    else:
        tokenizer = (merging if model == "llama" else unigram)(metadata, tokens, kinds)
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind != _USER_DEFINED, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        ]
    )
    if (frame := _frame(metadata, tokens, style)) is not None:
        tokenizer.post_processor = frame
    return tokenizer


def _byte_level(metadata: Fields, tokens: Sequence[str], style: Style) -> Tokenizer:
    vocabulary, merges = {token: number for number, token in enumerate(tokens)}, _merges(metadata)
    try:
        model = models.BPE(vocabulary, merges, ignore_merges=style.ignore_merges)
    except Exception as error:  # the library raises bare Exception
        raise CorruptModelError(
            f"{metadata.source} has merges that do not fit the vocabulary ({one_line(error)}); download it again"
        ) from error
    tokenizer = Tokenizer(model)
    if (normalizer := style.normalizer()) is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = style.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _style(metadata: Fields) -> Style:
    model = metadata.text("tokenizer.ggml.model")
    if model in _SENTENCEPIECE:
        return _SENTENCEPIECE[model]
    if model != "gpt2":
        raise UnsupportedModelError(
            f"the GGUF tokenizer {one_line(model, 40)!r} is not supported; supported: gpt2 (byte-level BPE), llama "
            "(SentencePiece) and t5 (unigrams). Use the Hugging Face folder of this model"
        )
    pre = metadata.text("tokenizer.ggml.pre", "default")
    if pre not in STYLES:
        raise UnsupportedModelError(
            f"the pre-tokenizer {one_line(pre, 40)!r} is not supported; supported: {', '.join(STYLES)}; "
            "use the Hugging Face folder of this model"
        )
    return STYLES[pre]


def _merges(metadata: Fields) -> list[tuple[str, str]]:
    merges = metadata.raw("tokenizer.ggml.merges")
    if not isinstance(merges, list) or not all(
        isinstance(merge, str) and merge.count(" ") == 1 for merge in merges
    ):
        raise CorruptModelError(f"{metadata.source} has no valid tokenizer.ggml.merges; download the file again")
    return [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]


def _kinds(metadata: Fields, tokens: Sequence[str]) -> list[int]:
    kinds = metadata.raw("tokenizer.ggml.token_type") or [1] * len(tokens)
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise CorruptModelError(
            f"{metadata.source} has {len(tokens)} tokens but another number of token types; download it again"
        )
    return kinds


def _frame(metadata: Fields, tokens: Sequence[str], style: Style) -> Any:
    """What is put around a plain text: BOS, EOS, or nothing."""
    ids = special_ids(metadata)
    eos: Any = ids.get("eos_token_id")
    adds_bos = metadata.flag("tokenizer.ggml.add_bos_token", style.adds_bos) and "bos_token_id" in ids
    adds_eos = metadata.flag("tokenizer.ggml.add_eos_token", style.adds_eos) and eos is not None
    if not (adds_bos or adds_eos):
        return None
    before = [ids["bos_token_id"]] if adds_bos else []
    after = [eos[0] if isinstance(eos, list) else eos] if adds_eos else []
    parts = [tokens[i] for i in before] + ["$A"] + [tokens[i] for i in after]
    return processors.TemplateProcessing(
        single=parts, pair=[*parts, "$B"], special_tokens=[(tokens[i], i) for i in before + after]
    )
