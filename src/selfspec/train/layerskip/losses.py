"""Cross entropy through an LM head that learns, too, without keeping logits.

A model with a vocabulary of V has V numbers for every row and exit. Here the logits of a chunk of rows are there
for as long as it takes to make its loss and both gradients of them, those of the states and that of the head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 256  # rows whose logits are there at once


def head_cross_entropy(states: Tensor, head: Tensor, tokens: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the weighted cross entropies of ``tokens`` [R], and each of them [R] without a gradient.

    ``states`` [R, d] are normed, ``head`` is [V, d], ``weights`` [R] are constants. Products are in the precision
    of autocast where that is on; sums and soft-max are in float32.
    """
    found: tuple[Tensor, Tensor] = _HeadCrossEntropy.apply(states, head, tokens, weights)  # type: ignore[no-untyped-call]
    return found


class _HeadCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, head: Tensor, tokens: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        kind = states.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else head.dtype
        with torch.autocast(kind, enabled=False):
            found = _chunked(states.to(dtype), head.to(dtype), tokens, weights, any(ctx.needs_input_grad))
        losses, of_states, of_head = found
        ctx.save_for_backward(of_states.to(states.dtype), of_head.to(head.dtype))
        ctx.mark_non_differentiable(losses)
        return (losses * weights).sum(), losses

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        of_states, of_head = ctx.saved_tensors
        return of_states * grads[0], of_head * grads[0], None, None


def _chunked(
    states: Tensor, head: Tensor, tokens: Tensor, weights: Tensor, is_learning: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses [R], and the gradients of their weighted sum: of the states [R, d] and of the head [V, d].

    The gradients are empty where nobody learns.
    """
    wide = torch.promote_types(head.dtype, torch.float32)
    losses = torch.empty(len(states), dtype=wide, device=states.device)
    of_states = torch.empty_like(states if is_learning else states[:0], dtype=wide)
    of_head = torch.zeros_like(head if is_learning else head[:0], dtype=wide)
    for start in range(0, len(states), CHUNK):
        rows = slice(start, start + CHUNK)
        logits = (states[rows] @ head.T).to(wide)
        picked = tokens[rows, None]
        totals = logits.logsumexp(-1, keepdim=True)
        losses[rows] = (totals - logits.gather(1, picked))[:, 0]
        if is_learning:
            slopes = logits.sub_(totals).exp_()
            slopes.scatter_add_(1, picked, slopes.new_full((len(slopes), 1), -1.0))
            slopes = slopes.mul_(weights[rows, None]).to(head.dtype)
            of_states[rows] = (slopes @ head).to(wide)
            of_head += slopes.T @ states[rows]
    return losses, of_states, of_head
