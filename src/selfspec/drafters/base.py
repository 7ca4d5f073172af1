"""The drafter seam: one file per method. Drafters propose; running, caching and verifying are not theirs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

from selfspec.errors import OptionError
from selfspec.types import MAX_GAMMA, require_types

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Hashable, Sequence

    from _typeshed import DataclassInstance

    from selfspec.context import Context, Text
    from selfspec.drafters.ahead import Ahead, Outcome
    from selfspec.feeds import Feed
    from selfspec.model import Tokenizer
    from selfspec.model.config import ModelConfig
    from selfspec.rounds import Commit, Round
    from selfspec.runtime.base import Runtime
    from selfspec.types import Array, Draft, LayerPlan

T = TypeVar("T")


def option(default: Any, text: str, opens: bool = False) -> Any:
    """A field of an options dataclass, with the sentence that ``--help`` and the docs show.

    ``opens`` marks what names files or loads models: requests of strangers may not set it.
    """
    return field(default=default, metadata={"help": text, "opens": opens})


def inherited(options: type[DataclassInstance], name: str, default: Any) -> Any:
    """An option that ``options`` has, with another default."""
    return field(default=default, metadata={f.name: f for f in fields(options)}[name].metadata)


def repeatable_option() -> Any:
    """Of drafters that decide by the clock: whether a seed gives one text all the same."""
    return option(
        True,
        "Sampled drafts are the likeliest tokens, so that a seed gives one text whatever the clock says; off draws "
        "them, which accepts more where the temperature is high.",
    )


@dataclass(frozen=True)
class DraftOptions:
    """Options that every drafter has; command-line flags and docs are made from the fields."""

    gamma: int = option(4, "Most tokens to draft per round (γ); 0 drafts nothing.")
    confidence: float = option(
        0.0, "Stop drafting where the confidence in the next token is below this; 0 never stops early."
    )
    adaptive: bool = option(
        False, "Move the confidence threshold after every round (Draft & Verify), starting at --confidence."
    )

    def __post_init__(self) -> None:
        require_types(self)
        if not 0 <= self.gamma <= MAX_GAMMA:
            raise OptionError(f"gamma is {self.gamma}; it must be 0 (no drafts) to {MAX_GAMMA}")
        if not 0.0 <= self.confidence <= 1.0:
            raise OptionError(f"confidence is {self.confidence}; it must be 0 (never stop early) to 1")

    @property
    def most_tokens(self) -> int:
        """The most tokens that a draft can have: γ for a chain."""
        return self.gamma


class Loaded(NamedTuple):
    """A model that is ready to run."""

    runtime: Runtime
    tokenizer: Tokenizer | None
    name: str
    fingerprint: str


class Host(Protocol):
    """What a drafter may use of its engine, which is one: the target's parts, and a way to other models."""

    @property
    def runtime(self) -> Runtime:
        """The target's."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The target's; None where prompts are token ids."""

    @property
    def fingerprint(self) -> str:
        """Of the target's checkpoint; empty for a model object."""

    def notify(self, line: str) -> None:
        """Tell the user of something that takes long."""

    def open_model(self, model: str | os.PathLike[str] | None = None, **placement: Any) -> Loaded:
        """A model, by default the target's own checkpoint, placed as `selfspec.load` would (runtime, bits, ...).

        It is loaded once and kept as long as the engine. Raises as `selfspec.load`.
        """

    def kept(self, key: Hashable, make: Callable[[], T]) -> T:
        """What ``make()`` gave for this key, made once and kept as long as the engine: drafters come and go."""


class Extra(NamedTuple):
    """Bytes that a drafter holds beyond plain decoding, the buffers of a round aside (`drafters.buffers`).

    ``weights`` are shared by all texts of an engine, ``kv`` are the keys and values of one text, as far as it has
    drafted.
    """

    weights: int = 0
    kv: int = 0


