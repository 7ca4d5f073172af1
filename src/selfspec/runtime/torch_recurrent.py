"""The recurrent parts of the torch runtime: short convolutions, and states that decay.

A state is never moved from row to row. What a row finds in it is what is left of the state at the beginning of the
row's block, and of what each row of the block since then has added, as in attention: the sum over those rows of
(query · key) times their decay times their value. So rows of a draft cost no more memory than other rows, and the
passes over one row and over many are the same sums. (Chunked forms of Mamba 2, arXiv 2405.21060, and of the gated
delta rule, 2412.06464; here the chunks are those of the text, whatever a pass is made of.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own abbreviation)

from selfspec.runtime.products import linear

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from selfspec.model.config import Recurrence
    from selfspec.runtime.torch_states import Runs, States, Wave


class Recurrent:
    """What stands in the place of attention, from the tensors of its layer by role; ``eps`` is that of its norm."""

    def __init__(self, facts: Recurrence, tensors: Mapping[str, Tensor], eps: float) -> None:
        self._facts = facts
        self._tensors = tensors
        self._eps = eps
        self._mix = {"conv": self._conv, "delta": self._delta}[facts.kind]

    def __call__(self, x: Tensor, runs: Runs, states: States) -> Tensor:
        """What the part adds, for states [R, d]; what later rows need lands in ``states``."""
        return self._linear(self._mix(x, runs, states), "recurrent_out")

    def _linear(self, x: Tensor, role: str) -> Tensor:
        return linear(x, self._tensors[role], self._tensors.get(f"{role}_bias"))

    def _conv(self, x: Tensor, runs: Runs, states: States) -> Tensor:
        before, after, inner = self._linear(x, "recurrent_in").chunk(3, dim=-1)
        return after * self._convolved(before * inner, runs, states)

    def _convolved(self, x: Tensor, runs: Runs, states: States) -> Tensor:
        """The causal convolution of ``x`` [R, channels] over each run and what came before it."""
        taps, size = self._tensors["taps"][:, 0], states.inputs.shape[1]
        before, is_there, slots, places, rows = runs.ring(size, self._facts.taps)
        past = states.inputs[runs.slots[:, None], before].masked_fill(~is_there[..., None], 0)
        inputs = torch.cat((past, runs.layout.padded(x)), dim=1)
        wide, longest = inputs.to(torch.promote_types(x.dtype, torch.float32)), runs.layout.shape[1]
        out = sum(wide[:, tap : tap + longest] * taps[:, tap] for tap in range(self._facts.taps))
        assert isinstance(out, torch.Tensor)
        if "taps_bias" in self._tensors:
            out = out + self._tensors["taps_bias"]
        states.inputs[slots, places] = x[rows]
        return runs.layout.put(torch.empty_like(x, dtype=out.dtype), out).to(x.dtype)

    def _delta(self, x: Tensor, runs: Runs, states: States) -> Tensor:
        r, rows = self._facts, len(x)
        qkv, gate, beta, time = self._delta_inputs(x)
        qkv = F.silu(self._convolved(qkv, runs, states)).to(states.keys.dtype)
        q, k, v = torch.split(qkv, [r.key_width, r.key_width, r.value_width], dim=-1)
        q, k = (_unit(part.reshape(rows, r.key_heads, r.key_dim)) for part in (q, k))
        decay = -self._tensors["decay"].float().exp() * F.softplus(time.float() + self._tensors["time_shift"])
        asked = Asked(q * r.key_dim**-0.5, k, v.reshape(rows, r.value_heads, r.value_dim), decay)
        found = scan(asked, beta.sigmoid().to(v.dtype), runs, states).to(x.dtype)
        return (self._normed(found) * F.silu(gate.to(v.dtype)).view(found.shape)).to(x.dtype).flatten(1)

    def _normed(self, found: Tensor) -> Tensor:
        """Each head by itself, with statistics as wide as the states: float32 would not be the same in any pass."""
        wide = found.to(torch.promote_types(found.dtype, torch.float32))
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self._eps)
        return self._tensors["recurrent_norm"] * wide.to(found.dtype)

    def _delta_inputs(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys and values together, the gates, and what makes β and the decay of each head: [R, ...]."""
        if "recurrent_in" in self._tensors:
            qkv, gate, beta, time = (
                self._linear(x, role) for role in ("recurrent_in", "recurrent_gate", "beta", "time")
            )
            return qkv, gate, beta, time
        r, groups = self._facts, (len(x), self._facts.key_heads, -1)
        each = r.value_width // r.key_heads
        together = self._linear(x, "qkvz_groups").view(groups)
        parts = torch.split(together, [r.key_dim, r.key_dim, each, each], dim=-1)
        q, k, v, gate = (part.flatten(1) for part in parts)
        beta, time = (part.flatten(1) for part in self._linear(x, "ba_groups").view(groups).chunk(2, dim=-1))
        return torch.cat((q, k, v), dim=-1), gate, beta, time


