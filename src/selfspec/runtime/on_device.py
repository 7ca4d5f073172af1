"""Rounds that a device runs without the host: drafts of which it has seen no token, and their verification.

What is on the host, loop and commits, needs the accepted tokens once a round; everything before is launched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.plans import LayerPlan
    from selfspec.runtime.base import Cache
    from selfspec.settings import Array, Sampling
    from selfspec.types import Draft


class Start(NamedTuple):
    """Where a draft of ``gamma`` tokens begins: the pending token of a slot, at its position.

    ``uniforms`` are γ numbers of the text, where the law is not greedy.
    """

    slot: int
    position: int
    token: int
    gamma: int
    uniforms: tuple[float, ...] = ()


class Case(NamedTuple):
    """A draft to judge by the target's logits [rows, V].

    ``uniforms`` are as many numbers of the text as can be needed (`OnDevice.numbers`); which of them are used
    follows `selfspec.verify`.
    """

    draft: Draft
    logits: Array
    uniforms: tuple[float, ...]


class Findings(NamedTuple):
    """What came back of a case.

    Of a deterministic draft the token that the target ``chose`` after every row. Of a sampled one how much of it
    was ``accepted``, the token after that if it ends nowhere before, and how many numbers were ``used`` for the
    first.
    """

    chose: tuple[int, ...] = ()
    accepted: int = 0
    bonus: int = 0
    used: int = 0


class OnDevice(ABC):
    """What a runtime offers that drafts and judges where its weights are.

    ``sampling`` has no processors, constraint, typical-p or coupling: only temperature, top-k, top-p and min-p.
    """

    @abstractmethod
    def draft(self, plan: LayerPlan, starts: Sequence[Start], cache: Cache, sampling: Sampling) -> list[Draft]:
        """γ steps of ``plan`` for each text, one token after the other; their tokens are unseen.

        Deterministic where ``sampling`` is greedy. They end nowhere early: tokens past an end are drafted, too.
        """

    def drafting(self) -> float:
        """Seconds that the drafts since the last call have taken on the device, asked after `judge`.

        0 where a draft is done when `draft` returns: then the loop's clock has seen it.
        """
        return 0.0

    @abstractmethod
    def judge(self, cases: Sequence[Case], sampling: Sampling) -> list[Findings | None]:
        """Judge drafts, chains if they are sampled; None where a law is not finite. The host waits for it, once.

        Unseen tokens of the drafts have been seen afterwards.
        """
