"""Early exit: the same model drafts with its first k layers and its own head (LayerSkip, arXiv 2404.16710).

What the draft computed below layer k is what the target would compute, so verification resumes there from
the kept hidden states: the shallow layers run once per row, and the draft needs no cache of its own.

A draft token has the law that the same sampling makes of the shallow logits, with the draft's own prefix, so
that penalties and bans are respected and acceptance stays high. Only the user's callables are left out
(`Sampling.for_drafts`): verification is exact for any draft law, and a callable may keep state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec.drafters.base import Drafter, DraftOptions, option
from selfspec.errors import ConstraintError, OptionError
from selfspec.sampling import distribution, top_probability
from selfspec.types import Array, Distribution, Draft, LayerPlan, namespace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.context import Context, Text
    from selfspec.model.config import ModelConfig


@dataclass(frozen=True)
class EarlyExitOptions(DraftOptions):
    """Options of `EarlyExit`."""

    exit_layer: int | None = option(
        None,
        "Layer k at which the draft leaves: it runs layers [0, k), 1 <= k < layers. Default: 7/8 of them.",
    )


class _Chain:
    """The draft of one text while it grows; a stopped one has the states of one row more than tokens."""

    def __init__(self, text: Text, gamma: int) -> None:
        self.text = text
        self.gamma = gamma
        self.tokens: list[int] = []
        self.laws: list[Distribution] = []
        self.hidden: list[Array] = []

    @property
    def last(self) -> int:
        return self.tokens[-1] if self.tokens else self.text.pending

    def draft(self, layer: int) -> Draft:
        if not self.hidden:
            return Draft()
        laws = None if self.text.sampling.is_greedy else tuple(self.laws)
        states = namespace(self.hidden[0]).concat(self.hidden, axis=0)
        return Draft(tuple(self.tokens), laws, states, layer)


class EarlyExit(Drafter):
    """Drafts with layers [0, k) and the model's own final norm and head."""

    Options = EarlyExitOptions
    name = "early_exit"
    summary = "the same model, leaving at layer k, with its own head; no extra weights or KV"

    def __init__(self, options: EarlyExitOptions, config: ModelConfig) -> None:
        super().__init__(options, config)
        layer = options.exit_layer
        if config.num_layers < 2:
            raise OptionError("this model has one layer; an early exit needs at least two")
        if layer is None:
            layer = max(1, config.num_layers * 7 // 8)
        self._plan = LayerPlan.exit_at(config.num_layers, layer)

    @property
    def plan(self) -> LayerPlan:
        """The layers of one draft step."""
        return self._plan

    def propose(self, context: Context, texts: Sequence[Text], gammas: Sequence[int]) -> list[Draft]:
        """Chains of γ tokens, shorter where the confidence stop ends them."""
        chains = [_Chain(text, gamma) for text, gamma in zip(texts, gammas, strict=True)]
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

    def _grow(self, chain: _Chain, hidden: Array, logits: Array) -> bool:
        """Add the next token; False when low confidence, or no token to choose, ends the draft before it."""
        text = chain.text
        chain.hidden.append(hidden)
        stop = self.stops[text]
        if stop.is_on and stop.before(top_probability(logits)):
            return False
        try:
            law = distribution(logits, text.sampling.for_drafts, text.prefix(chain.tokens))
        except ConstraintError:  # perhaps only past a token that will be rejected: the target decides
            return False
        chain.laws.append(law)
        chain.tokens.append(text.chance.pick(law))
        return chain.tokens[-1] not in self.config.eos_token_ids  # nothing is drafted past an end
