"""Passes of fixed shapes: rows on a grid, and attention over all cells of a cache.

A pass of R rows runs as ``slots`` x ``width`` rows, ``width`` being the smallest of a few counts that holds the
rows of every slot. The rows of the grid that nobody asked for write to a scratch cell, see one cell, and are
dropped. So there are few shapes, each is compiled once, and a row is computed by the same kernels whatever rows run
beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own abbreviation)

from selfspec.runtime.torch_placement import angles, rotate

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec.runtime.torch_placement import Scores, Turn
    from selfspec.types import Integers, Rows

WIDTHS = (8, 16, 64)  # rows of a slot; plain decoding has the first, like drafts of up to 7 tokens
MOST_ROWS = 512  # of a grid: larger passes, prompts mostly, keep a GPU busy as they are


@dataclass(frozen=True, eq=False)
class Grid:
    """The rows of a pass among ``slots`` x ``width``: row r is ``index[r]`` there, ``is_start`` if it is r itself.

    ``packed`` is what a device must know of them, [3 or 3 + width, slots * width]: cells, positions, whether there
    is such a row, and in a tree the lineage.
    """

    slots: int
    width: int
    index: Integers
    is_start: bool
    packed: Integers

    @classmethod
    def of(cls, rows: Rows, slots: int) -> Grid | None:
        """The grid of ``rows`` over a cache of ``slots``; None where it would be too large to pay."""
        count = len(rows)
        if slots == 1:
            most, index = count, np.arange(count)
        else:
            order = np.argsort(rows.slots, kind="stable")
            counts = np.bincount(rows.slots, minlength=slots)
            most = int(counts.max())
            rank = np.empty(count, dtype=np.int64)
            rank[order] = np.arange(count) - np.repeat(np.cumsum(counts) - counts, counts)
            index = rank
        if rows.lineage is not None:  # of some rows of a deep tree
            most = max(most, rows.lineage.shape[1])
        width = next((width for width in WIDTHS if width >= most), 0)
        if not width or slots * width > MOST_ROWS:
            return None
        index = rows.slots * width + index
        return cls(slots, width, index, slots == 1, _packed(rows, index, slots * width, width))


def _packed(rows: Rows, index: Integers, size: int, width: int) -> Integers:
    lineage = rows.lineage
    packed = np.zeros((3 if lineage is None else 3 + width, size), dtype=np.int64)
    packed[0, index], packed[1, index], packed[2, index] = rows.cells, rows.positions, 1
    if lineage is not None:
        packed[3 : 3 + lineage.shape[1], index] = lineage.T
        packed[3 + lineage.shape[1] :, index] = lineage[:, -1]  # its own cell again
    return packed


class Views(NamedTuple):
    """What layers look at in one pass, by what they have in common.

    ``places`` and ``masks`` by window: where rows write [R], and what they see
    [slots, 1, queries of a KV head * width, cells]. ``turned`` by rope: cosines and sines [R, 1, dims].
    """

    slots: Tensor
    places: tuple[Tensor, ...]
    masks: tuple[Tensor, ...]
    turned: tuple[tuple[Tensor, Tensor], ...]


class Shapes(NamedTuple):
    """What `views` needs to know beside the rows; ``group`` queries share a KV head."""

    slots: int
    width: int
    group: int
    windows: tuple[int | None, ...]
    turns: tuple[Turn, ...]
    dtype: torch.dtype


def views(packed: Tensor, shapes: Shapes, examples: tuple[Tensor, ...]) -> Views:
    """Where the rows ``packed`` (`Grid`) read and write; ``examples`` are keys of a layer with each window."""
    grid = (shapes.slots, shapes.width)
    places, masks = [], []
    for window, stored in zip(shapes.windows, examples, strict=True):
        size = stored.shape[1]
        places.append(torch.where(packed[2] > 0, packed[0] % (size - 1), size - 1))
        sees = _sees(packed.view(-1, *grid), window, size)
        together = sees[:, None, None].expand(-1, 1, shapes.group, -1, -1)
        masks.append(together.reshape(shapes.slots, 1, shapes.group * shapes.width, size))
    slots = torch.arange(shapes.slots, device=packed.device).repeat_interleave(shapes.width)
    turned = tuple(angles(packed[1], turn, shapes.dtype) for turn in shapes.turns)
    return Views(slots, tuple(places), tuple(masks), turned)


def _sees(packed: Tensor, window: int | None, size: int) -> Tensor:
    """Which of ``size`` cells, the scratch cell the last, each row sees: [slots, width, size].

    As `Placement` has it, with the cell in each place of a ring that may have come round.
    """
    cells, positions, is_row = packed[0][..., None], packed[1][..., None], packed[2][..., None] > 0
    places = torch.arange(size, device=packed.device)
    lineage = packed[3:].permute(1, 2, 0) if len(packed) > 3 else None
    if window is None:
        held = places
        first = torch.zeros_like(cells)
    else:
        highest = torch.where(is_row, cells, -1).amax(1, keepdim=True)
        held = highest - (highest - places) % (size - 1)
        first = (positions - window + 1).clamp(min=0)
    inside = (held >= first) & (places < size - 1)
    if lineage is None:
        sees = inside & (held <= cells)
    else:
        root = lineage[..., :1]
        stands = torch.minimum(root + torch.arange(lineage.shape[-1], device=packed.device), positions)
        sees = (inside & (held < root)).scatter(-1, lineage % (size - 1), stands >= first)
    return torch.where(is_row, sees, places == 0)


class StaticPlacement:
    """The part of `Views` that one layer reads, as `Block` asks a `Placement` for it."""

    def __init__(
        self, slots: Tensor, places: Tensor, mask: Tensor, turned: tuple[Tensor, Tensor] | None, width: int
    ) -> None:
        self.slots = slots
        self._places, self._mask, self._turned, self._width = places, mask, turned, width

    def places(self, _size: int) -> Tensor:
        """Where the rows' cells lie: [R]."""
        return self._places

    def turned(self, heads: Tensor, turn: Turn) -> Tensor:
        """Queries or keys [R, heads, width], turned to their positions."""
        assert self._turned is not None
        return rotate(heads, *self._turned, turn.rope)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, scores: Scores) -> Tensor:
        """Attention of q [R, heads, width] over the cells that each row sees: [R, heads, width].

        The queries of a KV head are rows of one product: its keys are read once, and never repeated.
        """
        slots, kv_heads, head_width = keys.shape[0], keys.shape[2], q.shape[-1]
        group = q.shape[1] // kv_heads
        together = q.view(slots, self._width, kv_heads, group, head_width).permute(0, 2, 3, 1, 4)
        together = together.reshape(slots, kv_heads, group * self._width, head_width)
        k, v = keys.transpose(1, 2), values.transpose(1, 2)
        if scores.soft_cap is None and scores.sinks is None:
            found = F.scaled_dot_product_attention(together, k, v, attn_mask=self._mask, scale=scores.scale)
        else:
            found = _by_hand(together, k, v, self._mask, scores)
        found = found.view(slots, kv_heads, group, self._width, head_width).permute(0, 3, 1, 2, 4)
        return found.reshape(-1, q.shape[1], head_width)


def _by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scores: Scores) -> Tensor:
    """What torch's own attention does not have: capped scores, and sinks. [slots, KV heads, queries, width]."""
    scale = q.shape[-1] ** -0.5 if scores.scale is None else scores.scale
    found = q @ k.transpose(-1, -2) * scale
    if scores.soft_cap is not None:
        found = scores.soft_cap * torch.tanh(found / scores.soft_cap)
    found = found if found.dtype == torch.float64 else found.float()
    found = found.masked_fill(~mask, -torch.inf)
    if scores.sinks is not None:
        kv_heads, queries = q.shape[1], q.shape[2]
        sinks = scores.sinks.to(found.dtype).view(kv_heads, -1, 1)  # [KV heads, group, 1]
        sinks = sinks.expand(-1, -1, queries // sinks.shape[1]).reshape(1, kv_heads, queries, 1)
        found = torch.cat((found, sinks.expand(len(q), -1, -1, -1)), dim=-1)
    weights = found.softmax(dim=-1)[..., : k.shape[2]].to(v.dtype)
    return weights @ v
