"""Suffix look-up: the draft follows the longest suffix of the text that stood before, where it went on most often.

A suffix automaton of prompt and output gives matches of any length, and counts all their continuations (compare
SAM-Decoding, arXiv 2411.10666, and SuffixDecoding, arXiv 2411.04975). How long a draft is follows from how often
matches of that length and evidence were right in this text, and from what a row costs.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec.drafters.automaton import ROOT, SuffixAutomaton
from selfspec.drafters.base import option
from selfspec.drafters.corpus import DEPTH, Corpus
from selfspec.drafters.corpus_files import open_corpus
from selfspec.drafters.lookup import SEPARATOR, Guess, LookUp, LookUpOptions, Memory, lead_of
from selfspec.drafters.trust import Evidence, agreement, kind_of
from selfspec.errors import OptionError
from selfspec.types import require_least

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from selfspec.context import Text
    from selfspec.drafters.base import Host
    from selfspec.model.config import ModelConfig

MOST_CONTINUATIONS = 64
"""How many continuations of a match are looked at: the first that was seen, and the newest of the others."""


@dataclass(frozen=True)
class SuffixOptions(LookUpOptions):
    """Options of `Suffix`."""

    min_match: int = option(1, "Shortest match to copy from, in tokens.")
    corpus: tuple[str, ...] = option(
        (),
        "Also copy from this file: text, .jsonl, or token ids in .npy; indexed once. May be given several times.",
        opens=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        given = (self.corpus,) if isinstance(self.corpus, str | os.PathLike) else self.corpus
        if not isinstance(given, list | tuple) or not all(isinstance(f, str | os.PathLike) for f in given):
            raise OptionError(f"corpus is {self.corpus!r}; it must be a list of files")
        object.__setattr__(self, "corpus", tuple(os.fspath(file) for file in given))
        require_least(self, min_match=1)


class _Seen(Memory):
    """The automaton of one text and of what stands before it, perhaps a corpus, and the guesses that follow."""

    def __init__(self, options: SuffixOptions, lead: list[int], corpus: Corpus | None) -> None:
        super().__init__()
        self._options = options
        self._corpus = corpus
        self._tail: Sequence[int] = ()
        self._automaton = SuffixAutomaton()
        self._automaton.extend(lead)
        self._lead = len(lead)

    def update(self, tokens: Sequence[int]) -> None:
        """Append what is new."""
        self._tail = tokens[-DEPTH:]
        self._automaton.extend(tokens[self._automaton.size - self._lead :])

    def chains(self, ahead: Sequence[int] = ()) -> list[Iterator[Guess]]:
        """What followed the longest suffix, in the text and in the corpus."""
        own = self._guesses(ahead)
        return [own] if self._corpus is None else [own, self._from_corpus(self._corpus, ahead)]

    def _from_corpus(self, corpus: Corpus, ahead: Sequence[int]) -> Iterator[Guess]:
        """The most frequent token at the places of the longest match, then at those of them that agree."""
        length, places = corpus.find([*self._tail, *ahead][-DEPTH:] if ahead else self._tail)
        while places and length >= self._options.min_match:
            seen = Counter(corpus.tokens[place] for place in places)
            (token, agreeing), *rest = seen.most_common()
            if token == corpus.separator:
                return
            evidence = Evidence(Evidence.CORPUS_ONLY + agreement(agreeing, len(places)))
            beside = [other for other, _ in rest if other != corpus.separator]
            yield Guess(token, kind_of(evidence, length), beside)
            end = len(corpus.tokens) - 1
            places = [place + 1 for place in places if corpus.tokens[place] == token and place < end]
            length += 1

    def _guesses(self, ahead: Sequence[int]) -> Iterator[Guess]:
        automaton = self._automaton
        state, length = automaton.match(ahead)
        while state != ROOT and length >= self._options.min_match:
            if not (ranked := self._ranked(state)):
                is_end = not automaton.continuations(state, 1)  # of the text: the draft repeats itself
                state = automaton.shorter(state)
                length = length if is_end else automaton.length(state)  # else of the prediction
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
            for token, after in automaton.continuations(state, MOST_CONTINUATIONS)
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
    paper = "SAM-Decoding (arXiv 2411.10666), SuffixDecoding (2411.04975)"
    pays = "where an answer repeats its prompt, itself, a corpus or a prediction: edits, code, retrieval, forms"

    def __init__(self, options: SuffixOptions, config: ModelConfig) -> None:
        super().__init__(options, config)
        self._settings = options
        self._corpus: Corpus | None = None

    def bind(self, host: Host) -> None:
        """Open the corpus; its index is made once, and mapped once for an engine."""
        files, size = self._settings.corpus, self.config.vocab_size
        if files:
            key = ("corpus", files)
            self._corpus = host.kept(key, lambda: open_corpus(files, host.tokenizer, size, host.notify))

    def memory(self, text: Text) -> Memory:
        """An automaton, and the corpus."""
        assert self._corpus is not None or not self._settings.corpus, "not bound to an engine"
        return _Seen(self._settings, lead_of(text), self._corpus)
