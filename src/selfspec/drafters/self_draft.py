"""What self-drafts share: a layer plan of the model itself runs a draft step, with its own norm and head.

What a draft computed in the layers that its plan shares with the full model is what the target would compute:
verification resumes above them from the kept hidden states. Keys and values that the draft wrote above lie
beyond the committed length and are overwritten, so no draft needs a cache of its own.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from selfspec.drafters.steps import Growing, StepDrafter
from selfspec.errors import OptionError
from selfspec.joining import concatenate
from selfspec.on_device import draft_steps
from selfspec.types import Array, Draft

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from selfspec.context import Context, Text
    from selfspec.drafters.comb import CombOptions
    from selfspec.model.config import ModelConfig
    from selfspec.runtime.attached import Likeliest
    from selfspec.types import LayerPlan


class SelfDraft(StepDrafter):
    """Drafts with a layer plan and the model's own final norm and head. A method says which plan: `plan_of`."""

    @abstractmethod
    def plan_of(self, text: Text) -> LayerPlan:
        """The layers of a draft step of this text, in this round."""

    def groups(self, chains: list[Growing]) -> Iterable[list[Growing]]:
        """Those of one plan together."""
        found: dict[LayerPlan, list[Growing]] = {}
        for chain in chains:
            found.setdefault(self.plan_of(chain.text), []).append(chain)
        return found.values()

    def step(self, context: Context, growing: Sequence[Growing]) -> Array | Sequence[Array | Likeliest]:
        """Run the plan and the head over the next rows of each draft; the states of shared layers are kept.

        Rows of guesses go on from the states that a shallower draft has left.
        """
        texts, rows = [chain.text for chain in growing], [chain.rows for chain in growing]
        begun = [Draft() if chain.depth else chain.before for chain in growing]
        depths = [chain.depth for chain in growing]
        hidden, kept = context.step(self.plan_of(texts[0]), texts, rows, depths, begun=begun)
        if kept is not None:
            for chain, (start, stop) in zip(growing, pairwise(accumulate(map(len, rows), initial=0)), strict=True):
                chain.states = kept[start:stop]
        return self.said(context, growing, hidden)

    def said(
        self,
        context: Context,
        growing: Sequence[Growing],  # noqa: ARG002 (a head of its own may need it)
        hidden: Array,
    ) -> Array | Sequence[Array | Likeliest]:
        """What follows rows whose states after the plan are ``hidden`` [rows, d]: as `StepDrafter.step`."""
        return context.runtime.logits(hidden)

    def finish(self, chain: Growing) -> Draft:
        """The draft with its states, where verification resumes: a row more than tokens if it was stopped."""
        if chain.whole is not None:
            return chain.whole
        if not chain.kept:
            return chain.comb.draft()
        return chain.comb.draft(concatenate(chain.kept), self.plan_of(chain.text).shared_prefix)


def require_rows_aside(name: str, config: ModelConfig) -> None:
    """Raise OptionError where a drafter that searches with `Context.replay` cannot."""
    if config.recurrences:
        raise OptionError(
            f"{name} runs rows aside, which recurrent layers ({config.family}) cannot: use layer_skip"
        )


class FixedSelfDraft(SelfDraft):
    """A self-draft with one plan for all texts and rounds."""

    def __init__(self, options: CombOptions, config: ModelConfig, plan: LayerPlan) -> None:
        super().__init__(options, config)
        self._plan = plan

    @property
    def plan(self) -> LayerPlan:
        """The layers of one draft step."""
        return self._plan

    def plan_of(self, text: Text) -> LayerPlan:  # noqa: ARG002 (one for all)
        """The same for every text."""
        return self._plan

    def at_once(self, context: Context, chains: Sequence[Growing]) -> bool:
        """All steps in one call, where the device runs them and nothing is decided between them."""
        is_plain = type(self).said is SelfDraft.said and self._combs.siblings == 0
        if not is_plain or any(self._stops[chain.text].is_on or chain.before.tokens for chain in chains):
            return False
        gammas = [min(chain.gamma, self.options.gamma) for chain in chains]
        drafts = draft_steps(context, self._plan, [chain.text for chain in chains], gammas)
        for chain, draft in zip(chains, drafts or (), strict=False):
            chain.whole = draft
        return drafts is not None
