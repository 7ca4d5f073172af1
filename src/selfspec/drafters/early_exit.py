"""Early exit: the same model drafts with its first k layers and its own head (LayerSkip, arXiv 2404.16710).

What the draft computed below layer k is what the target would compute, so verification resumes there from
the kept hidden states: the shallow layers run once per row, and the draft needs no cache of its own.

A draft token has the law that the same sampling makes of the shallow logits, with the draft's own prefix, so
that penalties and bans are respected and acceptance stays high. Only the user's callables are left out
(`Text.draft_law`): verification is exact for any draft law, and a callable may keep state. Where that law is
one token, as in greedy and coupled decoding, the draft is deterministic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from selfspec.drafters.base import Drafter, option
from selfspec.drafters.comb import Comb, CombOptions
from selfspec.drafters.confidence import ConfidenceStop
from selfspec.errors import ConstraintError, OptionError, SelfspecError
from selfspec.sampling import top_probability
from selfspec.types import Array, Distribution, Draft, LayerPlan, OneHot, namespace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.context import Context, Text
    from selfspec.model.config import ModelConfig
    from selfspec.rounds import Commit
    from selfspec.sampling import Chance


@dataclass(frozen=True)
class EarlyExitOptions(CombOptions):
    """Options of `EarlyExit`."""

    exit_layer: int | None = option(
        None,
        "Layer k at which the draft leaves: it runs layers [0, k), 1 <= k < layers. Default: 7/8 of them.",
    )


class _Growing:
    """The draft of one text while it grows; a stopped one has the states of one row more than its chain."""

    def __init__(self, options: CombOptions, text: Text, gamma: int) -> None:
        self.text = text
        self.gamma = gamma
        self.comb = Comb(options, text.room(), gamma)
        self.hidden: list[Array] = []

    @property
    def last(self) -> int:
        return self.comb.tokens[-1] if self.comb.tokens else self.text.pending

    def draft(self, layer: int) -> Draft:
        if not self.hidden:
            return Draft()
        return self.comb.draft(namespace(self.hidden[0]).concat(self.hidden, axis=0), layer)


class EarlyExit(Drafter):
    """Drafts with layers [0, k) and the model's own final norm and head."""

    Options = EarlyExitOptions
    name = "early_exit"
    summary = "the same model, leaving at layer k, with its own head; no extra weights or KV"

    def __init__(self, options: EarlyExitOptions, config: ModelConfig) -> None:
        super().__init__(options, config)
        self._settings = options
        layer = options.exit_layer
        if config.num_layers < 2:
            raise OptionError("this model has one layer; an early exit needs at least two")
        if layer is None:
            layer = max(1, config.num_layers * 7 // 8)
        self._plan = LayerPlan.exit_at(config.num_layers, layer)
        self._stops: dict[Text, ConfidenceStop] = {}

    @classmethod
    def variants(cls, config: ModelConfig, options: dict[str, Any]) -> list[dict[str, Any]]:
        """An exit after an eighth, a quarter and half of the layers; later ones cannot pay, however right."""
        if options.get("exit_layer") is not None:
            return [options]
        layers = sorted({max(1, config.num_layers // part) for part in (8, 4, 2)} - {config.num_layers})
        return [{**options, "exit_layer": layer} for layer in layers]

    @property
    def plan(self) -> LayerPlan:
        """The layers of one draft step."""
        return self._plan

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
        chains = [_Growing(self._settings, text, gamma) for text, gamma in zip(texts, gammas, strict=True)]
        growing = [chain for chain in chains if chain.gamma > 0]
        depth = 0
        while growing:
            hidden = context.step(self._plan, [c.text for c in growing], [c.last for c in growing], depth)
            logits = context.runtime.logits(hidden)
            depth += 1
            growing = [
                chain
                for i, chain in enumerate(growing)
                if self._grow(chain, hidden[i : i + 1], logits[i]) and depth < chain.gamma
            ]
        return [chain.draft(self._plan.shared_prefix) for chain in chains]

    def _grow(self, chain: _Growing, hidden: Array, logits: Array) -> bool:
        """Add the next token and its siblings; False when low confidence, or no token to choose, ends the draft."""
        text, comb = chain.text, chain.comb
        chain.hidden.append(hidden)
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
