"""How byte-level BPE tokenizers of GGUF files split a text first: ``tokenizer.ggml.pre``, as data.

The patterns and normalisations are those that the models were trained with, as their ``tokenizer.json`` has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tokenizers import Regex, normalizers, pre_tokenizers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ENDINGS = "'s|'t|'re|'ve|'m|'ll|'d"
_GPT2 = rf"{_ENDINGS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
_DIGIT, _DIGITS = r"\p{N}", r"\p{N}{1,3}"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _tiktoken(digits: str) -> str:
    """The pattern of OpenAI's cl100k, with numbers cut as ``digits`` says."""
    return rf"(?i:{_ENDINGS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"


def _cased(digits: str, endings: str) -> str:
    """The pattern of OpenAI's o200k, which cuts where a word changes from lower to upper case."""
    before = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{before}{_UPPER}*{_LOWER}+{endings}|{before}{_UPPER}+{_LOWER}*{endings}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


class Style(NamedTuple):
    """How a text is split: by each of ``patterns`` in turn, matches and what is between them alike.

    ``late`` patterns come after bytes have become printable, so that they may cut within a character.
    ``punctuation``: runs of punctuation are cut out before all that.
    ``composed``: it is brought into Unicode's form NFC before. ``ignore_merges``: a piece that is a token stays
    one. ``adds_bos``, ``adds_eos``: what holds where the file does not say.
    """

    patterns: tuple[str, ...]
    late: tuple[str, ...] = ()
    punctuation: bool = False
    composed: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False
    adds_eos: bool = False

    def pre_tokenizer(self) -> Any:
        """The step of the ``tokenizers`` library; bytes become printable in it."""
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        first = [pre_tokenizers.Punctuation("contiguous")] if self.punctuation else []
        return pre_tokenizers.Sequence([*first, *_splits(self.patterns), bytes_, *_splits(self.late)])

    def normalizer(self) -> Any:
        """The step before it, or None."""
        return normalizers.NFC() if self.composed else None


def _splits(patterns: Sequence[str]) -> list[Any]:
    return [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]


_GPT2_STYLE = Style((_GPT2,))
_LLAMA3 = Style((_tiktoken(_DIGITS),), ignore_merges=True, adds_bos=True)
_STARCODER = Style((_DIGIT, _GPT2))
_O200K = Style((_cased(_DIGITS, f"(?i:{_ENDINGS})?"),))

STYLES: Mapping[str, Style] = {
    "default": Style((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": _GPT2_STYLE,
    "phi-2": _GPT2_STYLE,
    "exaone4": _GPT2_STYLE,
    "olmo": Style((_GPT2,), composed=True),
    "mpt": Style((_GPT2,), composed=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "smaug-bpe": Style((_tiktoken(_DIGITS),)),
    "dbrx": Style((_tiktoken(_DIGITS),)),
    "chatglm-bpe": Style((_tiktoken(_DIGITS),)),
    "glm4": Style((_tiktoken(_DIGITS),), ignore_merges=True),
    "qwen2": Style((_tiktoken(_DIGIT),), composed=True),
    "deepseek-r1-qwen": Style((_tiktoken(_DIGIT),), composed=True),
    "stablelm2": Style((_tiktoken(_DIGIT),), composed=True),
    "smollm": _STARCODER,
    "starcoder": _STARCODER,
    "refact": _STARCODER,
    "exaone": _STARCODER,
    "command-r": Style((_DIGIT, _GPT2), composed=True),
    "falcon": Style((_GPT2,), late=(r"\p{N}+", "[0-9][0-9][0-9]"), punctuation=True),
    "tekken": Style((_cased(_DIGIT, ""),), ignore_merges=True, adds_bos=True),
    "gpt-4o": _O200K,
    "llama4": _O200K,
}
