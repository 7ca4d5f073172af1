"""Where the rows of a pass read and write, and attention over what they see, in torch."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own abbreviation)

from selfspec.runtime.torch_states import Runs

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec.model.config import Rope
    from selfspec.runtime.torch_cache import TorchCache
    from selfspec.types import Rows


class Turn(NamedTuple):
    """A rotary embedding and its inverse frequencies [dims / 2] on the device."""

    rope: Rope
    frequencies: Tensor


class Scores(NamedTuple):
    """How a layer makes weights of its scores; see `selfspec.model.config.Layer`. ``sinks`` [heads]."""

    window: int | None = None
    scale: float | None = None
    soft_cap: float | None = None
    sinks: Tensor | None = None


class Placement:
    """Where the rows of one pass read and write, computed once for all its layers.

    What only some layers need, the turns of each rotary embedding, the mask of each window and the order of rows
    in recurrent layers, is computed when the first of them asks.
    """

    def __init__(self, rows: Rows, cache: TorchCache, dtype: torch.dtype, device: torch.device) -> None:
        self._top = int(rows.cells.max()) + 1
        assert self._top <= cache.length
        self.slots = torch.from_numpy(rows.slots).to(device)
        self._cells = torch.from_numpy(rows.cells).to(device)
        self._rows = rows
        self._block = cache.block
        self._dtype, self._device = dtype, device
        self._positions = torch.from_numpy(rows.positions).to(device)
        self._turns: dict[int, tuple[Tensor, Tensor]] = {}
        self._masks: dict[tuple[int | None, int], Tensor | None] = {}
        self._places: dict[int, Tensor] = {}
        self.distinct: slice | Tensor
        slots, segment = np.unique(rows.slots, return_inverse=True)
        self.single = int(slots[0]) if len(slots) == 1 else None
        self._segments = segment.reshape(-1)
        if self.single is None:
            self._pad(slots, self._segments)

    @cached_property
    def runs(self) -> Runs:
        """The rows as recurrent layers see them."""
        return Runs(self._rows, self._block, self._device)

    def places(self, size: int) -> Tensor:
        """Where the rows' cells lie in a layer of ``size`` cells: [R]."""
        if size >= self._top:
            return self._cells
        if size not in self._places:
            self._places[size] = self._cells % size
        return self._places[size]

    def turned(self, heads: Tensor, turn: Turn) -> Tensor:
        """Queries or keys [R, heads, width], turned to their positions."""
        key = id(turn)
        if key not in self._turns:
            self._turns[key] = angles(self._positions, turn, self._dtype)
        return rotate(heads, *self._turns[key], turn.rope)

    def _mask(self, window: int | None, size: int) -> Tensor | None:
        """Which places of a layer of ``size`` cells each row sees; None where one row sees all."""
        key = (None if window is None or window >= self._top else window, min(size, self._top))
        if key not in self._masks:
            self._masks[key] = self._make_mask(*key)
        return self._masks[key]

    def _make_mask(self, window: int | None, visible: int) -> Tensor | None:
        if self.single is not None and len(self._rows) == 1 and self._rows.lineage is None and window is None:
            return None  # one row of a chain sees everything
        sees = self._sees(window, visible)
        if self.single is not None:
            return sees
        padded = torch.zeros(*self.shape, visible, dtype=torch.bool, device=self._device)
        padded[..., 0] = True  # padding sees place 0, and is dropped
        padded[self.segment, self.offset] = sees
        return padded[:, None]  # [slots, 1, widest, visible]

    def _sees(self, window: int | None, visible: int) -> Tensor:
        """Which places of its slot each row sees: [R, visible]."""
        held, lineage = self._held(visible), self._lineage()
        if window is None:
            return (
                held <= self._cells[:, None]
                if lineage is None
                else (held < lineage[:, :1]).scatter_(1, lineage, True)
            )
        # the first position that it sees; in a chain, and below the root of a tree, positions are cells
        first = (self._positions - window + 1).clamp(min=0)[:, None]
        if lineage is None:
            return (held <= self._cells[:, None]) & (held >= first)
        root, depths = lineage[:, :1], torch.arange(lineage.shape[1], device=self._device)
        # the row's own cell fills up its lineage: the positions there are its own
        stands = torch.minimum(root + depths, self._positions[:, None])
        return ((held < root) & (held >= first)).scatter_(1, lineage % visible, stands >= first)

    def _lineage(self) -> Tensor | None:
        lineage = self._rows.lineage
        return None if lineage is None else torch.from_numpy(lineage).to(self._device)

    def _held(self, visible: int) -> Tensor:
        """The cell in each place: [visible]; in a ring that has come round [R, visible], negative for none."""
        places = torch.arange(visible, device=self._device)
        if visible == self._top:
            return places
        highest = torch.from_numpy(_highest(self._rows, self._segments)).to(self._device)[:, None]
        return highest - (highest - places) % visible

    def _pad(self, slots: np.ndarray[Any, Any], segment: np.ndarray[Any, Any]) -> None:
        """Give every slot the same number of rows: row r becomes [segment, offset] of [slots, widest]."""
        counts = np.bincount(segment)
        order = np.argsort(segment, kind="stable")
        offset = np.empty_like(segment)
        offset[order] = np.arange(len(segment)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.segment = torch.from_numpy(segment).to(self._device)
        self.offset = torch.from_numpy(offset).to(self._device)
        self.shape = (len(slots), int(counts.max()))
        first, last = int(slots[0]), int(slots[-1])
        # neighbouring slots are a view of the cache, others are copied
        is_run = last - first == len(slots) - 1
        self.distinct = slice(first, last + 1) if is_run else torch.from_numpy(slots).to(self._device)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, scores: Scores) -> Tensor:
        """Attention of q [R, heads, width] over the cells that each row sees: [R, heads, width]."""
        size = keys.shape[1]
        mask, visible = self._mask(scores.window, size), min(size, self._top)
        if self.single is not None:
            k, v = keys[self.single, :visible], values[self.single, :visible]
            return _attention(q[None], k[None], v[None], mask, scores)[0]
        k, v = keys[self.distinct, :visible], values[self.distinct, :visible]
        padded = q.new_zeros(*self.shape, *q.shape[1:])
        padded[self.segment, self.offset] = q
        return _attention(padded, k, v, mask, scores)[self.segment, self.offset]


