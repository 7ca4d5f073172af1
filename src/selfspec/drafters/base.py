"""The drafter seam: one file per method. Drafters propose; running, caching and verifying are not theirs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from selfspec.errors import OptionError
from selfspec.types import MAX_GAMMA, require_types

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from selfspec.context import Context, Text
    from selfspec.model.config import ModelConfig
    from selfspec.rounds import Commit, Round
    from selfspec.types import Draft, LayerPlan

T = TypeVar("T")


def option(default: Any, text: str) -> Any:
    """A field of an options dataclass, with the sentence that ``--help`` and the docs show."""
    return field(default=default, metadata={"help": text})


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


class Host(Protocol):
    """What a drafter may use of the engine that it drafts for, which is one."""

    def kept(self, key: Hashable, make: Callable[[], T]) -> T:
        """What ``make()`` gave for this key, made once and kept as long as the engine: drafters come and go."""


class Drafter(ABC):
    """Guesses the next tokens of every text in flight.

    The engine calls ``bind`` before any text. The loop calls ``begin`` once per text after its prefill, then
    ``propose``, ``observe`` and ``timed`` in turn, then ``end``. ``name`` is that of its entry point, ``Options``
    the frozen dataclass of its options, ``summary`` its line in ``selfspec drafters``. ``is_free`` says that a
    draft costs next to nothing beside a pass and is deterministic: it may be asked for one in every round.
    """

    Options: ClassVar[type[DraftOptions]] = DraftOptions
    name: ClassVar[str]
    summary: ClassVar[str]
    is_free: ClassVar[bool] = False

    def __init__(self, options: DraftOptions, config: ModelConfig) -> None:
        self.options = options
        self.config = config

    @property
    def plan(self) -> LayerPlan | None:
        """The layers that a draft step runs; None when it runs none."""
        return None

    @property
    def parts(self) -> tuple[Drafter, ...]:
        """The drafters that it consists of: itself, unless it asks others."""
        return (self,)

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

    def begin(self, text: Text) -> None:  # noqa: B027 (many have nothing to do)
        """A text enters. All state is per text: one drafter may serve many streams at once."""

    @abstractmethod
    def propose(self, context: Context, texts: Sequence[Text], gammas: Sequence[int]) -> list[Draft]:
        """One draft per text, of at most its γ tokens; an empty `Draft` where there is nothing to propose."""

    def observe(self, text: Text, commit: Commit) -> None:  # noqa: B027 (many have nothing to do)
        """Learn what became of the draft; ``text`` has moved forward already."""

    def timed(self, texts: Sequence[Text], round_: Round) -> None:  # noqa: B027 (many have nothing to do)
        """Learn what a round took in which it drafted for ``texts``; those that ended have not left yet."""

    def end(self, text: Text) -> None:  # noqa: B027 (many have nothing to do)
        """A text leaves; free what is kept for it."""
