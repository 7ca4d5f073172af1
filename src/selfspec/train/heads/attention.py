"""Attention of rows that roll out: true keys up to where a roll-out began, then those of its own steps.

In step s of EAGLE's training-time test (arXiv 2503.01840) row j began its roll-out at row j - s. It sees the keys
of the target's features in the cells up to j - s, and those that steps 1 to s made in the cells j - s + 1 to j: of
step i just one, in cell j - s + i. So its scores are those of a causal mask, and s more columns: nowhere are there
S x T columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch

from selfspec.runtime.attached import rope_of_head
from selfspec.runtime.rotary import inverse_frequencies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from selfspec.model.head_file import HeadFacts
    from selfspec.train.heads.packs import Span

    Heads: TypeAlias = "tuple[Tensor, Tensor]"


def frequencies_of(facts: HeadFacts) -> Tensor:
    """The inverse frequencies [w / 2] of a head's rotary embedding, in float64."""
    half, rope = facts.head_dim // 2, rope_of_head(facts)
    if rope.kind == "default":
        return rope.theta ** -(torch.arange(half, dtype=torch.float64) / half)
    return torch.from_numpy(inverse_frequencies(rope, facts.head_dim)).to(torch.float64)


def turned(heads: Tensor, positions: Tensor, frequencies: Tensor) -> Tensor:
    """Rotary embedding of ``heads`` [R, H, w] at ``positions`` [R]; the members of a pair are w / 2 apart."""
    half = heads.shape[-1] // 2
    angles = positions[:, None].to(torch.float64) * frequencies.to(heads.device)
    cos, sin = (f(angles).to(heads.dtype)[:, None] for f in (torch.cos, torch.sin))
    first, second = heads[..., :half], heads[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def attend(queries: Tensor, true: Heads, own: Sequence[Heads], spans: Sequence[Span]) -> Tensor:
    """What the rows of one step find: [R, H, w].

    Parameters
    ----------
    queries
        [R, H, w] of the rows asked in step s = ``len(own)``, text after text.
    true
        Keys and values [N, G, w] of all rows from the target's features; G divides H.
    own
        Those that the steps 1 to s made, of the rows that they asked.
    spans
        The rows of each text.
    """
    steps, found = len(own), []
    asked = torch.split(queries, [span.asked(steps) for span in spans])
    rows = [torch.split(part, [span.rows for span in spans]) for part in true]
    # rows of step i and of step s in the same order have cells that are s - i apart, as a roll-out's are
    made = [
        [torch.split(part, [span.asked(i) for span in spans]) for part in step_made]
        for i, step_made in enumerate(own, 1)
    ]
    for n, span in enumerate(spans):
        if count := span.asked(steps):
            seen = (rows[0][n][: span.first + count], rows[1][n][: span.first + count])
            mine = [(keys[n][:count], values[n][:count]) for keys, values in made]
            found.append(_one_text(asked[n], seen, mine))
    return torch.cat(found) if found else queries


def _one_text(queries: Tensor, true: Heads, own: Sequence[Heads]) -> Tensor:
    """Row r of ``queries`` [n, H, w] sees the first C - n + 1 + r of C true cells, and row r of each of ``own``."""
    (count, heads, width), (cells, groups, _) = queries.shape, true[0].shape
    each, columns = heads // groups, cells
    asked = queries.view(count, groups, each, width).permute(1, 2, 0, 3)  # [G, H / G, n, w]
    keys, values = (part.transpose(0, 1) for part in true)  # [G, C, w]
    scores = (asked.reshape(groups, each * count, width) @ keys.mT).view(groups, each, count, cells)
    hidden = torch.ones(count, cells, dtype=torch.bool, device=queries.device).triu(cells - count + 1)
    scores = scores.masked_fill(hidden, -torch.inf)
    if own:
        mine = torch.stack([k for k, _ in own], dim=-1).permute(1, 0, 2, 3)  # [G, n, w, s]
        scores = torch.cat((scores, torch.einsum("ghnw,gnws->ghns", asked, mine)), dim=-1)
    shares = torch.softmax(scores * width**-0.5, dim=-1)
    out = (shares[..., :columns].reshape(groups, each * count, columns) @ values).view(groups, each, count, width)
    if own:
        mine = torch.stack([v for _, v in own], dim=-1).permute(1, 0, 2, 3)
        out = out + torch.einsum("ghns,gnws->ghnw", shares[..., columns:], mine)
    return out.permute(2, 0, 1, 3).reshape(count, heads, width)
