"""Cross entropy to the target's law over the draft vocabulary, without keeping logits.

With W the rows of the LM head and p the target's law, the cross entropy of a normed state h is
logsumexp(W h) - h · (W' p), and its gradient W' softmax(W h) - W' p. So a row of the target is worth one vector
e = W' p (`Teacher`), made once and shared by all steps and epochs; the logits of a chunk of rows live in two
buffers that are used again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

CHUNK = 256  # rows whose logits are there at once


class Expected(NamedTuple):
    """Of each row: the mean e [R, d] of the head's rows under the target's law, and that law's entropy [R]."""

    rows: Tensor
    entropy: Tensor


class Teacher:
    """The target's law over the draft vocabulary: ``norm`` and the ``head`` rows [D, d] of its tokens."""

    def __init__(self, norm: Callable[[Tensor], Tensor], head: Tensor) -> None:
        self._norm, self.head = norm, head

    def __call__(self, states: Tensor) -> Expected:
        """What the target expects at ``states`` [R, d], those after its last layer."""
        with torch.no_grad():
            read = self._norm(states)
            rows, normalisers = _expectations(read, self.head)
            return Expected(rows, normalisers - (read * rows).sum(-1))

    def law(self, states: Tensor) -> Tensor:
        """The logarithms of its probabilities [R, D] at ``states`` [R, d], those after its last layer."""
        with torch.no_grad():
            return torch.log_softmax(self._norm(states) @ self.head.T, dim=-1)


def cross_entropy(states: Tensor, head: Tensor, expected: Tensor) -> Tensor:
    """Cross entropy [R] of normed ``states`` [R, d] to laws under which the ``head`` has the means ``expected``.

    ``head`` [D, d] is frozen: only the states have a gradient. Products have its precision, sums are float32.
    """
    found: Tensor = _CrossEntropy.apply(states, head, expected)  # type: ignore[no-untyped-call]
    return found


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, head: Tensor, expected: Tensor) -> Tensor:
        means, normalisers = _expectations(states.to(head.dtype), head)
        ctx.save_for_backward(means.sub_(expected))
        return normalisers - (states * expected).sum(-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (slopes,) = ctx.saved_tensors
        return slopes * grads[0][:, None], None, None


def _expectations(states: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of the rows of ``head`` under soft-max(head · state), and log-sum-exp of the logits: [R, d], [R]."""
    count = len(states)
    means = states.new_empty(states.shape, dtype=torch.promote_types(states.dtype, torch.float32))
    normalisers = means.new_empty(count)
    size = min(CHUNK, max(1, count))
    logits, shares = (states.new_empty(size, len(head)) for _ in range(2))
    for start in range(0, count, size):
        part = states[start : start + size]
        z, q = logits[: len(part)], shares[: len(part)]
        torch.mm(part, head.T, out=z)
        torch.softmax(z, dim=-1, out=q)
        means[start : start + size] = torch.mm(q, head)
        highest, where = z.max(dim=-1)
        share = q.gather(1, where[:, None])[:, 0].to(means.dtype)
        normalisers[start : start + size] = highest.to(means.dtype) - share.log()
    return means, normalisers
