"""A drafter of your own in 30 lines: it drafts what has followed a token most often in the texts that it sees."""

import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise

import selfspec
from selfspec.drafters.base import Drafter, DraftOptions, option
from selfspec.types import Draft


@dataclass(frozen=True)
class PairOptions(DraftOptions):
    """Flags, help and checks of types are made from these fields."""

    least: int = option(1, "How often a pair must have come before it is drafted.")


class Pairs(Drafter):
    """Counts which token follows which."""

    Options = PairOptions
    name = "pairs"
    summary = "what most often followed the last token"

    def __init__(self, options, config):
        super().__init__(options, config)
        self.followers = defaultdict(Counter)

    def begin(self, text):
        """Count the pairs of a prompt."""
        self.count(text.tokens)

    def propose(self, context, texts, gammas):
        """A draft for each text, of at most γ tokens."""
        return [Draft(tuple(self.chain(text.tokens[-1], gamma))) for text, gamma in zip(texts, gammas, strict=True)]

    def chain(self, token, gamma):
        """Follow the most frequent pairs."""
        for _ in range(gamma):
            ((token, times),) = self.followers[token].most_common(1) or ((0, 0),)
            if times < self.options.least:
                return
            yield token

    def observe(self, text, commit):
        """Count what a round has added."""
        self.count(text.tokens[-len(commit.tokens) - 1 :])

    def count(self, tokens):
        """Learn pairs."""
        for before, after in pairwise(tokens):
            self.followers[before][after] += 1


if __name__ == "__main__":
    engine = selfspec.load(*sys.argv[1:], draft=Pairs, gamma=3)
    question = "Correct the spelling: The Douro is the bigest river of Portugal. The Minho is the coldest one."
    done = engine.generate(question, max_new_tokens=64)
    assert done.text == engine.generate(question, max_new_tokens=64, draft="plain").text
    print(f"{done.stats.accepted} of {done.stats.drafted} draft tokens held, in {done.stats.rounds} rounds")