def _highest(rows: Rows, segment: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The highest cell that any row of its slot has in this pass: [R]."""
    highest = np.zeros(segment.max() + 1, dtype=np.int64)
    np.maximum.at(highest, segment, rows.cells)
    found: np.ndarray[Any, Any] = highest[segment]
    return found


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scores: Scores) -> Tensor:
    """Grouped-query attention; q, k, v are [batch, rows or cells, heads, width], and so is the result."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    if scores.soft_cap is None and scores.sinks is None:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scores.scale, enable_gqa=True)
    else:
        out = _attention_by_hand(q, k, v, mask, scores)
    return out.transpose(1, 2)


def _attention_by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scores: Scores) -> Tensor:
    """What torch's own attention does not have: capped scores, and sinks. [batch, heads, rows, width]."""
    batch, heads, rows, width = q.shape
    groups = (batch, k.shape[1], heads // k.shape[1])
    scale = width**-0.5 if scores.scale is None else scores.scale
    grouped = q.reshape(*groups, rows, width)
    found = grouped @ k.transpose(-1, -2)[:, :, None] * scale  # [batch, KV heads, queries of each, rows, cells]
    if scores.soft_cap is not None:
        found = scores.soft_cap * torch.tanh(found / scores.soft_cap)
    found = found if found.dtype == torch.float64 else found.float()
    if mask is not None:
        found = found.masked_fill(~(mask if mask.ndim == 2 else mask[:, :, None]), -torch.inf)
    if scores.sinks is not None:
        sinks = scores.sinks.to(found.dtype).view(1, *groups[1:], 1, 1).expand(batch, -1, -1, rows, -1)
        found = torch.cat((found, sinks), dim=-1)
    weights = found.softmax(dim=-1)[..., : k.shape[2]].to(v.dtype)
    return (weights @ v[:, :, None]).reshape(batch, heads, rows, width)


def angles(positions: Tensor, turn: Turn, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines [R, 1, dims] of the angles at ``positions`` [R]."""
    found = positions.float()[:, None] * turn.frequencies
    found = found.repeat_interleave(2, dim=-1) if turn.rope.interleaved else torch.cat((found, found), dim=-1)
    cos, sin = found[:, None, :].cos(), found[:, None, :].sin()
    if turn.rope.attention_factor != 1.0:
        cos, sin = cos * turn.rope.attention_factor, sin * turn.rope.attention_factor
    return cos.to(dtype), sin.to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, rope: Rope) -> Tensor:
    """``x`` [R, heads, width], its first dimensions turned by these angles."""
    dims = cos.shape[-1]
    if dims < x.shape[-1]:
        return torch.cat((rotate(x[..., :dims], cos, sin, rope), x[..., dims:]), dim=-1)
    dtype = x.dtype
    if rope.narrow:
        x = x.float()
    if rope.interleaved:
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    else:
        half = dims // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos + turned * sin).to(dtype)
