"""SentencePiece tokenizers of GGUF files: merges by score (Llama 2, Gemma, Phi-3), and unigrams (T5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers

from selfspec.errors import CorruptModelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from selfspec.model.reading import Fields

_NORMAL, _USER_DEFINED, _BYTE = 1, 4, 6
_SPACE = "▁"


def merging(metadata: Fields, tokens: Sequence[str], kinds: Sequence[int]) -> Tokenizer:
    """Pieces of a text are merged to a token, those with the highest score first; what is left becomes bytes."""
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = _merges(vocabulary, _scores(metadata, tokens), kinds)
    unknown = _unknown(metadata, tokens)
    has_bytes = _BYTE in kinds
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=not has_bytes, byte_fallback=has_bytes)
    )
    return _with_spaces(tokenizer, metadata, [])


def unigram(metadata: Fields, tokens: Sequence[str], kinds: Sequence[int]) -> Tokenizer:
    """The likeliest way to cut a text into tokens, which have the logarithm of their probability as score."""
    scores, number = _scores(metadata, tokens), metadata.integer("tokenizer.ggml.unknown_token_id", 2, minimum=0)
    pieces = list(zip(tokens, scores, strict=True))
    model = models.Unigram(pieces, number, _BYTE in kinds)
    steps: list[Any] = []
    if (table := metadata.raw("tokenizer.ggml.precompiled_charsmap")) is not None:
        steps.append(normalizers.Precompiled(_bytes(metadata, table)))
    if metadata.flag("tokenizer.ggml.remove_extra_whitespaces", False):
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    return _with_spaces(Tokenizer(model), metadata, steps)


def _with_spaces(tokenizer: Tokenizer, metadata: Fields, steps: list[Any]) -> Tokenizer:
    """A space is a visible character, and by default there is one before a text."""
    adds = metadata.flag("tokenizer.ggml.add_space_prefix", True)
    prefix = [normalizers.Prepend(_SPACE)] if adds else []
    tokenizer.normalizer = normalizers.Sequence([*steps, *prefix, normalizers.Replace(" ", _SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if adds else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def _merges(vocabulary: Mapping[str, int], scores: Sequence[float], kinds: Sequence[int]) -> list[tuple[str, str]]:
    """Every way in which two tokens make a third, the best third first."""
    own = {token: number for token, number in vocabulary.items() if kinds[number] in (_NORMAL, _USER_DEFINED)}
    found = [
        (-scores[number], vocabulary[token[:cut]], token[:cut], token[cut:])
        for token, number in own.items()
        for cut in range(1, len(token))
        if token[:cut] in own and token[cut:] in own
    ]
    return [(left, right) for *_, left, right in sorted(found)]


def _scores(metadata: Fields, tokens: Sequence[str]) -> list[float]:
    scores = metadata.raw("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise CorruptModelError(
            f"{metadata.source} has {len(tokens)} tokens but another number of scores; download it again"
        )
    return [float(score) for score in scores]


def _unknown(metadata: Fields, tokens: Sequence[str]) -> str | None:
    number = metadata.integer("tokenizer.ggml.unknown_token_id", 0, minimum=0)
    return tokens[number] if number < len(tokens) else None


def _bytes(metadata: Fields, table: Any) -> bytes:
    if not isinstance(table, list) or not all(isinstance(value, int) and -129 < value < 256 for value in table):
        raise metadata.wrong("tokenizer.ggml.precompiled_charsmap", table, "a list of bytes")
    return bytes(value % 256 for value in table)
