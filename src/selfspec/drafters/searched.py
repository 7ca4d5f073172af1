"""Drafters with one plan for all texts of an engine, which a search improves while texts are generated.

What the search knows is kept by the engine and outlives a request (`Host.kept`), so that its cost is spread over
many. Sampled texts are drafted with the likeliest tokens: what a seed gives must not depend on what an earlier text
has taught, and verified by draw-and-compare it is plain decoding's text, whatever the plan.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Protocol

from selfspec.drafters.base import inherited, option
from selfspec.drafters.comb import CombOptions
from selfspec.drafters.self_draft import SelfDraft, require_rows_aside
from selfspec.errors import OptionError
from selfspec.types import LayerPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.context import Context, Text
    from selfspec.drafters.base import Host
    from selfspec.model.config import ModelConfig
    from selfspec.rounds import Commit
    from selfspec.types import Draft

MAX_WINDOW = 256
LEAST_LAYERS = 4


@dataclass(frozen=True)
class SearchedOptions(CombOptions):
    """Options of drafters that search while they draft; the defaults are SWIFT's."""

    gamma: int = inherited(CombOptions, "gamma", 25)
    confidence: float = inherited(CombOptions, "confidence", 0.8)
    skip_ratio: float = option(0.45, "Share of the layers between the first and the last to skip.")
    window: int = option(50, "Latest tokens of an answer to judge by; the search begins once there are more.")
    enough: float = option(0.93, "End the search once a set is better than this share of tokens right.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.skip_ratio < 1.0:
            raise OptionError(f"skip_ratio is {self.skip_ratio}; it must be a share above 0 and below 1")
        if not 1 <= self.window <= MAX_WINDOW:
            raise OptionError(f"window is {self.window}; it must be 1 to {MAX_WINDOW} tokens")
        if not 0.0 < self.enough <= 1.0:
            raise OptionError(f"enough is {self.enough}; it must be a share above 0, at most 1")


class Search(Protocol):
    """What is known of an engine's skip sets."""

    @property
    def plan(self) -> LayerPlan:
        """The one to draft with now."""

    def due(self) -> bool:
        """Whether it would try another one now; asked once for each round with a text to try it on."""

    def advance(self, context: Context, text: Text) -> None:
        """Try another one on the latest tokens of ``text``, with rows that run aside."""

    def observe(self, commit: Commit) -> None:
        """Learn what became of a draft of ``plan``."""


class SearchedDraft(SelfDraft):
    """Drafts with the plan of its `Search`; a method makes that. One text is searched with in a round."""

    options: SearchedOptions

    def __init__(self, options: SearchedOptions, config: ModelConfig) -> None:
        super().__init__(options, config)
        require_rows_aside(self.name, config)
        if config.num_layers < LEAST_LAYERS:
            raise OptionError(
                f"this model has {config.num_layers} layers; {self.name} skips some between first and last, and "
                f"needs {LEAST_LAYERS}"
            )
        self._search: Search | None = None
        self._plan = every_second(config.num_layers)
        self._turn = 0

    @abstractmethod
    def new_search(self) -> Search:
        """A search that knows nothing yet."""

    def bind(self, host: Host) -> None:
        """Go on with what the engine knows, if it was searched with these options before."""
        own = {field.name for field in fields(self.options)} - {field.name for field in fields(CombOptions)}
        key = (self.name, *((name, getattr(self.options, name)) for name in sorted(own)))
        self._search = host.kept(key, self.new_search)
        self._plan = self._search.plan

    @property
    def draws(self) -> bool:
        """Not: see the module."""
        return False

    @property
    def plan(self) -> LayerPlan:
        """The plan of the latest draft."""
        return self._plan

    def plan_of(self, text: Text) -> LayerPlan:  # noqa: ARG002 (one for all)
        """The same for every text; it stays what it is until the next round."""
        return self._plan

    def begin(self, text: Text) -> None:
        """The likeliest tokens are drafted, in sampling too."""
        super().begin(text)
        text.samples_drafts = self.draws

    def refine(
        self, context: Context, texts: Sequence[Text], gammas: Sequence[int], drafts: Sequence[Draft]
    ) -> list[Draft]:
        """Search where it is time and some answer is long enough, then draft."""
        search = self._search = self._search or self.new_search()
        ready = [
            text for text, gamma in zip(texts, gammas, strict=True) if gamma > 0 and self._is_ready(context, text)
        ]
        if ready and search.due():
            self._turn += 1
            search.advance(context, ready[self._turn % len(ready)])
        self._plan = search.plan
        return super().refine(context, texts, gammas, drafts)

    def observe(self, text: Text, commit: Commit) -> None:
        """The search may judge a set by its drafts."""
        super().observe(text, commit)
        assert self._search is not None
        self._search.observe(commit)

    def _is_ready(self, context: Context, text: Text) -> bool:
        """Whether the answer fills the window, and one pass can run over it: near its end a text has few cells."""
        window = self.options.window
        return len(text.tokens) - text.prompt_length > window and context.aside(text) >= window


def every_second(num_layers: int) -> LayerPlan:
    """What SWIFT begins with: layers 1, 3, ... are left out, the last one never."""
    out = range(1, num_layers - 1, 2)
    return LayerPlan.skipping(num_layers, out, out)
