"""What the loop tells its consumers: what each round added, and the sums of a generation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.types import FinishReason


class Score(NamedTuple):
    """What the target thought of a token: its log probability, and the likeliest tokens with theirs, best first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """What one round added to one sequence.

    ``tokens`` are final, cut where plain decoding would have stopped; the first ``accepted`` of them are
    draft tokens, the bonus token follows unless the text ended before it. ``widths[d]`` tokens were proposed
    at depth d of the draft: one each for a chain, more for a tree. ``predicted`` of them came from the user's
    prediction, ``predicted_accepted`` of those were accepted. Row-layers are those of its own rows. ``scores`` has
    one entry for each token where the text asks for them (`Text.logprobs`), else none.
    """

    sequence: int
    tokens: tuple[int, ...]
    widths: tuple[int, ...]
    accepted: int
    finish_reason: FinishReason | None
    draft_row_layers: float = 0.0
    verify_row_layers: float = 0.0
    predicted: int = 0
    predicted_accepted: int = 0
    scores: tuple[Score, ...] = ()

    @property
    def drafted(self) -> int:
        """How many tokens were proposed."""
        return sum(self.widths)

    @property
    def depth(self) -> int:
        """The most of them that could have been accepted."""
        return len(self.widths)


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of the loop: draft, verify, commit; ``index`` 0 is a prefill, which drafts nothing.

    Times are seconds of the loop's clock since decoding began. Row-layers count layers times rows; those of a
    text that failed are among them, its commit is not.
    """

    index: int
    commits: tuple[Commit, ...]
    started: float
    drafted_at: float
    ended: float
    draft_row_layers: float
    verify_row_layers: float

    def only(self, sequence: int, since: float = 0.0) -> Round | None:
        """What the round was for one sequence, None if nothing; its times count from ``since``.

        The time of a round is that of all its sequences: they share its passes.
        """
        own = next((commit for commit in self.commits if commit.sequence == sequence), None)
        if own is None:
            return None
        return replace(
            self,
            commits=(own,),
            started=self.started - since,
            drafted_at=self.drafted_at - since,
            ended=self.ended - since,
            draft_row_layers=own.draft_row_layers,
            verify_row_layers=own.verify_row_layers,
        )


@dataclass(slots=True)
class Stats:
    """Sums over the rounds of a generation; names follow vLLM where it has them.

    The mean accepted length τ includes the bonus token: tokens per round of the rounds after the prefill.
    ``drafted`` counts every token that was proposed, those of a tree too; positions are depths in the draft.
    Prediction tokens are those of them that were copied from the user's prediction.
    """

    texts: int = 0
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    draft_row_layers: float = 0.0
    verify_row_layers: float = 0.0
    prefill_row_layers: float = 0.0
    draft_seconds: float = 0.0
    ttft_seconds: float = 0.0
    seconds: float = 0.0
    drafted_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)

    def add(self, round_: Round) -> None:
        """Count one round."""
        self.tokens += sum(len(commit.tokens) for commit in round_.commits)
        self.seconds = round_.ended
        if round_.index == 0:
            self.texts += len(round_.commits)
            self.ttft_seconds = round_.ended
            self.prefill_row_layers += round_.verify_row_layers
            return
        self.rounds += len(round_.commits)
        self.draft_seconds += round_.drafted_at - round_.started
        self.draft_row_layers += round_.draft_row_layers
        self.verify_row_layers += round_.verify_row_layers
        for commit in round_.commits:
            self.drafted += commit.drafted
            self.accepted += commit.accepted
            self.accepted_prediction_tokens += commit.predicted_accepted
            self.rejected_prediction_tokens += commit.predicted - commit.predicted_accepted
            add_per_position(self.drafted_per_position, commit.widths)
            add_per_position(self.accepted_per_position, (1,) * commit.accepted)

    @property
    def acceptance_rate(self) -> float | None:
        """α: accepted ÷ drafted; None when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_accepted_length(self) -> float | None:
        """τ: tokens per round, bonus included; None before the first round."""
        return (self.tokens - self.texts) / self.rounds if self.rounds else None

    @property
    def tokens_per_second(self) -> float:
        """All new tokens ÷ wall time from the call to the last token, prefill included."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Tokens after the first of each text ÷ wall time after it; None for a single token."""
        span = self.seconds - self.ttft_seconds
        return (self.tokens - self.texts) / span if self.tokens > self.texts and span > 0 else None


def add_per_position(per_position: list[int], counts: Sequence[int]) -> None:
    """Add counts by depth in a draft to such sums, which grow where a draft is deeper."""
    per_position.extend([0] * (len(counts) - len(per_position)))
    for i, count in enumerate(counts):
        per_position[i] += count
