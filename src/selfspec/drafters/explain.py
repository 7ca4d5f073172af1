"""What `auto` says of itself: for every candidate what it cost, how often it was right, and how it fared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from selfspec.rounds import add_per_position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.rounds import Commit


class Expected(NamedTuple):
    """Of one candidate in one text: c, α by depth, the best γ and its tokens per second, if it always drafted.

    Without α, and with a rate of 0, for one that judges its own drafts.
    """

    c: float
    alphas: list[float]
    gamma: int
    rate: float


@dataclass
class _Line:
    """Of one candidate, or of plain decoding."""

    rounds: int = 0
    probes: int = 0
    tokens: int = 0
    seconds: float = 0.0
    asked_seconds: float = 0.0
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)


@dataclass
class Tally:
    """Counts of one text; the last line is that of plain decoding."""

    lines: list[_Line]
    rounds: int = 0
    last_draft: int = 0  # round

    @classmethod
    def of(cls, candidates: int) -> Tally:
        """An empty one."""
        return cls([_Line() for _ in range(candidates + 1)])

    def asked(self, candidate: int, seconds: float) -> None:
        """A draft was asked for, to be used or not."""
        self.lines[candidate].asked_seconds += seconds

    def committed(self, by: int, probed: int | None, commit: Commit) -> None:
        """A round of the text: who drafted (-1: nobody), and who was only looked at."""
        self.rounds += 1
        line = self.lines[by]
        line.rounds += 1
        line.tokens += len(commit.tokens)
        add_per_position(line.drafted, (1,) * commit.depth)
        add_per_position(line.accepted, (1,) * commit.accepted)
        if by >= 0:
            self.last_draft = self.rounds
        if probed is not None:
            self.lines[probed].probes += 1

    def took(self, by: int, seconds: float) -> None:
        """What that round took, shared among its texts."""
        self.lines[by].seconds += seconds


def explained(labels: Sequence[str], tally: Tally, expected: Sequence[Expected]) -> dict[str, Any]:
    """The table, JSON-ready: ``choices``, plain decoding first, and what became of speculation in ``verdict``."""
    lines = [tally.lines[-1], *tally.lines[:-1]]
    choices: list[dict[str, Any]] = [
        {
            "drafter": label,
            "rounds": line.rounds,
            "probes": line.probes,
            "drafted_per_position": line.drafted,
            "accepted_per_position": line.accepted,
            "draft_seconds": line.asked_seconds,
            "measured_tokens_per_second": line.tokens / line.seconds if line.seconds > 0.0 else None,
        }
        for label, line in zip(["plain", *labels], lines, strict=True)
    ]
    for choice, found in zip(choices, expected, strict=False):
        choice |= {
            "c": found.c,
            "alphas": found.alphas,
            "gamma": found.gamma,
            "expected_tokens_per_second": found.rate,
        }
    return {"rounds": tally.rounds, "choices": choices, "verdict": _verdict(tally, choices)}


def _verdict(tally: Tally, choices: Sequence[dict[str, Any]]) -> str:
    """One sentence: whether speculation is on, or since when it is off, and what the best draft would give."""
    idle = tally.rounds - tally.last_draft
    if not tally.rounds or (tally.last_draft and idle < max(16, tally.rounds // 4)):
        drafted = tally.rounds - tally.lines[-1].rounds
        return f"speculation is on: {drafted} of {tally.rounds} rounds drafted"
    since = f"since round {tally.last_draft + 1} of {tally.rounds}" if tally.last_draft else "in every round"
    plain = choices[0].get("expected_tokens_per_second")
    best = max(choices[1:], key=lambda choice: choice.get("expected_tokens_per_second", 0.0), default=None)
    if not plain or best is None:
        return f"speculation was off {since}"
    ratio = best["expected_tokens_per_second"] / plain
    return f"speculation was off {since}: the best draft, {best['drafter']}, is expected to give {ratio:.2f}x plain"
