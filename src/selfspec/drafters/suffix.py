"""Suffix look-up: the draft follows the longest suffix of the text that stood before, where it went on most often.

A suffix automaton of prompt and output gives matches of any length, and counts all their continuations (compare
SAM-Decoding, arXiv 2411.10666, and SuffixDecoding, arXiv 2411.04975). How long a draft is follows from how often
matches of that length and evidence were right in this text, and from what a row costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from selfspec.drafters.automaton import ROOT, SuffixAutomaton
from selfspec.drafters.base import option
from selfspec.drafters.lookup import SEPARATOR, Guess, LookUp, LookUpOptions, Memory, lead_of
from selfspec.drafters.trust import Evidence, agreement, kind_of
from selfspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from selfspec.context import Text
    from selfspec.model.config import ModelConfig

MOST_CONTINUATIONS = 64
"""How many continuations of a match are looked at: the first that was seen, and the newest of the others."""


@dataclass(frozen=True)
class SuffixOptions(LookUpOptions):
    """Options of `Suffix`."""

    min_match: int = option(1, "Shortest match to copy from, in tokens.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_match < 1:
            raise OptionError(f"min_match is {self.min_match}; it must be at least 1")


class _Seen(Memory):
    """The automaton of one text, of what stands before it, and the guesses that follow."""

    def __init__(self, options: SuffixOptions, lead: list[int]) -> None:
        super().__init__()
        self._options = options
        self._automaton = SuffixAutomaton()
        self._automaton.extend(lead)
        self._lead = len(lead)

    def update(self, tokens: Sequence[int]) -> None:
        """Append what is new."""
        self._automaton.extend(tokens[self._automaton.size - self._lead :])

    def chains(self) -> list[Iterator[Guess]]:
        """What followed the longest suffix."""
        return [self._guesses()]

    def _guesses(self) -> Iterator[Guess]:
        automaton = self._automaton
        state, length = automaton.match()
        while length >= self._options.min_match:
            if not (ranked := self._ranked(state)):  # the end of the text, or of the prediction
                at_end = automaton.latest(state) == automaton.size
                state = automaton.shorter(state)
                length = length if at_end else automaton.length(state)
                continue
            (_, latest, token, following), *rest = ranked
            is_predicted = latest <= self._lead
            evidence = Evidence.PREDICTED if is_predicted else self._evidence(state, token, following)
            yield Guess(token, kind_of(evidence, length), [other[2] for other in rest], is_predicted)
            state, length = following, length + 1

    def _ranked(self, state: int) -> list[tuple[int, int, int, int]]:
        """The continuations, the most frequent first, then the latest: (count, latest end, token, state)."""
        automaton = self._automaton
        found = [
            (automaton.count(after), automaton.latest(after), token, after)
            for token, after in islice(automaton.continuations(state), MOST_CONTINUATIONS)
            if token != SEPARATOR
        ]
        return sorted(found, reverse=True) if len(found) > 1 else found

    def _evidence(self, state: int, token: int, following: int) -> Evidence:
        """What the places of a match, or those of a shorter one if there is a single place, say for ``token``."""
        automaton = self._automaton
        places = self._places(state)
        if places > 1:
            return agreement(automaton.count(following), places)
        shorter = automaton.shorter(state)
        if shorter == ROOT:
            return Evidence.ONLY
        agreeing = automaton.count(automaton.step(shorter, token))
        return Evidence.BACKED if agreeing >= self._places(shorter) else Evidence.DOUBTED

    def _places(self, state: int) -> int:
        """How often a match went on: it may stand at the end of the text, too."""
        return self._automaton.count(state) - (self._automaton.latest(state) == self._automaton.size)


class Suffix(LookUp):
    """Copies what followed the longest suffix of the text that stood before, the most frequent token first.

    Siblings are the next most frequent ones.
    """

    Options = SuffixOptions
    name = "suffix"
    summary = "copies what followed the longest match earlier in prompt and output, where it pays; runs no layers"

    def __init__(self, options: SuffixOptions, config: ModelConfig) -> None:
        super().__init__(options, config)
        self._settings = options

    def memory(self, text: Text) -> Memory:
        """An automaton."""
        return _Seen(self._settings, lead_of(text))
