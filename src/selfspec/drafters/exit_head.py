"""Early exits with a trained head (Kangaroo, arXiv 2404.18911; AdaDecode, arXiv 2506.03700): `early_exit --head`.

The draft runs layers [0, k) of the model, and the head over what leaves them; verification resumes at k, as after
any early exit. The head's keys and values follow from states that are exactly the target's, so those of accepted
rows stay. What it has not seen (the prompt, rounds in which others drafted, the last token of a draft that was
accepted whole) waits in the text's `selfspec.feeds.Feed` and runs together with the next draft's first row.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from selfspec.drafters.self_draft import FixedSelfDraft
from selfspec.drafters.trained import Attachment, HeadOptions, let_go, opened
from selfspec.errors import OptionError
from selfspec.joining import concatenate
from selfspec.runtime.attached import require_fits
from selfspec.types import LayerPlan, Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.context import Context
    from selfspec.drafters.base import Extra, Host
    from selfspec.drafters.steps import Growing
    from selfspec.feeds import Feed
    from selfspec.model.config import ModelConfig
    from selfspec.model.head_file import HeadFile
    from selfspec.runtime.attached import Likeliest
    from selfspec.types import Array


class ExitHead(FixedSelfDraft):
    """Drafts with layers [0, k) and a trained head; k is what the head was trained for."""

    Options = HeadOptions
    name = "early_exit"
    usual_alpha = 0.4

    def __init__(
        self, options: HeadOptions, config: ModelConfig, layer: int | None = None, head: HeadFile | None = None
    ) -> None:
        if head is None:
            assert options.head is not None
            head = opened(options.head, "exit_head", config)
        require_fits(head, config)
        (k,) = head.facts.taps
        if layer not in (None, k):
            raise OptionError(f"exit_layer is {layer}, but the head reads after layer {k}; leave exit_layer out")
        super().__init__(options, config, LayerPlan.exit_at(config.num_layers, k))
        self._reads = (k,) if head.facts.attends else ()
        self._options = options
        self._head = Attachment(config, options, head)

    def bind(self, host: Host) -> None:
        """Attach the head."""
        self._head.bind(host)
        let_go(self._head.head)

    @property
    def taps(self) -> tuple[int, ...]:
        """What a head with attention reads of every row."""
        return self._reads

    @property
    def step_share(self) -> float | None:
        """The exit's share of a pass, and that of the head."""
        layers = self._plan.row_layers * self.config.active_layer_parameters
        return layers / self.config.pass_parameters + self._head.share

    @property
    def stated_alphas(self) -> tuple[float, ...]:
        """What the head's card says."""
        return self._head.stated_alphas

    @property
    def runs(self) -> str:
        """The layers, and the form of the head."""
        return f"{self._plan} + {self._head.head.facts.form} head"

    @property
    def extra_bytes(self) -> Extra:
        """The head, and its keys and values."""
        return self._head.extra_bytes

    def read(self, context: Context, feed: Feed) -> None:
        """Run over what waits."""
        first, _, states = self._head.taken(feed, len(feed))
        rows = Rows.of([feed.slot] * len(states), range(first, first + len(states)))
        self._head.run(context, states, (), rows)

    def said(
        self, context: Context, growing: Sequence[Growing], hidden: Array
    ) -> Array | Sequence[Array | Likeliest]:
        """Run the head over the draft's rows, and what waits before them."""
        slots: list[int] = []
        cells: list[int] = []
        last: list[int] = []
        entering: list[Array] = []
        for chain, (start, stop) in zip(
            growing, pairwise(accumulate((len(c.rows) for c in growing), initial=0)), strict=True
        ):
            if self._reads:
                waiting, first = self._waiting(context, chain)
            else:
                waiting, first = [], 0
            own = [*waiting, hidden[start:stop]]
            count = sum(len(states) for states in own)
            entering += own
            slots += [chain.text.slot] * count
            cells += range(first, first + count)
            last += range(len(cells) - (stop - start), len(cells))
        states = self._head.run(context, concatenate(entering), [0] * len(cells), Rows.of(slots, cells))
        return self._head.said(growing, states if len(last) == len(cells) else states[last])

    def _waiting(self, context: Context, chain: Growing) -> tuple[list[Array], int]:
        """States that the head has not seen of a text, and the cell of the first row that is to run."""
        feed = context.feeds.of(chain.text.slot, self)
        if chain.depth:
            feed.guessed[chain.depth :] = chain.rows
            return [], feed.first + chain.depth - feed.origin
        first, waiting = feed.first - feed.origin, []
        if len(feed):
            waiting = [self._head.taken(feed, len(feed))[2]]
        if feed.first != len(chain.text.tokens) - 1:  # nothing is known of the rows before
            feed.begin(len(chain.text.tokens) - 1)
            first, waiting = 0, []
        feed.guessed = list(chain.rows)
        return waiting, first
