"""What self-drafts share: a chain of tokens from a layer plan of the model itself, and its own norm and head.

What a draft computed in the layers that its plan shares with the full model is what the target would compute:
verification resumes above them from the kept hidden states. Keys and values that the draft wrote above lie
beyond the committed length and are overwritten, so no draft needs a cache of its own.

A draft token has the law that the same sampling makes of the shallow logits, with the draft's own prefix, so
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
from selfspec.errors import ConstraintError, SelfspecError
from selfspec.sampling import top_probability
from selfspec.types import Array, Distribution, Draft, OneHot, namespace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from selfspec.context import Context, Text
    from selfspec.model.config import ModelConfig
    from selfspec.rounds import Commit
    from selfspec.sampling import Chance
    from selfspec.types import LayerPlan


class _Growing:
    """The draft of one text while it grows; a stopped one has the states of one row more than its chain."""

    def __init__(self, options: CombOptions, text: Text, gamma: int, plan: LayerPlan) -> None:
        self.text = text
        self.gamma = gamma
        self.plan = plan
        self.comb = Comb(options, text.room(), gamma)
        self.kept: list[Array] = []

    @property
    def last(self) -> int:
        return self.comb.tokens[-1] if self.comb.tokens else self.text.pending

    def draft(self) -> Draft:
        if not self.kept:
            return self.comb.draft()
        return self.comb.draft(namespace(self.kept[0]).concat(self.kept, axis=0), self.plan.shared_prefix)


class SelfDraft(Drafter):
    """Drafts with a layer plan and the model's own final norm and head. A method says which plan: `plan_of`."""

    options: CombOptions

    def __init__(self, options: CombOptions, config: ModelConfig) -> None:
        super().__init__(options, config)
        self._combs = options
        self._stops: dict[Text, ConfidenceStop] = {}

    @abstractmethod
    def plan_of(self, text: Text) -> LayerPlan:
        """The layers of a draft step of this text, in this round."""

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
        chains = {
            text: _Growing(self._combs, text, gamma, self.plan_of(text))
            for text, gamma in zip(texts, gammas, strict=True)
            if gamma > 0
        }
        for group in _by_plan(chains.values()):
            self._grow_all(context, group)
        return [chains[text].draft() if text in chains else Draft() for text in texts]

    def _grow_all(self, context: Context, growing: list[_Growing]) -> None:
        """Grow chains of one plan together, a token each at a time."""
        plan, depth = growing[0].plan, 0
        while growing:
            hidden, kept = context.step(plan, [c.text for c in growing], [c.last for c in growing], depth)
            logits = context.runtime.logits(hidden)
            depth += 1
            rest: list[_Growing] = []
            for i, chain in enumerate(growing):
                if kept is not None:
                    chain.kept.append(kept[i : i + 1])
                if self._grow(chain, logits[i]) and depth < chain.gamma:
                    rest.append(chain)
            growing = rest

    def _grow(self, chain: _Growing, logits: Array) -> bool:
        """Add the next token and its siblings; False when low confidence, or no token to choose, ends the draft."""
        text, comb = chain.text, chain.comb
        stop = self._stops[text]
        if stop.is_on and stop.before(top_probability(logits)):
            return False
        try:
            law = text.draft_law(logits, comb.tokens)
        except ConstraintError:  # perhaps only past a token that will be rejected: the target decides
            return False
        if isinstance(law, OneHot):
            token = law.token
            comb.add(token, _next_best(text, logits, comb, token))
        else:
            tokens, laws = _drawn(law, text.chance, comb.width + 1)
            token = tokens[0]
            comb.add(token, tokens[1:], laws)
        return token not in self.config.eos_token_ids  # nothing is drafted past an end


def _by_plan(chains: Iterable[_Growing]) -> Iterable[list[_Growing]]:
    """Chains whose steps can run together."""
    groups: dict[LayerPlan, list[_Growing]] = {}
    for chain in chains:
        groups.setdefault(chain.plan, []).append(chain)
    return groups.values()


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
