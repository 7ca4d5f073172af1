"""The tokenizer inside a GGUF file, as one of the ``tokenizers`` library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from selfspec.errors import CorruptModelError, UnsupportedModelError
from selfspec.model.reading import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from selfspec.model.reading import Fields

_CONTROL, _USER_DEFINED = 3, 4
_SPECIAL_KEYS = {
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "unk_token_id": "unknown_token_id",
    "pad_token_id": "padding_token_id",
}
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class _Style(NamedTuple):
    """How one ``tokenizer.ggml.pre`` splits text, and what goes with it."""

    pre_tokenizer: Callable[[], Any]
    ignore_merges: bool = False
    adds_bos: bool = False


def _gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _splits(*patterns: str) -> Any:
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _default() -> Any:
    return _splits(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")


def _llama3() -> Any:
    return _splits(_LLAMA3)


_LLAMA3_STYLE = _Style(_llama3, ignore_merges=True, adds_bos=True)
_STYLES: Mapping[str, _Style] = {
    "default": _Style(_default),
    "gpt-2": _Style(_gpt2),
    "llama-bpe": _LLAMA3_STYLE,
    "llama3": _LLAMA3_STYLE,
    "llama-v3": _LLAMA3_STYLE,
    "smollm": _Style(_smollm),
}


def token_strings(metadata: Fields) -> list[str]:
    """The vocabulary, by id."""
    tokens = metadata.raw("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise CorruptModelError(f"{metadata.source} has no tokenizer.ggml.tokens; download the file again")
    return tokens


def special_ids(metadata: Fields) -> dict[str, Any]:
    """``bos_token_id``, ``eos_token_id`` and so on, as ``config.json`` has them; all are in the vocabulary.

    The end of a turn ends a text too.
    """
    size = len(token_strings(metadata))
    ids: dict[str, Any] = {}
    for name, key in _SPECIAL_KEYS.items():
        if f"tokenizer.ggml.{key}" in metadata:
            ids[name] = _token_id(metadata, key, size)
    if "tokenizer.ggml.eot_token_id" in metadata and "eos_token_id" in ids:
        turn = _token_id(metadata, "eot_token_id", size)
        if turn != ids["eos_token_id"]:
            ids["eos_token_id"] = [ids["eos_token_id"], turn]
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
        Not a byte-level BPE, or one that splits text in a way that is not known here.
    CorruptModelError
        Vocabulary, token types and merges do not fit together.
    """
    style = _style(metadata)
    tokens = token_strings(metadata)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise CorruptModelError(f"{metadata.source} has a token twice; download the file again")
    try:
        model = models.BPE(vocabulary, _merges(metadata), ignore_merges=style.ignore_merges)
    except Exception as error:  # the library raises bare Exception
        raise CorruptModelError(
            f"{metadata.source} has merges that do not fit the vocabulary ({one_line(error)}); download it again"
        ) from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = style.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(_added_tokens(metadata, tokens))
    if (frame := _frame(metadata, tokens, style)) is not None:
        tokenizer.post_processor = frame
    return tokenizer


def _style(metadata: Fields) -> _Style:
    model = metadata.text("tokenizer.ggml.model")
    if model != "gpt2":
        raise UnsupportedModelError(
            f"the GGUF tokenizer {one_line(model, 40)!r} is not supported; supported: gpt2 (byte-level BPE). "
            "Use the Hugging Face folder of this model"
        )
    pre = metadata.text("tokenizer.ggml.pre", "default")
    if pre not in _STYLES:
        raise UnsupportedModelError(
            f"the pre-tokenizer {one_line(pre, 40)!r} is not supported; supported: {', '.join(_STYLES)}; "
            "use the Hugging Face folder of this model"
        )
    return _STYLES[pre]


def _merges(metadata: Fields) -> list[tuple[str, str]]:
    merges = metadata.raw("tokenizer.ggml.merges")
    if not isinstance(merges, list) or not all(
        isinstance(merge, str) and merge.count(" ") == 1 for merge in merges
    ):
        raise CorruptModelError(f"{metadata.source} has no valid tokenizer.ggml.merges; download the file again")
    return [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]


def _added_tokens(metadata: Fields, tokens: list[str]) -> list[AddedToken]:
    kinds = metadata.raw("tokenizer.ggml.token_type") or [1] * len(tokens)
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise CorruptModelError(
            f"{metadata.source} has {len(tokens)} tokens but another number of token types; download it again"
        )
    return [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]


def _frame(metadata: Fields, tokens: list[str], style: _Style) -> Any:
    """What is put around a plain text: BOS, EOS, or nothing."""
    ids = special_ids(metadata)
    eos: Any = ids.get("eos_token_id")
    adds_bos = metadata.flag("tokenizer.ggml.add_bos_token", style.adds_bos) and "bos_token_id" in ids
    adds_eos = metadata.flag("tokenizer.ggml.add_eos_token", False) and eos is not None
    if not (adds_bos or adds_eos):
        return None
    before = [ids["bos_token_id"]] if adds_bos else []
    after = [eos[0] if isinstance(eos, list) else eos] if adds_eos else []
    parts = [tokens[i] for i in before] + ["$A"] + [tokens[i] for i in after]
    return processors.TemplateProcessing(
        single=parts, pair=[*parts, "$B"], special_tokens=[(tokens[i], i) for i in before + after]
    )
