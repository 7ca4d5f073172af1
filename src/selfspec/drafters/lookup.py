"""What drafters that copy have in common: guesses with a kind, drafted as far as they are expected to pay."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from selfspec.drafters.ahead import Ahead, Outcome
from selfspec.drafters.base import Drafter, inherited, option
from selfspec.drafters.comb import Comb, CombOptions, after
from selfspec.drafters.trust import LENGTHS, Evidence, Kind, Trust
from selfspec.types import Draft, OneHot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from selfspec.context import Context, Text
    from selfspec.model.config import ModelConfig
    from selfspec.rounds import Commit
    from selfspec.settings import ConstraintAhead, Prefix

MARGIN = 1.5
"""How many times its price a row must bring: the time could also be spent on rounds whose drafts are good."""
UNSTATED = 0.7
"""How likely a token that another drafter has proposed is taken to hold where that does not say."""
SEPARATOR = -1
"""Stands between texts in one index: nothing matches it, and it is never drafted."""


@dataclass(frozen=True)
class LookUpOptions(CombOptions):
    """Options of drafters that copy."""

    gamma: int = inherited(CombOptions, "gamma", 7)
    adaptive: bool = option(
        True,
        "Draft a token only if it is expected to pay: by how often such matches were right, and what a row costs.",
    )


class Guess(NamedTuple):
    """A token that may come next, what it is counted with, and the ``others`` that stood in its place."""

    token: int
    kind: Kind
    others: Sequence[int] = ()
    is_predicted: bool = False


class Memory(ABC):
    """What is kept for one text: its acceptance rates, and what was considered in this round.

    A subclass indexes the text, and gives one chain of guesses or more, of which the best is drafted.
    """

    def __init__(self) -> None:
        self.trust = Trust()
        # chains, each with what it was taken to follow; the last one of a chain may not be drafted
        self.considered: list[tuple[Sequence[int], list[Guess]]] = []
        self.ahead: dict[Outcome, list[Guess]] = {}  # what was considered for outcomes of this round

    @abstractmethod
    def update(self, tokens: Sequence[int]) -> None:
        """Index what is new of a text."""

    @abstractmethod
    def chains(self, ahead: Sequence[int] = ()) -> Iterable[Iterable[Guess]]:
        """What may follow, by source; a guess stands only if those before it in its chain do.

        With ``ahead``, what may follow if the text goes on with these tokens, which are not indexed.
        """

    def likely(self, draft: Sequence[int], fan: Sequence[int]) -> Iterator[Outcome]:
        """Outcomes of the verification of a draft: tokens that stood in the place of its tokens, or come after it.

        ``fan[k]`` is for how many of them after k accepted ones.
        """
        chains = (chain for before, chain in self.considered if not before)
        drafted = (chain for chain in chains if [guess.token for guess in chain[: len(draft)]] == list(draft))
        guesses = next(drafted, [])
        for k, (guess, count) in enumerate(zip(guesses, fan, strict=False)):
            tokens = guess.others if k < len(draft) else (guess.token, *guess.others)
            yield from (Outcome(k, token) for token in tokens[:count])

    def learn(self, tokens: Sequence[int]) -> None:
        """Compare what was considered with the ``tokens`` that came: also a token that was not drafted teaches."""
        for ahead, chain in self.considered:
            if tuple(tokens[: len(ahead)]) != tuple(ahead):
                continue
            for guess, token in zip(chain, tokens[len(ahead) :], strict=False):
                self.trust.learn(guess.kind, guess.token == token)
                if guess.token != token:
                    break
        self.considered = []


def lead_of(text: Text) -> list[int]:
    """What is indexed before a text: the end of its prompt and the prediction, as if that were the answer."""
    if not text.prediction:
        return []
    prompt = text.tokens[: text.prompt_length]
    return [*prompt[-LENGTHS[-1] :], *text.prediction, SEPARATOR]


class _Plan:
    """A draft while it grows from what another drafter has proposed, if anything.

    It knows what it is expected to add, which of its tokens are predicted, and what was ``considered``.
    """

    def __init__(self, comb: Comb, before: Draft) -> None:
        self.comb = comb
        self.expected = 0.0
        self.considered: list[Guess] = []
        self._before = before
        self._gain = math.prod(before.chances) if before.chances else UNSTATED ** len(before)
        self._states_chances = bool(before.chances) or not before.tokens
        self._predicted = list(before.predicted)
        comb.take_over(before)

    def gain(self, confidence: float) -> float:
        """The probability that all tokens hold, the next one of this ``confidence`` included."""
        self._gain *= confidence
        return self._gain

    def add(self, guess: Guess, others: Sequence[int], confidence: float) -> None:
        """Draft a token of this ``confidence`` and its siblings."""
        if guess.is_predicted:
            self._predicted.append(len(self.comb.tokens))
        self.expected += self._gain
        # a token that was chosen deterministically has the law that gives nothing else
        laws = [OneHot(token) for token in (guess.token, *others)] if self._before.laws else ()
        self.comb.add(guess.token, others, laws, confidence if self._states_chances else None)

    def draft(self) -> Draft:
        """The whole."""
        made = self.comb.draft(self._before.hidden, self._before.layer)
        return replace(made, predicted=tuple(self._predicted)) if self._predicted else made


class LookUp(Drafter):
    """Copies guesses from where the text was before.

    The confidence in a guess is the acceptance rate of its kind (`Trust`). A draft goes on while the expected
    gain, the product of the confidences so far, is well above the price of a row on this runtime
    (`PassCosts.price`). Of several chains the one is drafted that is expected to add most.
    """

    is_free = True
    looks_ahead = True

    def __init__(self, options: LookUpOptions, config: ModelConfig) -> None:
        super().__init__(options, config)
        self._look = options
        self._memories: dict[Text, Memory] = {}

    @property
    def uses_prediction(self) -> bool:
        """It does."""
        return True

    @abstractmethod
    def memory(self, text: Text) -> Memory:
        """What is kept for a text, empty; the prompt enters it with the first look-up."""

    def begin(self, text: Text) -> None:
        """Start an index."""
        self._memories[text] = self.memory(text)

    def observe(self, text: Text, commit: Commit) -> None:
        """Count which of the considered tokens came."""
        self._memories[text].learn(commit.tokens)

    def end(self, text: Text) -> None:
        """Drop what was kept."""
        del self._memories[text]

    def propose(self, context: Context, texts: Sequence[Text], gammas: Sequence[int]) -> list[Draft]:
        """What followed before, up to γ tokens, as far as it pays, not past an end-of-text token."""
        return self.refine(context, texts, gammas, [Draft()] * len(texts))

    def refine(
        self, context: Context, texts: Sequence[Text], gammas: Sequence[int], drafts: Sequence[Draft]
    ) -> list[Draft]:
        """Go on after ``drafts``, up to this drafter's own γ, with what followed such an end before."""
        found: list[Draft] = []
        price = self._price(context, len(texts))
        rows = len(texts) + sum(map(len, drafts))
        for text, gamma, before in zip(texts, gammas, drafts, strict=True):
            memory, most = self._memories[text], min(gamma, self.options.gamma)
            memory.update(text.tokens)
            plans = self._plans(text, most, before, partial(_at, price, rows))
            memory.considered += [(before.tokens, plan.considered) for plan in plans]
            found.append(max(plans, key=lambda plan: plan.expected).draft())
            rows += len(found[-1]) - len(before)
        return found

    def ahead(
        self, context: Context, texts: Sequence[Text], drafts: Sequence[Draft], fans: Sequence[Sequence[int]]
    ) -> list[Ahead]:
        """What followed before where another token than the draft's comes, one that stood in its place once."""
        price = partial(_at, self._price(context, len(texts)), len(texts))
        return [
            Ahead(dict(self._outcomes(text, draft, fan, price)))
            for text, draft, fan in zip(texts, drafts, fans, strict=True)
        ]

    def adopt(self, text: Text, outcome: Outcome) -> None:
        """What was considered for this outcome is what the next tokens are compared with."""
        memory = self._memories[text]
        memory.considered = [((), memory.ahead[outcome])]

    def _outcomes(
        self, text: Text, draft: Draft, fan: Sequence[int], price: Callable[[int], float]
    ) -> Iterator[tuple[Outcome, Draft]]:
        memory = self._memories[text]
        memory.update(text.tokens)
        memory.ahead = {}
        for accepted, bonus in memory.likely(draft.tokens, fan):
            before = (*draft.tokens[:accepted], bonus)
            gamma = min(self.options.gamma, text.room() - len(before))
            if gamma <= 0 or bonus in self.config.eos_token_ids:
                continue
            known = Draft(before, chances=(1.0,) * len(before))
            plans = self._plans(text, len(before) + gamma, known, price)
            best = max(plans, key=lambda plan: plan.expected)
            outcome = Outcome(accepted, bonus)
            memory.ahead[outcome] = best.considered
            yield outcome, after(best.draft(), len(before))

    def _price(self, context: Context, texts: int) -> Callable[[int], float]:
        """What a row beside n others must bring at least."""
        return partial(context.runtime.costs.price, texts=texts) if self._look.adaptive else _free

    def _plans(self, text: Text, gamma: int, before: Draft, price: Callable[[int], float]) -> list[_Plan]:
        """As much of each source as pays; a row must bring ``price(n)`` where n are added before it."""
        chains = self._memories[text].chains(before.tokens)
        if (constraint := text.sampling.constraint) is not None:
            chains = _within(constraint.for_drafts, text.prefix(before.tokens), chains, gamma - len(before))
        return [self._plan(text, gamma, before, chain, price) for chain in chains]

    def _plan(
        self, text: Text, gamma: int, before: Draft, chain: Iterable[Guess], price: Callable[[int], float]
    ) -> _Plan:
        trust, comb = self._memories[text].trust, Comb(self._look, text.room(), max(gamma, len(before)))
        plan = _Plan(comb, before)
        if len(before) >= gamma or self._is_ended(comb):
            return plan
        rows = 0
        for guess in chain:
            plan.considered.append(guess)
            confidence = trust.rate(guess.kind)
            others = guess.others[: comb.width]
            gain = plan.gain(confidence)
            if confidence < self._look.confidence or gain < MARGIN * price(rows) * (1 + len(others)):
                break
            plan.add(guess, others, confidence)
            rows += 1 + len(others)
            if len(comb.tokens) == gamma or self._is_ended(comb):
                break
        return plan

    def _is_ended(self, comb: Comb) -> bool:
        return bool(comb.tokens) and comb.tokens[-1] in self.config.eos_token_ids


def _within(
    constraint: ConstraintAhead, prefix: Prefix, chains: Iterable[Iterable[Guess]], most: int
) -> Iterator[Iterable[Guess]]:
    """What a grammar forces after ``prefix``, and of each chain what it allows; no more than ``most`` tokens."""
    if most <= 0:
        return iter(chains)
    forced = [Guess(token, Kind(Evidence.FORCED, 0)) for token in constraint.forced(prefix)[:most]]
    found = [list(islice(chain, most)) for chain in chains]
    legal = [chain[: constraint.legal(prefix, [guess.token for guess in chain])] for chain in found]
    return iter([forced, *legal])


def _at(price: Callable[[int], float], rows: int, more: int) -> float:
    return price(rows + more)


def _free(_rows: int) -> float:
    return 0.0
