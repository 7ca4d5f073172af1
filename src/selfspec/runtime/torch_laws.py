"""Laws, picks and verdicts of many rows at once in torch: nothing of them waits for the host.

The same rules as `selfspec.sampling` and `selfspec.verify`, without a branch on a number; tests hold them against
those, row by row and number by number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec.settings import Sampling


def masses(logits: Tensor, sampling: Sampling) -> Tensor:
    """Numbers [R, V] in float64 proportional to the probabilities; 0 for what top-k, top-p and min-p leave out."""
    wide = logits.double()
    # below 1e-300 the law is the one-hot in float64 anyway, and the division would overflow
    scaled = (wide - wide.amax(-1, keepdim=True)) / max(sampling.temperature, 1e-300)
    if 0 < sampling.top_k < logits.shape[-1]:
        least = torch.topk(logits, sampling.top_k, dim=-1).values[..., -1:]
        scaled = torch.where(logits >= least, scaled, -torch.inf)
    found = torch.exp(scaled)
    if sampling.top_p < 1.0:
        found = torch.where(scaled >= _nucleus(scaled, found, sampling.top_p), found, 0.0)
    return torch.where(found >= sampling.min_p, found, 0.0) if sampling.min_p > 0.0 else found


def _nucleus(scaled: Tensor, found: Tensor, top_p: float) -> Tensor:
    """The smallest of ``scaled`` [R, 1] among the fewest largest that hold ``top_p`` of ``found``."""
    ordered = scaled.sort(dim=-1, descending=True).values
    each = torch.exp(ordered)
    better = each.cumsum(-1) - each
    inside = (better < top_p * found.sum(-1, keepdim=True)).sum(-1, keepdim=True)
    return ordered.gather(-1, inside - 1)


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """Those of rows of logits [R, V], in float64."""
    found = masses(logits, sampling)
    return found / found.sum(-1, keepdim=True)


def picked(probs: Tensor, uniforms: Tensor) -> Tensor:
    """The tokens [R] at ``uniforms`` [R] of the cumulative distributions of ``probs`` [R, V], as `Dense.pick`."""
    cumulative = probs.cumsum(-1)
    thresholds = uniforms[:, None] * cumulative[:, -1:]
    places = torch.searchsorted(cumulative, thresholds, right=True)
    inside = places.clamp(max=probs.shape[-1] - 1)
    has_mass = (places < probs.shape[-1]) & (probs.gather(-1, inside) > 0.0)
    return torch.where(has_mass, inside, probs.argmax(-1, keepdim=True))[:, 0]


def is_finite(logits: Tensor) -> Tensor:
    """Whether the largest of each row [R, V] is a number."""
    return torch.isfinite(logits.amax(-1))


def block_verdict(target: Tensor, drafted: Tensor, tokens: Tensor, uniforms: Tensor) -> Tensor:
    """`selfspec.verify.verify_block` of a chain of γ > 0 tokens: accepted, bonus, and how many numbers that took.

    ``target`` [γ + 1, V] and ``drafted`` [γ, V] are probabilities, ``uniforms`` [γ + 2]. The number that draws the
    bonus comes after those that are counted.
    """
    gamma = len(tokens)
    at = tokens[:, None]
    ratios = (target[:-1].gather(-1, at) / drafted.gather(-1, at))[:, 0]
    # w_i = min(w_{i-1} r_i, 1): in logarithms a walk that is held below 0
    walk = ratios.log().cumsum(0)
    weights = torch.exp(walk - walk.cummax(0).values.clamp(min=0.0))  # w_1 ... w_γ
    before = torch.cat((weights.new_ones(1), weights[:-1]))
    rest = (before[:, None] * target[:-1] - drafted).clamp(min=0.0).sum(-1)  # R_0 ... R_{γ-1}
    shares = torch.where(rest > 0.0, rest / (rest + (1.0 - before)), 0.0)
    order = torch.arange(1, gamma + 1, device=tokens.device)
    rows = torch.where(weights == 0.0, order, gamma).amin()  # nothing is looked at after a token that cannot hold
    # how likely the first `order` tokens are to hold: the last ones by their weight, else by the share of their row
    chances = torch.where(order == rows, weights, torch.cat((shares[1:], shares.new_zeros(1))))
    holds = (order <= rows) & (uniforms[(rows - order).clamp(min=0)] < chances)
    accepted = torch.where(holds, order, 0).amax()[None]  # a tensor without dimensions would be read to index
    used = torch.where(accepted > 0, rows - accepted + 1, rows)
    weight = torch.where(accepted > 0, weights[(accepted - 1).clamp(min=0)], 1.0)
    law = target[accepted]
    left = (weight * law - drafted[accepted.clamp(max=gamma - 1)]).clamp(min=0.0)
    law = torch.where((accepted < gamma) & (left.sum() > 0.0), left, law)
    return torch.cat((accepted, picked(law, uniforms[used]), used))
