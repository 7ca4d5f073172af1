"""Matrix products of the torch runtime, routed to what is fastest for a few rows on a CPU.

Measured on two AVX2 cores, torch 2.13, all layers of a 135M model (docs/log.md, 2026-11-29): float32
``F.linear`` takes MKL's slow path from two rows on (58 ms for one row, 104 for two, 104 for five), while
weight @ x.T takes 44, 44 and 58; bfloat16 has no fast path for many rows, where widening the weight
and multiplying in float32 is faster (64 rows: 460 ms against 220).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own abbreviation)

if TYPE_CHECKING:
    from torch import Tensor

_WIDEN_FROM_ROWS = 16


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """X [R, in] times weight [out, in] transposed, plus bias [out]: [R, out]."""
    if x.device.type != "cpu" or type(weight) is not torch.Tensor:  # kinds of torchao multiply in their own way
        return F.linear(x, weight, bias)
    rows = x.shape[0]
    if weight.dtype == torch.float32:
        columns = (torch.cat((x, x)) if rows == 1 else x).t()
        out = torch.mm(weight, columns).t()[:rows]
        return out if bias is None else out + bias
    if weight.dtype in (torch.bfloat16, torch.float16) and rows >= _WIDEN_FROM_ROWS:
        wide = torch.mm(weight.float(), x.float().t()).t().to(x.dtype)
        return wide if bias is None else wide + bias
    return F.linear(x, weight, bias)
