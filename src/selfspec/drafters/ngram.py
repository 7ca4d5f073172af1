"""Prompt look-up: the draft is copied from where the last few tokens stood before (longest match first).

Known as prompt look-up decoding and n-gram speculation; it runs no layers. Every occurrence of each n-gram of
the prompt and the output is indexed as the text grows, so a look-up costs a few dictionary reads. How often such
matches were right is counted per text, and a token is drafted only where it is expected to pay for its row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from selfspec.drafters.base import Drafter, option
from selfspec.drafters.comb import Comb, CombOptions
from selfspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from selfspec.context import Context, Text
    from selfspec.model.config import ModelConfig
    from selfspec.rounds import Commit
    from selfspec.types import Draft

KEPT_OCCURRENCES = 16
MARGIN = 1.5
"""How many times its price a row must bring: the time could also be spent on rounds whose drafts are good."""


@dataclass(frozen=True)
class NgramOptions(CombOptions):
    """Options of `Ngram`."""

    gamma: int = option(7, "Most tokens to draft per round (γ); 0 drafts nothing.")
    adaptive: bool = option(
        True,
        "Draft a token only if it is expected to pay: by how often such matches were right, and what a row costs.",
    )
    max_ngram: int = option(5, "Longest n-gram to look up; longer matches are tried first.")
    min_ngram: int = option(1, "Shortest n-gram to look up.")

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

    def find(self, tokens: Sequence[int]) -> list[int]:
        """Where the longest n-gram that ends ``tokens`` and stood before went on; the latest place comes last."""
        for size in reversed(self._sizes):
            if size <= len(tokens) and (places := self._followers.get(tuple(tokens[-size:]))):
                return places
        return []


class Trust:
    """How often a copied token is right, by the length of the match behind it and what other occurrences say.

    The acceptance rates to begin with count like ``WEIGHT`` tokens; they were measured on greedy answers of
    SmolLM2-135M to the six tasks of Spec-Bench. Older tokens count less.
    """

    LENGTHS = (1, 2, 3, 4, 6, 12)
    RATES = (
        (0.29, 0.54, 0.68, 0.75, 0.85, 0.95),  # the only occurrence
        (0.66, 0.78, 0.82, 0.88, 0.92, 0.97),  # all occurrences go on with the token
        (0.35, 0.48, 0.45, 0.50, 0.60, 0.70),  # more than half
        (0.15, 0.20, 0.27, 0.30, 0.35, 0.40),  # half or fewer
    )
    WEIGHT = 8.0
    MEMORY = 0.98

    def __init__(self) -> None:
        self._counts = [[(rate * self.WEIGHT, self.WEIGHT) for rate in rates] for rates in self.RATES]

    @classmethod
    def kind(cls, length: int, agreeing: int, occurrences: int) -> tuple[int, int]:
        """What is counted together: ``length`` tokens match, ``agreeing`` of the ``occurrences`` go on alike."""
        if occurrences == 1:
            row = 0
        elif agreeing == occurrences:
            row = 1
        else:
            row = 2 if 2 * agreeing > occurrences else 3
        return row, bisect_right(cls.LENGTHS, length) - 1

    def rate(self, kind: tuple[int, int]) -> float:
        """The share of tokens of this kind that were right."""
        right, seen = self._counts[kind[0]][kind[1]]
        return right / seen

    def learn(self, kind: tuple[int, int], is_right: bool) -> None:
        """Count a token, drafted or not."""
        right, seen = self._counts[kind[0]][kind[1]]
        self._counts[kind[0]][kind[1]] = (self.MEMORY * right + is_right, self.MEMORY * seen + 1.0)


class _Memory:
    """What is kept for one text: its index, its acceptance rates, and what it considered in this round."""

    def __init__(self, options: NgramOptions) -> None:
        self.index = _Index(options)
        self.trust = Trust()
        self.considered: list[tuple[int, tuple[int, int]]] = []  # (token, kind); the last one may not be drafted

    def learn(self, tokens: Sequence[int]) -> None:
        """Compare what was considered with the ``tokens`` that came: also a token that was not drafted teaches."""
        for (guess, kind), token in zip(self.considered, tokens, strict=False):
            self.trust.learn(kind, guess == token)
            if guess != token:
                break
        self.considered = []


class Ngram(Drafter):
    """Copies what followed the latest occurrence of the longest matching n-gram.

    The confidence of a copied token is the acceptance rate of its kind (`Trust`). A draft goes on while the
    expected gain, the product of the confidences so far, is well above the price of a row on this runtime
    (`PassCosts.price`). Siblings are the other tokens that the occurrences go on with, the latest first.
    """

    Options = NgramOptions
    name = "ngram"
    summary = "copies what followed the same n-gram earlier in prompt and output, where it pays; runs no layers"
    is_free = True

    def __init__(self, options: NgramOptions, config: ModelConfig) -> None:
        super().__init__(options, config)
        self._settings = options
        self._memories: dict[Text, _Memory] = {}

    def begin(self, text: Text) -> None:
        """Start an index; the prompt enters it with the first look-up."""
        self._memories[text] = _Memory(self._settings)

    def observe(self, text: Text, commit: Commit) -> None:
        """Count which of the considered tokens came."""
        self._memories[text].learn(commit.tokens)

    def end(self, text: Text) -> None:
        """Drop what was kept."""
        del self._memories[text]

    def propose(self, context: Context, texts: Sequence[Text], gammas: Sequence[int]) -> list[Draft]:
        """What followed the longest match, up to γ tokens, as far as it pays, not past an end-of-text token."""
        drafts: list[Draft] = []
        price = partial(context.runtime.costs.price, texts=len(texts)) if self._settings.adaptive else _free
        rows = len(texts)
        for text, gamma in zip(texts, gammas, strict=True):
            drafts.append(self._look_up(text, gamma, price, rows))
            rows += len(drafts[-1])
        return drafts

    def _look_up(self, text: Text, gamma: int, price: Callable[[int], float], rows: int) -> Draft:
        """The draft of one text, in a pass of ``rows`` rows so far; a row beside n must bring ``price(n)``."""
        memory, source, known = self._memories[text], text.tokens, len(text.tokens)
        memory.index.update(source)
        comb = Comb(self._settings, text.room(), gamma)
        draft, gain = comb.tokens, 1.0
        places = memory.index.find(source)
        length = _match(source, places[-1]) if places else 0
        while places and len(draft) < gamma:
            at = places[-1] + len(draft)  # the latest occurrence; past the end the draft repeats itself
            token = source[at] if at < known else draft[at - known]
            agreeing = [p for p in places if p + len(draft) < known and source[p + len(draft)] == token]
            kind = Trust.kind(length + len(draft), max(len(agreeing), 1), len(places))
            memory.considered.append((token, kind))
            confidence = memory.trust.rate(kind)
            gain *= confidence
            ahead = (source[p + len(draft)] for p in reversed(places) if p + len(draft) < known)
            others = [other for other in dict.fromkeys(ahead) if other != token][: comb.width]
            if confidence < self._settings.confidence or gain < MARGIN * price(rows) * (1 + len(others)):
                break
            comb.add(token, others, chance=confidence)
            rows += 1 + len(others)
            if token in self.config.eos_token_ids:
                break
            places = [*(p for p in agreeing if p != places[-1]), places[-1]]
        return comb.draft()


def _free(_rows: int) -> float:
    return 0.0


def _match(tokens: Sequence[int], place: int) -> int:
    """How many tokens before ``place`` equal the last ones, as far as it matters."""
    most = min(place, Trust.LENGTHS[-1])
    return next((i for i in range(most) if tokens[place - 1 - i] != tokens[-1 - i]), most)
