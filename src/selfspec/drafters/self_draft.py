"""What self-drafts share: a layer plan of the model itself runs a draft step, with its own norm and head.

What a draft computed in the layers that its plan shares with the full model is what the target would compute:
verification resumes above them from the kept hidden states. Keys and values that the draft wrote above lie
beyond the committed length and are overwritten, so no draft needs a cache of its own.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from selfspec.drafters.steps import Growing, StepDrafter
from selfspec.types import Array, Draft, namespace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.context import Context, Text
    from selfspec.types import LayerPlan


class SelfDraft(StepDrafter):
    """Drafts with a layer plan and the model's own final norm and head. A method says which plan: `plan_of`."""

    @abstractmethod
    def plan_of(self, text: Text) -> LayerPlan:
        """The layers of a draft step of this text, in this round."""

    def step(self, context: Context, growing: Sequence[Growing]) -> Array:
        """Run each draft's plan and the head over its last token, drafts of one plan together."""
        groups: dict[LayerPlan, list[int]] = {}
        for i, chain in enumerate(growing):
            groups.setdefault(self.plan_of(chain.text), []).append(i)
        states: list[Array] = []
        for plan, members in groups.items():
            chains = [growing[i] for i in members]
            texts, tokens = [chain.text for chain in chains], [chain.last for chain in chains]
            hidden, kept = context.step(plan, texts, tokens, chains[0].depth)
            states.append(hidden)
            if kept is not None:
                for row, chain in enumerate(chains):
                    chain.hidden.append(kept[row : row + 1])
        if len(groups) == 1:
            return context.runtime.logits(states[0])
        logits = context.runtime.logits(namespace(states[0]).concat(states, axis=0))
        order = [i for members in groups.values() for i in members]
        return logits[sorted(range(len(order)), key=order.__getitem__)]

    def finish(self, chain: Growing) -> Draft:
        """The draft with its states, where verification resumes: a row more than tokens if it was stopped."""
        if not chain.hidden:
            return chain.comb.draft()
        hidden = namespace(chain.hidden[0]).concat(chain.hidden, axis=0)
        return chain.comb.draft(hidden, self.plan_of(chain.text).shared_prefix)
