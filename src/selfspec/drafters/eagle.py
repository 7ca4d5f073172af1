"""EAGLE-3 (arXiv 2503.01840): a decoder layer that reads the target's low, middle and high states drafts.

The row of position j reads the token at j + 1 and the feature F_j, which is one matrix times the states after three
layers; what it says is the law of the token at j + 2. A draft begins with a row for every token whose feature has
become known since, the last of which gives the first draft token; each further token takes one row, which reads the
head's own state of the row before in place of a feature. These rows are written again once true features are known:
they come with every verification (`selfspec.feeds`), so there are no gaps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec.drafters.base import Drafter, Extra
from selfspec.drafters.steps import StepDrafter
from selfspec.drafters.trained import Attachment, HeadOptions, let_go, opened, shipped
from selfspec.errors import OptionError
from selfspec.joining import concatenate
from selfspec.types import Draft, Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.context import Context, Text
    from selfspec.drafters.base import Host
    from selfspec.drafters.comb import CombOptions
    from selfspec.drafters.steps import Growing
    from selfspec.drafters.trained import Beside
    from selfspec.feeds import Feed
    from selfspec.model.config import ModelConfig
    from selfspec.runtime.attached import Likeliest
    from selfspec.types import Array


class FeatureDrafter(StepDrafter):
    """Drafts with a layer that reads the next token beside what is known of a row, then its own output.

    ``_beside`` is what runs it, None before an engine is known.
    """

    usual_alpha = 0.5

    def __init__(self, options: CombOptions, config: ModelConfig, beside: Beside | None) -> None:
        super().__init__(options, config)
        self._beside = beside

    def bind(self, host: Host) -> None:
        """Attach it."""
        self._bound.bind(host)

    @property
    def _bound(self) -> Beside:
        assert self._beside is not None, "no engine has bound this drafter"
        return self._beside

    @property
    def taps(self) -> tuple[int, ...]:
        """The layers that it reads."""
        return () if self._beside is None else self._beside.taps

    @property
    def step_share(self) -> float | None:
        """Its weights ÷ those of a pass."""
        return None if self._beside is None else self._beside.share or None

    @property
    def extra_bytes(self) -> Extra:
        """Its weights, and its keys and values."""
        return Extra() if self._beside is None else self._beside.extra_bytes

    def propose(self, context: Context, texts: Sequence[Text], gammas: Sequence[int]) -> list[Draft]:
        """Chains of γ tokens, with leaves where asked for; nothing where no row of a text is known."""
        known = [self._feed(context, text).is_read_to(len(text.tokens) - 1) for text in texts]
        most = [gamma if one else 0 for gamma, one in zip(gammas, known, strict=True)]
        return super().refine(context, texts, most, [Draft()] * len(texts))

    def refine(
        self, context: Context, texts: Sequence[Text], gammas: Sequence[int], drafts: Sequence[Draft]
    ) -> list[Draft]:
        """What was proposed stands: rows of guesses would need each other's states. It drafts for the rest."""
        return Drafter.refine(self, context, texts, gammas, drafts)

    def read(self, context: Context, feed: Feed) -> None:
        """Run over what waits, but for the last row, whose next token is not known yet."""
        first, tokens, states = self._bound.taken(feed, len(feed) - 1)
        follow = [*tokens[1:], feed.tokens[0]]
        rows = Rows.of([feed.slot] * len(tokens), range(first, first + len(tokens)))
        made = self._bound.run(context, self._bound.attached.features(states), follow, rows)
        feed.tail = made[-1:]

    def step(self, context: Context, growing: Sequence[Growing]) -> Array | Sequence[Array | Likeliest]:
        """One row for each draft; before the first token, all rows whose features have become known."""
        if growing[0].depth == 0:
            self._catch_up(context, growing)
        else:
            self._go_on(context, growing)
        return self._bound.said(growing, concatenate([chain.states for chain in growing]))

    def _catch_up(self, context: Context, growing: Sequence[Growing]) -> None:
        """Read the features that wait; the last row of each text gives its first token."""
        head, feeds = self._bound, [self._feed(context, chain.text) for chain in growing]
        slots: list[int] = []
        cells: list[int] = []
        tokens: list[int] = []
        entering: list[Array] = []
        last: dict[int, int] = {}
        for i, (chain, feed) in enumerate(zip(growing, feeds, strict=True)):
            if not len(feed):
                continue
            first, own, states = head.taken(feed, len(feed))
            tokens += [*own[1:], chain.text.pending]
            slots += [feed.slot] * len(own)
            cells += range(first, first + len(own))
            entering.append(states)
            last[i] = len(cells) - 1
        if entering:
            features = head.attached.features(concatenate(entering))
            made = head.run(context, features, tokens, Rows.of(slots, cells))
            for i, row in last.items():
                feeds[i].tail = made[row : row + 1]
        for chain, feed in zip(growing, feeds, strict=True):
            chain.states = feed.tail

    def _go_on(self, context: Context, growing: Sequence[Growing]) -> None:
        """A row for the last token of each draft, from the head's own state of the row before."""
        cells = []
        for chain in growing:
            feed = self._feed(context, chain.text)
            cells.append(feed.first - 1 + chain.depth - feed.origin)
        rows = Rows.of([chain.text.slot for chain in growing], cells)
        entering = concatenate([chain.kept[-1] for chain in growing])
        made = self._bound.run(context, entering, [chain.last for chain in growing], rows)
        for i, chain in enumerate(growing):
            chain.states = made[i : i + 1]

    def _feed(self, context: Context, text: Text) -> Feed:
        return context.feeds.of(text.slot, self)


class Eagle(FeatureDrafter):
    """Drafts with a head of the EAGLE-3 type."""

    Options = HeadOptions
    options: HeadOptions
    name = "eagle"
    summary = "a trained layer reads the model's inner states (EAGLE-3); extra weights and KV of one layer"
    paper = "EAGLE-3 (arXiv 2503.01840)"
    pays = (
        "with a head trained on the model's own answers to prompts of your kind, where the head is a small "
        "part of a pass"
    )

    def __init__(self, options: HeadOptions, config: ModelConfig) -> None:
        self._beside: Attachment | None = None
        if options.head is not None:
            self._beside = Attachment(config, options, opened(options.head, "eagle", config))
        super().__init__(options, config, self._beside)
        self._settings = options

    def bind(self, host: Host) -> None:
        """Attach the head: that of the options, or the one that comes with the package for this checkpoint."""
        if self._beside is None:
            path = shipped(host, "eagle")
            if path is None:
                raise OptionError(
                    "no eagle head comes with selfspec for this model: train one (`selfspec train eagle`) and give "
                    "its file as head"
                )
            self._beside = Attachment(self.config, self._settings, opened(path, "eagle", self.config))
        super().bind(host)
        let_go(self._beside.head)

    @property
    def stated_alphas(self) -> tuple[float, ...]:
        """What the head's card says."""
        return () if self._beside is None else self._beside.stated_alphas

    @property
    def runs(self) -> str:
        """The head."""
        return "unbound" if self._beside is None else f"head on layers {', '.join(map(str, self.taps))}"
