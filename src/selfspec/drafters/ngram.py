"""Prompt look-up: the draft is copied from where the last few tokens stood before (longest match first).

Known as prompt look-up decoding and n-gram speculation; it runs no layers. Every occurrence of each n-gram of
the prompt and the output is indexed as the text grows, so a look-up costs a few dictionary reads.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec.drafters.base import Drafter, option
from selfspec.drafters.comb import Comb, CombOptions
from selfspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.context import Context, Text
    from selfspec.model.config import ModelConfig
    from selfspec.types import Draft

KEPT_OCCURRENCES = 16


@dataclass(frozen=True)
class NgramOptions(CombOptions):
    """Options of `Ngram`."""

    max_ngram: int = option(5, "Longest n-gram to look up; longer matches are tried first.")
    min_ngram: int = option(2, "Shortest n-gram to look up.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.min_ngram <= self.max_ngram <= 32:
            raise OptionError(
                f"min_ngram is {self.min_ngram} and max_ngram {self.max_ngram}; "
                "they must satisfy 1 <= min_ngram <= max_ngram <= 32"
            )


class _Index:
    """Where each n-gram of one text ended: n-gram -> positions of the token that followed it."""

    def __init__(self, options: NgramOptions) -> None:
        self._sizes = range(options.min_ngram, options.max_ngram + 1)
        self._followers: dict[tuple[int, ...], list[int]] = defaultdict(list)
        self._done = 0

    def update(self, tokens: Sequence[int]) -> None:
        """Index every n-gram that some token of ``tokens`` follows."""
        for position in range(max(self._done, 1), len(tokens)):
            for size in self._sizes:
                if size > position:
                    break
                places = self._followers[tuple(tokens[position - size : position])]
                places.append(position)
                del places[:-KEPT_OCCURRENCES]
        self._done = len(tokens)

    def find(self, tokens: Sequence[int]) -> tuple[int, list[int]]:
        """The size of the longest n-gram that ends ``tokens`` and stood before, and where it went on."""
        for size in reversed(self._sizes):
            if size <= len(tokens) and (places := self._followers.get(tuple(tokens[-size:]))):
                return size, places
        return 0, []


class Ngram(Drafter):
    """Copies what followed the latest occurrence of the longest matching n-gram.

    The confidence of a copied token is (agreeing + n - 1) / (occurrences + n): of the occurrences of the
    matched n-gram that agree with the draft so far, how many go on with this token; a longer match counts
    like n - 1 more that do, one that does not. Siblings are the other tokens that those occurrences go on with,
    the latest first.
    """

    Options = NgramOptions
    name = "ngram"
    summary = "copies what followed the same n-gram earlier in prompt and output; runs no layers"

    def __init__(self, options: NgramOptions, config: ModelConfig) -> None:
        super().__init__(options, config)
        self._settings = options
        self._indices: dict[Text, _Index] = {}

    def begin(self, text: Text) -> None:
        """Start an index; the prompt enters it with the first look-up."""
        super().begin(text)
        self._indices[text] = _Index(self._settings)

    def end(self, text: Text) -> None:
        """Drop the index."""
        super().end(text)
        del self._indices[text]

    def propose(self, context: Context, texts: Sequence[Text], gammas: Sequence[int]) -> list[Draft]:  # noqa: ARG002
        """What followed the longest match, up to γ tokens and not past an end-of-text token."""
        return [self._look_up(text, gamma) for text, gamma in zip(texts, gammas, strict=True)]

    def _look_up(self, text: Text, gamma: int) -> Draft:
        index = self._indices[text]
        index.update(text.tokens)
        size, places = index.find(text.tokens)
        source, known = text.tokens, len(text.tokens)
        comb = Comb(self._settings, text.room(), gamma)
        draft = comb.tokens
        while places and len(draft) < gamma:
            at = places[-1] + len(draft)  # the latest occurrence; past the end the draft repeats itself
            token = source[at] if at < known else draft[at - known]
            agreeing = [p for p in places if p + len(draft) < known and source[p + len(draft)] == token]
            confidence = (max(len(agreeing), 1) + size - 1) / (len(places) + size)
            if self.stops[text].before(confidence):
                break
            ahead = (source[p + len(draft)] for p in reversed(places) if p + len(draft) < known)
            others = [other for other in dict.fromkeys(ahead) if other != token] if comb.width else []
            comb.add(token, others[: comb.width])
            if token in self.config.eos_token_ids:
                break
            places = [*(p for p in agreeing if p != places[-1]), places[-1]]
        return comb.draft()
