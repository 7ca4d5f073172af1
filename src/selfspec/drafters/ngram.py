"""Prompt look-up: the draft is copied from where the last few tokens stood before (longest match first).

Known as prompt look-up decoding and n-gram speculation; it runs no layers. Every occurrence of each n-gram of
the prompt and the output is indexed as the text grows, so a look-up costs a few dictionary reads. How often such
matches were right is counted per text, and a token is drafted only where it is expected to pay for its row.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec.drafters.base import option
from selfspec.drafters.lookup import SEPARATOR, Guess, LookUp, LookUpOptions, Memory, lead_of
from selfspec.drafters.trust import LENGTHS, Evidence, agreement, kind_of
from selfspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from selfspec.context import Text
    from selfspec.model.config import ModelConfig

KEPT_OCCURRENCES = 16


@dataclass(frozen=True)
class NgramOptions(LookUpOptions):
    """Options of `Ngram`."""

    max_ngram: int = option(5, "Longest n-gram to look up; longer matches are tried first.")
    min_ngram: int = option(1, "Shortest n-gram to look up.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.min_ngram <= self.max_ngram <= 32:
            raise OptionError(
                f"min_ngram is {self.min_ngram} and max_ngram {self.max_ngram}; "
                "they must satisfy 1 <= min_ngram <= max_ngram <= 32"
            )


class _Index(Memory):
    """Where each n-gram of one text ended: n-gram -> positions of the token that followed it."""

    def __init__(self, options: NgramOptions, lead: list[int]) -> None:
        super().__init__()
        self._sizes = range(options.min_ngram, options.max_ngram + 1)
        self._followers: dict[tuple[int, ...], list[int]] = defaultdict(list)
        self._tokens = lead
        self._lead = len(lead)
        self._done = 1

    def update(self, tokens: Sequence[int]) -> None:
        """Index every n-gram that some token follows."""
        known = self._tokens
        known += tokens[len(known) - self._lead :]
        for position in range(self._done, len(known)):
            for size in self._sizes:
                if size > position:
                    break
                places = self._followers[tuple(known[position - size : position])]
                places.append(position)
                del places[:-KEPT_OCCURRENCES]
        self._done = len(known)

    def chains(self, ahead: Sequence[int] = ()) -> list[Iterator[Guess]]:
        """What followed the latest occurrence of the longest n-gram."""
        return [self._guesses(ahead)]

    def _guesses(self, ahead: Sequence[int]) -> Iterator[Guess]:
        tokens, known = self._tokens, len(self._tokens)
        tail = [*tokens[-max(LENGTHS[-1], self._sizes[-1]) :], *ahead]
        places = self._find(tail)
        length = self._match(places[-1], tail) if places else 0
        beyond, depth = list(ahead), 0
        while places:
            at = places[-1] + depth  # the latest occurrence; past the end the draft repeats itself
            token = tokens[at] if at < known else beyond[at - known]
            if token == SEPARATOR:
                return
            agreeing = [p for p in places if p + depth < known and tokens[p + depth] == token]
            is_predicted = at < self._lead
            evidence = Evidence.PREDICTED if is_predicted else agreement(len(agreeing), len(places))
            others = dict.fromkeys(tokens[p + depth] for p in reversed(places) if p + depth < known)
            beside = [other for other in others if other not in {token, SEPARATOR}]
            yield Guess(token, kind_of(evidence, length + depth), beside, is_predicted)
            beyond.append(token)
            depth += 1
            places = [*(p for p in agreeing if p != places[-1]), places[-1]]

    def _find(self, tail: Sequence[int]) -> list[int]:
        """Where the longest n-gram that ends the text and stood before went on; the latest place comes last."""
        for size in reversed(self._sizes):
            if size <= len(tail) and (places := self._followers.get(tuple(tail[-size:]))):
                return places
        return []

    def _match(self, place: int, tail: Sequence[int]) -> int:
        """How many tokens before ``place`` equal the last ones, as far as it matters."""
        tokens, most = self._tokens, min(place, LENGTHS[-1], len(tail))
        return next((i for i in range(most) if tokens[place - 1 - i] != tail[-1 - i]), most)


class Ngram(LookUp):
    """Copies what followed the latest occurrence of the longest matching n-gram.

    Siblings are the other tokens that the occurrences go on with, the latest first.
    """

    Options = NgramOptions
    name = "ngram"
    summary = "copies what followed the same n-gram earlier in prompt and output, where it pays; runs no layers"
    paper = "prompt look-up decoding (2023), LLMA (arXiv 2304.04487)"
    pays = "where `suffix` does; the simpler method, with matches of a few tokens and the latest place only"

    def __init__(self, options: NgramOptions, config: ModelConfig) -> None:
        super().__init__(options, config)
        self._settings = options

    def memory(self, text: Text) -> Memory:
        """An index of n-grams."""
        return _Index(self._settings, lead_of(text))
