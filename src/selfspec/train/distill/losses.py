"""Divergence from a target's laws and cross entropy of tokens, through an LM head that learns, too.

Of a row with the target's law p, the draft's law q and the token y the loss is kl · KL(p ‖ q) + ce · -log q(y), and
its gradient of the logits kl · (q - p) + ce · (q - [y]). The logits of a chunk of rows, the target's and the
draft's, are there for as long as it takes to make losses and both gradients of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

CHUNK = 128  # rows whose logits are there at once


class Wanted(NamedTuple):
    """What R rows are to say.

    ``law`` makes the logarithms of the target's probabilities [r, V] of its ``states`` [R, d], a chunk at a time.
    ``tokens`` [R] follow in the texts; ``kl`` and ``ce`` are weights.
    """

    law: Callable[[Tensor], Tensor]
    states: Tensor
    tokens: Tensor
    kl: float
    ce: float


def distillation(states: Tensor, head: Tensor, wanted: Wanted) -> tuple[Tensor, Tensor]:
    """The mean loss of rows; and the mean divergence and cross entropy [2], without a gradient.

    ``states`` [R, d] are normed, ``head`` is [V, d]. Products are in the precision of autocast where that is on.
    """
    found: tuple[Tensor, Tensor] = _Distillation.apply(states, head, wanted)  # type: ignore[no-untyped-call]
    return found


class _Distillation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, head: Tensor, wanted: Wanted) -> tuple[Tensor, Tensor]:
        kind = states.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else head.dtype
        with torch.autocast(kind, enabled=False):
            means, of_states, of_head = _chunked(states.to(dtype), head.to(dtype), wanted)
        ctx.save_for_backward(of_states.to(states.dtype), of_head.to(head.dtype))
        ctx.mark_non_differentiable(means)
        return wanted.kl * means[0] + wanted.ce * means[1], means

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        of_states, of_head = ctx.saved_tensors
        return of_states * grads[0], of_head * grads[0], None


def _chunked(states: Tensor, head: Tensor, wanted: Wanted) -> tuple[Tensor, Tensor, Tensor]:
    """Means [2], and the gradients of the mean loss: of the states [R, d] and of the head [V, d]."""
    wide = torch.promote_types(head.dtype, torch.float32)
    count = max(1, len(states))
    sums = torch.zeros(2, dtype=wide, device=states.device)
    of_states, of_head = torch.empty_like(states, dtype=wide), torch.zeros_like(head, dtype=wide)
    for start in range(0, len(states), CHUNK):
        rows = slice(start, start + CHUNK)
        log_p = wanted.law(wanted.states[rows]).to(wide)
        log_q = torch.log_softmax((states[rows] @ head.T).to(wide), dim=-1)
        p, picked = log_p.exp(), wanted.tokens[rows, None]
        sums[0] += (p * (log_p - log_q)).sum()
        sums[1] -= log_q.gather(1, picked).sum()
        slopes = log_q.exp_().mul_(wanted.kl + wanted.ce).sub_(p.mul_(wanted.kl))
        slopes.scatter_add_(1, picked, slopes.new_full((len(slopes), 1), -wanted.ce))
        slopes = slopes.div_(count).to(head.dtype)
        of_states[rows] = (slopes @ head).to(wide)
        of_head += slopes.T @ states[rows]
    return sums / count, of_states, of_head