class Drafter(ABC):
    """Guesses the next tokens of every text in flight.

    The engine calls ``bind`` before any text. The loop calls ``begin`` once per text after its prefill, then
    ``propose``, ``observe`` and ``timed`` in turn, then ``end``. ``name`` is that of its entry point, ``Options``
    the frozen dataclass of its options, ``summary`` its line in ``selfspec drafters``, ``paper`` where the method
    is from and ``pays`` when to take it, for its page; ``samples`` says whether its drafts bring the laws that
    they were drawn from, which take memory. ``is_free`` says that a draft costs next to nothing beside a pass and
    is deterministic: it may be asked for one in every round. ``usual_alpha`` is how often a draft token of such a
    drafter is right: what `auto` goes by until it has seen some. (Most exits of models that were not trained for
    it seldom are.) ``looks_ahead`` says that it can draft for tokens that are not committed, beside a
    verification (`ahead`). ``keeps_up`` says that what `taps` brings is read even while others draft; `auto`
    asks that of none. ``reads_prompt_states`` says that it needs the target's states of every row of the
    prompt: then all of them run, and no cells of another text stand in for some.
    """

    Options: ClassVar[type[DraftOptions]] = DraftOptions
    name: str
    summary: ClassVar[str]
    paper: ClassVar[str] = ""
    pays: ClassVar[str] = ""
    samples: bool = False
    is_free: bool = False
    looks_ahead: bool = False
    reads_prompt_states: bool = False
    keeps_up: bool = True
    usual_alpha: ClassVar[float] = 0.25

    def __init__(self, options: DraftOptions, config: ModelConfig) -> None:
        self.options = options
        self.config = config
        if config.recurrences and options.most_tokens > options.gamma:
            raise OptionError(
                f"{self.name} would draft trees; {config.family} has recurrent layers, which verify chains only: "
                "leave siblings at 0"
            )

    @classmethod
    def for_options(cls, options: DraftOptions, config: ModelConfig) -> Drafter:
        """The drafter that ``options`` ask for: one of this class, unless they choose among several."""
        return cls(options, config)

    @property
    def plan(self) -> LayerPlan | None:
        """The layers that a draft step runs; None when it runs none."""
        return None

    @property
    def step_share(self) -> float | None:
        """What a draft step should take, in passes of the target, by the bytes that it reads; None if unknown.

        `auto` goes by it until it has timed one.
        """
        return None

    @property
    def stated_alphas(self) -> tuple[float, ...]:
        """How often tokens of a draft hold, by depth, as whoever trained it has measured; empty if nobody has.

        `auto` begins with it.
        """
        return ()

    @property
    def runs(self) -> str:
        """What runs a draft step, for people; "none" where no layers do."""
        return str(self.plan or "none")

    @property
    def extra_bytes(self) -> Extra:
        """What it costs in memory: nothing, unless it brings weights or a cache of its own."""
        return Extra()

    @property
    def uses_prediction(self) -> bool:
        """Whether it drafts from `Text.prediction`; a drafter of drafters does if one of them does."""
        return False

    @property
    def exits(self) -> int:
        """For each row of a draft, how many exits it keeps logits and states of until the row is judged."""
        return 0

    @property
    def taps(self) -> tuple[int, ...]:
        """The layers after which it reads the states of every committed row (`selfspec.feeds`); most read none."""
        return ()

    @property
    def studies(self) -> int | None:
        """The layer after which it wants states of verified rows, and what the target says of them: `taught`."""
        return None

    @property
    def parts(self) -> tuple[Drafter, ...]:
        """The drafters that it consists of: itself, unless it asks others."""
        return (self,)

    @property
    def most_tokens(self) -> int:
        """The most tokens that a draft can have: γ for a chain, more where one of its parts adds siblings."""
        widths = (part.options.most_tokens // max(part.options.gamma, 1) for part in self.parts)
        return self.options.gamma * max(1, *widths)

    @property
    def draws(self) -> bool:
        """Whether drafts of sampled texts may be sampled too."""
        return True

    @classmethod
    def variants(cls, config: ModelConfig, options: dict[str, Any]) -> list[dict[str, Any]]:  # noqa: ARG003
        """Options under which `auto` tries it, on top of those given; none where it cannot run this model."""
        return [options]

    def bind(self, host: Host) -> None:  # noqa: B027 (many have nothing to do)
        """Take from the engine what is needed; may be called again with the same one.

        Raises SelfspecError, before anything is generated, for what this engine cannot do.
        """

    def read(self, context: Context, feed: Feed) -> None:  # noqa: B027 (who taps no layers has nothing to read)
        """More rows of a text wait for it than are kept for long: read them."""

    def taught(self, text: Text, states: Array, logits: Array) -> None:  # noqa: B027
        """Of rows that were verified and committed: states [R, d] after `studies`, the target's logits [R, V].

        Both are this drafter's to keep.
        """

    def begin(self, text: Text) -> None:  # noqa: B027 (many have nothing to do)
        """A text enters. All state is per text: one drafter may serve many streams at once."""

    @abstractmethod
    def propose(self, context: Context, texts: Sequence[Text], gammas: Sequence[int]) -> list[Draft]:
        """One draft per text, of at most its γ tokens; an empty `Draft` where there is nothing to propose."""

    def refine(
        self, context: Context, texts: Sequence[Text], gammas: Sequence[int], drafts: Sequence[Draft]
    ) -> list[Draft]:
        """Go on from what an earlier drafter has proposed (`staged`), chains all; at most γ tokens in all.

        What a drafter does not know better stands: here, texts without a proposal get this drafter's own, and keep
        the states that an earlier one has left. An override may check what it is given; each token of what it
        returns must have the law that it states, whatever was given.
        """
        missing = [i for i, draft in enumerate(drafts) if not draft.tokens]
        most = self.options.gamma
        own = self.propose(context, [texts[i] for i in missing], [min(gammas[i], most) for i in missing])
        found = list(drafts)
        for i, draft in zip(missing, own, strict=True):
            before = drafts[i]
            is_begun = draft.hidden is None and before.hidden is not None
            found[i] = replace(draft, hidden=before.hidden, layer=before.layer) if is_begun else draft
        return found

    def during(self, context: Context, texts: Sequence[Text], drafts: Sequence[Draft]) -> Callable[[], None] | None:  # noqa: ARG002
        """Begin what can be done while these drafts are verified; what is returned is called after that, and waits.

        Until then nothing but reading the texts is allowed elsewhere: no pass of the target, no random number.
        """
        return None

    def look_ahead_with(self, outcomes: int) -> None:  # noqa: B027
        """Be ready to draft for so many outcomes of a verification (`ahead`); after `bind`."""

    def ahead(
        self,
        context: Context,
        texts: Sequence[Text],
        drafts: Sequence[Draft],
        fans: Sequence[Sequence[int]],
    ) -> list[Ahead]:
        """For each text drafts for outcomes of the verification of ``drafts``, its own (`overlap`).

        ``fans[i][k]`` is for how many bonus tokens after k accepted ones. It runs beside a verification, and may
        take random numbers of the texts, which no one else does then.
        """
        raise NotImplementedError

    def adopt(self, text: Text, outcome: Outcome) -> None:  # noqa: B027
        """The draft for this outcome, made ahead, is proposed in this round."""

    def observe(self, text: Text, commit: Commit) -> None:  # noqa: B027 (many have nothing to do)
        """Learn what became of the draft; ``text`` has moved forward already."""

    def timed(self, texts: Sequence[Text], round_: Round) -> None:  # noqa: B027 (many have nothing to do)
        """Learn what a round took in which it drafted for ``texts``; those that ended have not left yet."""

    def end(self, text: Text) -> None:  # noqa: B027 (many have nothing to do)
        """A text leaves; free what is kept for it."""
