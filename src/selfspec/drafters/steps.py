"""Drafts that grow step by step: a cheaper pass is asked for one more token of every text, γ times at most.

A draft token has the law that the same sampling makes of the pass's logits, with the draft's own prefix, so
that penalties and bans are respected and acceptance stays high. Only the user's callables are left out
(`Text.draft_law`): verification is exact for any draft law, and a callable may keep state. Where that law is
one token, as in greedy and coupled decoding, the draft is deterministic.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING

from selfspec.drafters.base import Drafter
from selfspec.drafters.comb import Comb, CombOptions
from selfspec.drafters.confidence import ConfidenceStop
from selfspec.errors import ConstraintError, ModelError, SelfspecError
from selfspec.sampling import top_probability
from selfspec.types import Array, Distribution, Draft, OneHot, namespace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from selfspec.context import Context, Text
    from selfspec.model.config import ModelConfig
    from selfspec.rounds import Commit
    from selfspec.sampling import Chance


class Growing:
    """The draft of one text while it grows; ``kept`` are the states that its steps keep, if any."""

    def __init__(self, options: CombOptions, text: Text, gamma: int) -> None:
        self.text = text
        self.gamma = gamma
        self.comb = Comb(options, text.room(), gamma)
        self.kept: list[Array] = []

    @property
    def last(self) -> int:
        """The token that the next step reads."""
        return self.comb.tokens[-1] if self.comb.tokens else self.text.pending

    @property
    def depth(self) -> int:
        """How many tokens there are: that many rows past the pending one stands the next."""
        return len(self.comb.tokens)


class StepDrafter(Drafter):
    """Grows chains, with leaves where asked for; a subclass runs the passes."""

    options: CombOptions
    samples = True

    def __init__(self, options: CombOptions, config: ModelConfig) -> None:
        super().__init__(options, config)
        self._combs = options
        self._stops: dict[Text, ConfidenceStop] = {}

    @abstractmethod
    def step(self, context: Context, growing: Sequence[Growing]) -> Array:
        """Logits [len(growing), V] of what follows the last token of each draft, all of one depth."""

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
        chains = [Growing(self._combs, text, gamma) for text, gamma in zip(texts, gammas, strict=True)]
        for group in self.groups([chain for chain in chains if chain.gamma > 0]):
            self._grow_all(context, group)
        return [self.finish(chain) for chain in chains]

    def _grow_all(self, context: Context, growing: list[Growing]) -> None:
        """Grow chains together, a token each at a time."""
        while growing:
            logits = self.step(context, growing)
            growing = [
                chain
                for chain, row in zip(growing, logits, strict=True)
                if self._grow(chain, row) and chain.depth < chain.gamma
            ]

    def _grow(self, chain: Growing, logits: Array) -> bool:
        """Add the next token and its siblings; False when low confidence, or no token to choose, ends the draft."""
        text, comb = chain.text, chain.comb
        stop = self._stops[text]
        if stop.is_on and stop.before(top_probability(logits)):
            return False
        try:
            law = text.draft_law(logits, comb.tokens)
        except ConstraintError:  # perhaps only past a token that will be rejected: the target decides
            return False
        except ModelError as error:
            raise ModelError(f"{self.name} ({self.runs}) cannot draft: {error}") from None
        if isinstance(law, OneHot):
            token = law.token
            comb.add(token, _next_best(text, logits, comb, token))
        else:
            tokens, laws = _drawn(law, text.chance, comb.width + 1)
            token = tokens[0]
            comb.add(token, tokens[1:], laws)
        return token not in self.config.eos_token_ids  # nothing is drafted past an end


def _next_best(text: Text, logits: Array, comb: Comb, token: int) -> list[int]:
    """What would stand in the place of ``token`` without it, then without that too: at most ``comb.width``."""
    found = [token]
    rest = namespace(logits).asarray(logits, copy=True) if comb.width else logits
    for _ in range(comb.width):  # a few scans are cheaper than sorting a vocabulary
        rest[found[-1]] = -math.inf
        try:
            law = text.draft_law(rest, comb.tokens)
        except SelfspecError:  # nothing else is allowed
            break
        assert isinstance(law, OneHot)
        if law.token in found:  # it is forced
            break
        found.append(law.token)
    return found[1:]


def _drawn(law: Distribution, chance: Chance, count: int) -> tuple[list[int], list[Distribution]]:
    """Up to ``count`` tokens from ``law`` without replacement, and the law that each was drawn from."""
    tokens, laws = [chance.pick(law)], [law]
    while len(tokens) < count:
        rest = laws[-1].minus(OneHot(tokens[-1]))
        if rest is laws[-1]:  # nothing else has any mass
            break
        tokens.append(chance.pick(rest))
        laws.append(rest)
    return tokens, laws
