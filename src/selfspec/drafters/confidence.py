"""The confidence stop: end a draft before a token that would probably be rejected."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selfspec.drafters.base import DraftOptions


class ConfidenceStop:
    """Ends a draft before a token of low confidence, with the threshold controller of Draft & Verify.

    The confidence must be known before the token is drawn (the largest probability, not that of the token):
    then the decision depends only on what is submitted, and the output law is untouched. Draft & Verify keeps
    the token that triggers the stop; here it is not drafted, since a self-draft that stops has lost only the
    head's time, while verifying one more row costs a shallow pass.

    After every verification the acceptance rate is averaged (m <- m/2 + accepted/drafted/2) and the threshold
    drifts by 0.01, smoothed by 0.9: up while m is below 0.9, else down, unless the draft had its full length
    (arXiv 2309.08168, section 3.3 and its code). Where nothing was drafted it drifts down, or it could never
    learn that drafts have become good.
    """

    TARGET = 0.9
    STEP = 0.01
    MOMENTUM = 0.9

    def __init__(self, options: DraftOptions) -> None:
        self.threshold = options.confidence
        self._adaptive = options.adaptive
        self._gamma = options.gamma
        self._acceptance = self.TARGET

    @property
    def is_on(self) -> bool:
        """Whether confidences are looked at; drafters may skip computing them otherwise."""
        return self.threshold > 0.0 or self._adaptive

    def before(self, confidence: float) -> bool:
        """Whether to stop before a token of this confidence."""
        return confidence < self.threshold

    def observe(self, drafted: int, accepted: int) -> None:
        """Learn from one round."""
        if not self._adaptive:
            return
        if drafted:
            self._acceptance = 0.5 * self._acceptance + 0.5 * accepted / drafted
        moved = self.threshold
        if drafted and self._acceptance < self.TARGET:
            moved += self.STEP
        elif drafted < self._gamma:
            moved -= self.STEP
        smoothed = self.MOMENTUM * self.threshold + (1 - self.MOMENTUM) * moved
        self.threshold = min(max(smoothed, 0.0), 1.0)