class Asked(NamedTuple):
    """Of each row: queries and keys [R, key heads, key dim], values [R, heads, value dim], decays [R, heads].

    A decay is the logarithm of what the row leaves of the state.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    decays: Tensor


def scan(asked: Asked, beta: Tensor | None, runs: Runs, states: States) -> Tensor:
    """What each row finds in the state, its own addition included: [R, heads, value dim].

    With ``beta`` [R, heads] the delta rule: a row adds, times beta, its value less what its key finds in the state
    that it decayed. Without, its value.
    """
    out = torch.empty_like(asked.values)
    for wave in runs.waves:
        found = _Block(wave, states).found(Asked(*map(wave.layout.padded, asked)), beta)
        out = wave.layout.put(out, found)
    return out


class _Block:
    """One wave of rows, and what their blocks hold before them."""

    def __init__(self, wave: Wave, states: States) -> None:
        self._wave, self._states = wave, states
        if len(wave.is_first):
            states.bases[wave.slots[wave.is_first], 0] = 0.0  # whatever an earlier text has left there
        self._base = wave.held(states.bases)  # [runs, heads, key dim, value dim]
        self._heads_per_key = states.values.shape[3] // states.keys.shape[3]

    def found(self, asked: Asked, beta: Tensor | None) -> Tensor:
        """See `scan`; all are padded to [runs, longest, ...]."""
        q, k, v = (part.transpose(1, 2) for part in asked[:3])
        left = asked.decays.transpose(1, 2).double().cumsum(-1)
        if self._wave.most_seen:
            left = left + self._left_before()
        between = self._faded(left, left).tril()
        if beta is not None:
            share = self._wave.layout.padded(beta).transpose(1, 2)[..., None]
            pull = self._per_head(k @ k.transpose(-1, -2)) * between * share
            v = torch.linalg.solve_triangular(
                pull, share * (v - self._recalled(k, left)), upper=False, unitriangular=True
            )
        found = self._recalled(q, left) + (self._per_head(q @ k.transpose(-1, -2)) * between) @ v
        self._keep(asked.keys, v.transpose(1, 2), left.transpose(1, 2))
        return found.transpose(1, 2)

    def _left_before(self) -> Tensor:
        """The decay of the block so far: [runs, heads, 1]."""
        wave = self._wave
        decays = self._states.decays[wave.slots, wave.half, (wave.seen - 1).clamp(min=0)]
        return decays.masked_fill((wave.seen == 0)[:, None], 0.0)[..., None]

    def _faded(self, left: Tensor, then: Tensor) -> Tensor:
        """What is left, at ``left`` [..., rows], of what was added at ``then`` [..., cells]: [..., rows, cells].

        What was added later counts as not decayed; the caller leaves it out.
        """
        return (left[..., :, None] - then[..., None, :]).clamp(max=0.0).exp().to(self._base.dtype)

    def _recalled(self, x: Tensor, left: Tensor) -> Tensor:
        """What ``x`` [runs, key heads, rows, key dim] finds in the state before these rows, decayed to each."""
        out = (self._per_head(x) @ self._base) * left.exp()[..., None].to(x.dtype)
        if not self._wave.most_seen:
            return out
        keys, values, decays = self._seen()
        scores = self._per_head(x @ keys.permute(0, 2, 3, 1)) * self._faded(left, decays.transpose(1, 2))
        if self._wave.is_unseen is not None:
            scores = scores.masked_fill(self._wave.is_unseen[:, None, None], 0.0)
        return out + scores @ values.transpose(1, 2)

    def _seen(self) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values and decays of the block's rows so far: [runs, most seen, heads, ...]."""
        held, most = self._wave.held, self._wave.most_seen
        states = self._states
        return held(states.keys)[:, :most], held(states.values)[:, :most], held(states.decays)[:, :most]

    def _per_head(self, x: Tensor) -> Tensor:
        """Of each key head [runs, key heads, ...] for each of its heads."""
        return x if self._heads_per_key == 1 else x.repeat_interleave(self._heads_per_key, dim=1)

    def _keep(self, keys: Tensor, values: Tensor, decays: Tensor) -> None:
        """Write what the rows added, and the state at the end of every block that is full now."""
        wave, states = self._wave, self._states
        for part, added in ((states.keys, keys), (states.values, values), (states.decays, decays)):
            part[wave.cells] = wave.layout.flat(added)
        if not len(wave.ended):
            return
        slots, half = wave.slots[wave.ended], wave.half[wave.ended]
        k, v, then = (part[slots, half] for part in (states.keys, states.values, states.decays))
        left = then[:, -1:].transpose(1, 2)
        faded = self._faded(left, then.transpose(1, 2)).transpose(-1, -2)  # [runs, heads, cells, 1]
        gained = self._per_head(k.permute(0, 2, 3, 1)) @ (v.transpose(1, 2) * faded)
        states.bases[slots, 1 - half] = self._base[wave.ended] * left.exp()[..., None].to(gained.dtype) + gained


def _unit(x: Tensor) -> Tensor:
    """``x`` at length 1 along its last dimension."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
