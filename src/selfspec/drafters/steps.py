"""Drafts that grow step by step: a cheaper pass is asked for one more token of every text, γ times at most.

Where another drafter went before (`staged`), its tokens are *guesses* for the first step, which runs a row for
each: the pass is asked what follows every one, as long as they hold. What is drafted has the law of this pass
in any case. A guess that was chosen deterministically holds if the token that is drawn is the guess. One that
was drawn from a law r holds with probability min(1, q / r), and else a token from norm((q - r)+) takes its
place: either way the token has the law q of this pass, which is what verification is told (compare arXiv
2308.04623).

A draft token has the law that the same sampling makes of the pass's logits, with the draft's own prefix, so
that penalties and bans are respected and acceptance stays high. Only the user's callables are left out
(`Text.draft_law`): verification is exact for any draft law, and a callable may keep state. Where that law is
one token, as in greedy and coupled decoding, the draft is deterministic.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from selfspec.drafters.base import Drafter
from selfspec.drafters.comb import Comb, CombOptions
from selfspec.drafters.confidence import ConfidenceStop
from selfspec.errors import ConstraintError, ModelError, SelfspecError
from selfspec.prefixes import shared_length
from selfspec.runtime.attached import Likeliest
from selfspec.sampling import top_probability
from selfspec.types import Array, Distribution, Draft, OneHot, namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from selfspec.context import Context, Text
    from selfspec.model.config import ModelConfig
    from selfspec.rounds import Commit
    from selfspec.sampling import Chance


class Growing:
    """The draft of one text while it grows; ``states`` of its last step and ``kept`` ones are those that resume.

    ``before`` is what an earlier drafter has said, its guesses.
    """

    def __init__(self, options: CombOptions, text: Text, gamma: int, before: Draft) -> None:
        self.text = text
        self.gamma = gamma
        self.before = before
        self.comb = Comb(options, text.room(), gamma)
        self.states: Array | None = None
        self.kept: list[Array] = []
        self.whole: Draft | None = None  # made in one call

    @property
    def last(self) -> int:
        """The token that the next step reads first."""
        return self.comb.tokens[-1] if self.comb.tokens else self.text.pending

    @property
    def depth(self) -> int:
        """How many tokens there are: that many rows past the pending one stands the next."""
        return len(self.comb.tokens)

    @property
    def so_far(self) -> Sequence[int]:
        """The tokens after the text that the next one follows."""
        return self.comb.tokens

    @property
    def guesses(self) -> tuple[int, ...]:
        """What is to be checked in the next step, which can only be the first."""
        return () if self.comb.tokens else self.before.tokens[: self.gamma]

    @property
    def rows(self) -> list[int]:
        """The tokens that the next step reads: nothing is asked about what follows a last guess."""
        return [self.last, *self.guesses[: self.gamma - self.depth - 1]]

    def keep(self, rows: int) -> None:
        """Only so many rows of the last step read tokens of the draft."""
        if self.states is not None:
            self.kept.append(self.states[:rows])
            self.states = None


class StepDrafter(Drafter):
    """Grows chains, with leaves where asked for; a subclass runs the passes."""

    options: CombOptions
    samples = True

    def __init__(self, options: CombOptions, config: ModelConfig) -> None:
        super().__init__(options, config)
        self._combs = options
        self._stops: dict[Text, ConfidenceStop] = {}
        self.reshape: Callable[[Text, Distribution, int], Distribution] = _as_it_is

    @abstractmethod
    def step(self, context: Context, growing: Sequence[Growing]) -> Array | Sequence[Array | Likeliest]:
        """Logits of what follows each of the `Growing.rows` of each draft [all rows, V], draft after draft.

        Where the law is the largest logit's token whatever the prefix, and without siblings, a row may be a
        `Likeliest`.
        """

    def at_once(self, context: Context, chains: Sequence[Growing]) -> bool:  # noqa: ARG002
        """Whether these drafts were made whole, in one call; else they grow step by step."""
        return False

    def groups(self, chains: list[Growing]) -> Iterable[list[Growing]]:
        """Chains whose steps can run together."""
        return [chains]

    def finish(self, chain: Growing) -> Draft:
        """What becomes of a draft that grows no further."""
        return chain.comb.draft()

    def begin(self, text: Text) -> None:
        """Start a confidence stop."""
        self._stops[text] = ConfidenceStop(self.options)

    def observe(self, text: Text, commit: Commit) -> None:
        """Move its threshold, if it adapts."""
        self._stops[text].observe(commit.depth, commit.accepted)

    def end(self, text: Text) -> None:
        """Drop it."""
        del self._stops[text]

    def propose(self, context: Context, texts: Sequence[Text], gammas: Sequence[int]) -> list[Draft]:
        """Chains of γ tokens, with leaves where asked for, shorter where the confidence stop ends them."""
        return self.refine(context, texts, gammas, [Draft()] * len(texts))

    def refine(
        self, context: Context, texts: Sequence[Text], gammas: Sequence[int], drafts: Sequence[Draft]
    ) -> list[Draft]:
        """Check ``drafts`` in one step of several rows, and go on alone from the first token that differs.

        As many guesses as γ allows are checked, and the token after the last that holds is drafted with them; more
        are drafted up to this drafter's own γ.
        """
        most = [
            gamma if draft.tokens else min(gamma, self.options.gamma)
            for gamma, draft in zip(gammas, drafts, strict=True)
        ]
        chains = [Growing(self._combs, *one) for one in zip(texts, most, drafts, strict=True)]
        for group in self.groups([chain for chain in chains if chain.gamma > 0]):
            if not self.at_once(context, group):
                self._grow_all(context, group)
        return [_with_predicted(self.finish(chain), chain.before) for chain in chains]

    def _grow_all(self, context: Context, growing: list[Growing]) -> None:
        """Grow chains together, a step each at a time."""
        while growing:
            edges = accumulate((len(chain.rows) for chain in growing), initial=0)
            spans = list(pairwise(edges))
            logits = self.step(context, growing)
            growing = [
                chain
                for chain, (start, stop) in zip(growing, spans, strict=True)
                if self._advance(chain, logits[start:stop])
            ]

    def _advance(self, chain: Growing, logits: Array | Sequence[Array | Likeliest]) -> bool:
        """Add what a step gave, up to the first guess that does not hold; False where the draft ends."""
        guesses, laws = chain.guesses, chain.before.laws
        goes_on = True
        for i, row in enumerate(logits):
            guess = guesses[i] if i < len(guesses) else None
            goes_on = self._grow(chain, row, guess, laws[i] if laws and guess is not None else None)
            if not goes_on or chain.last != guess:
                break
        chain.keep(i + 1)
        return goes_on and chain.depth < min(chain.gamma, self.options.gamma)

    def _grow(
        self,
        chain: Growing,
        logits: Array | Likeliest,
        guess: int | None = None,
        guessed_from: Distribution | None = None,
    ) -> bool:
        """Add the next token and its siblings; False when low confidence, or no token to choose, ends the draft."""
        text, comb = chain.text, chain.comb
        stop = self._stops[text]
        is_known = isinstance(logits, Likeliest)
        if stop.is_on and stop.before(logits.probability if is_known else top_probability(logits)):
            return False
        if is_known:
            assert self.reshape is _as_it_is
            comb.add(logits.token)
            return logits.token not in self.config.eos_token_ids
        try:
            law = self.reshape(text, text.draft_law(logits, chain.so_far), chain.depth)
        except ConstraintError:  # perhaps only past a token that will be rejected: the target decides
            return False
        except ModelError as error:
            raise ModelError(f"{self.name} ({self.runs}) cannot draft: {error}") from None
        if isinstance(law, OneHot):
            token = law.token
            comb.add(token, next_best(text, logits, comb.tokens, token, comb.width))
        else:
            first = _checked(law, text.chance, guess, guessed_from)
            tokens, laws = _drawn(law, text.chance, comb.width + 1, first)
            token = tokens[0]
            comb.add(token, tokens[1:], laws)
        return token not in self.config.eos_token_ids  # nothing is drafted past an end


def _as_it_is(_text: Text, law: Distribution, _depth: int) -> Distribution:
    return law


def _with_predicted(draft: Draft, before: Draft) -> Draft:
    """The draft, which says of the guesses that it took over where they come from."""
    if not before.predicted:
        return draft
    held = shared_length(draft.tokens, before.tokens)
    predicted = tuple(i for i in before.predicted if i < held)
    return replace(draft, predicted=predicted) if predicted else draft


def _checked(law: Distribution, chance: Chance, guess: int | None, guessed_from: Distribution | None) -> int:
    """A token from ``law``: the guess, if it was drawn from a law and passes the ratio test against that."""
    if guess is None or guessed_from is None:
        return chance.pick(law)
    if chance.accept(law.probability(guess) / guessed_from.probability(guess)):
        return guess
    return chance.pick(law.minus(guessed_from))


def next_best(text: Text, logits: Array, draft: Sequence[int], first: int, count: int) -> list[int]:
    """What would stand in the place of ``first`` after ``draft``, then in the place of that: ``count`` at most.

    For laws of one token (`Text.draft_law`).
    """
    found = [first]
    rest = namespace(logits).asarray(logits, copy=True) if count else logits
    for _ in range(count):  # a few scans are cheaper than sorting a vocabulary
        rest[found[-1]] = -math.inf
        try:
            law = text.draft_law(rest, draft)
        except SelfspecError:  # nothing else is allowed
            break
        assert isinstance(law, OneHot)
        if law.token in found:  # it is forced
            break
        found.append(law.token)
    return found[1:]


def _drawn(law: Distribution, chance: Chance, count: int, first: int) -> tuple[list[int], list[Distribution]]:
    """Up to ``count`` tokens from ``law`` without replacement, ``first`` one of them; and the law of each."""
    tokens, laws = [first], [law]
    while len(tokens) < count:
        rest = laws[-1].minus(OneHot(tokens[-1]))
        if rest is laws[-1]:  # nothing else has any mass
            break
        tokens.append(chance.pick(rest))
        laws.append(rest)
    return tokens, laws
