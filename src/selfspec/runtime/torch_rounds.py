"""Rounds on the device of a `CompiledTorch`: γ draft steps in one launch, and verdicts in one transfer."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own abbreviation)

from selfspec.runtime.on_device import Case, Findings, OnDevice, Start
from selfspec.runtime.torch_arena import StaticCache
from selfspec.runtime.torch_compiled import CompiledTorch, Work
from selfspec.runtime.torch_laws import block_verdict, is_finite, picked, probabilities
from selfspec.runtime.torch_static import WIDTHS
from selfspec.types import Dense, Draft, LayerPlan, SubLayer
from selfspec.unseen import Unseen

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from selfspec.runtime.base import Cache
    from selfspec.settings import Array, Sampling


class TorchRounds(OnDevice):
    """See `OnDevice`."""

    def __init__(self, runtime: CompiledTorch) -> None:
        self._runtime = runtime
        self._timed: list[tuple[Any, ...]] = []

    def draft(self, plan: LayerPlan, starts: Sequence[Start], cache: Cache, sampling: Sampling) -> list[Draft]:
        """See `OnDevice.draft`: a CUDA graph for each γ, plan and law."""
        assert isinstance(cache, StaticCache)
        runtime, steps = self._runtime, max(start.gamma for start in starts)
        begun = np.zeros((3, cache.slots), dtype=np.int64)
        uniforms = np.zeros((cache.slots, steps))
        for start in starts:
            begun[:, start.slot] = start.token, start.position, start.gamma
            uniforms[start.slot, : len(start.uniforms)] = start.uniforms
        border = SubLayer(plan.shared_prefix - 1)
        taps = (border,) if plan.shared_prefix and plan.steps[-1] != border else ()
        work = Work(plan, taps, cache.arena, WIDTHS[0])

        def body(begun: Tensor, uniforms: Tensor) -> tuple[Tensor, ...]:
            return self._steps(work, begun, uniforms, sampling)

        law = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
        with runtime.pass_of(f"a draft of {steps} tokens"), runtime.compiler.first_calls():
            inputs = runtime.uploaded(begun), runtime.uploaded(uniforms)
            with self._timing():
                tokens, *others = runtime.compiler.graphed(
                    cache.arena.graphs, ("draft", plan, steps, law), body, *inputs
                )
        states = others.pop(0) if plan.shared_prefix else None
        laws = others[0] if others else None
        return [self._one(start, tokens, states, laws, plan.shared_prefix) for start in starts]

    @contextmanager
    def _timing(self) -> Iterator[None]:
        """Let a GPU note when it begins and ends what is launched inside."""
        if self._runtime.device.type != "cuda":
            yield
            return
        events: tuple[Any, ...] = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        events[0].record()
        yield
        events[1].record()
        self._timed.append(events)

    def drafting(self) -> float:
        """See `OnDevice.drafting`."""
        timed, self._timed = self._timed, []
        return float(sum(begun.elapsed_time(done) for begun, done in timed if done.query())) / 1e3

    def _one(self, start: Start, tokens: Tensor, states: Tensor | None, laws: Tensor | None, layer: int) -> Draft:
        slot, gamma = start.slot, start.gamma
        return Draft(
            Unseen(tokens[slot], gamma, self.fetched),
            None if laws is None else tuple(Dense(law) for law in laws[slot, :gamma]),
            None if states is None else states[slot, :gamma],
            0 if states is None else layer,
        )

    def _steps(self, work: Work, begun: Tensor, uniforms: Tensor, sampling: Sampling) -> tuple[Tensor, ...]:
        """Tokens [slots, γ]; where the plan shares layers the states after them [slots, γ, d]; laws, if sampled."""
        runtime = self._runtime
        token, cells, left = begun
        tokens: list[Tensor] = []
        states: list[Tensor] = []
        laws: list[Tensor] = []
        for step in range(uniforms.shape[1]):
            hidden, packed = self._entered(token, cells, left, work.width)
            found = runtime.layers(work, hidden, packed)
            first = [each.view(len(token), work.width, -1)[:, 0] for each in found]
            logits = runtime.scored(first[0])
            if sampling.is_greedy:
                token = logits.argmax(-1)
            else:
                law = probabilities(logits, sampling)
                token = picked(law, uniforms[:, step])
                laws.append(law)
            tokens.append(token)
            states.append(first[-1])
            cells, left = cells + 1, left - 1
        made = [torch.stack(tokens, dim=1)]
        if work.plan.shared_prefix:
            made.append(torch.stack(states, dim=1))
        if laws:
            made.append(torch.stack(laws, dim=1))
        return tuple(made)

    def _entered(self, token: Tensor, cells: Tensor, left: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """A row of each slot with tokens left on a grid of ``width``: states that enter, and `Grid.packed`."""
        is_row = left > 0
        cells = torch.where(is_row, cells, 0)
        packed = F.pad(torch.stack((cells, cells, is_row.long()))[..., None], (0, width - 1)).flatten(1)
        hidden = self._runtime.entered(token, cells)
        return F.pad(hidden[:, None], (0, 0, 0, width - 1)).flatten(0, 1), packed

    def judge(self, cases: Sequence[Case], sampling: Sampling) -> list[Findings | None]:
        """See `OnDevice.judge`."""
        with self._runtime.pass_of(f"the verdicts of {len(cases)} drafts"):
            parts = [_Part.of(case, self._judged(case, sampling)) for case in cases]
            numbers = self.fetched(torch.cat([tensor for part in parts for tensor in part.tensors]))
        found: list[Findings | None] = []
        for part, case in zip(parts, cases, strict=True):
            own, numbers = numbers[: part.size], numbers[part.size :]
            found.append(part.findings(case, own))
        return found

    def _judged(self, case: Case, sampling: Sampling) -> Tensor:
        """Whether all is finite, then what `Findings` has, as integers."""
        logits, draft = _tensor(case.logits), case.draft
        is_good = is_finite(logits).all()[None].long()
        if sampling.is_greedy:
            return torch.cat((is_good, logits.argmax(-1)))
        target = probabilities(logits, sampling)
        uniforms = self._runtime.uploaded(np.asarray(case.uniforms))
        if draft.laws is None:
            depths = self._runtime.uploaded(np.asarray(_depths(draft)))
            return torch.cat((is_good, picked(target, uniforms[depths])))
        laws = torch.stack([_tensor(law.probs) for law in draft.laws if isinstance(law, Dense)])
        tokens = draft.tokens
        held = (
            tokens.array[: len(tokens)]
            if isinstance(tokens, Unseen)
            else self._runtime.uploaded(np.asarray(tokens))
        )
        return torch.cat((is_good, block_verdict(target, laws, held, uniforms)))

    def fetched(self, numbers: Tensor) -> list[int]:
        """Integers [n] on the host, which waits for them."""
        found: list[int] = numbers.tolist()
        return found


class _Part(NamedTuple):
    """Where the numbers of a case stand among those that come back."""

    tensors: tuple[Tensor, ...]
    size: int

    @classmethod
    def of(cls, case: Case, judged: Tensor) -> _Part:
        tokens = case.draft.tokens
        tensors = (judged, tokens.array[: len(tokens)]) if isinstance(tokens, Unseen) else (judged,)
        return cls(tensors, sum(len(tensor) for tensor in tensors))

    def findings(self, case: Case, numbers: list[int]) -> Findings | None:
        is_good, *said = numbers
        if isinstance(case.draft.tokens, Unseen):
            split = len(said) - len(case.draft)
            case.draft.tokens.show(said[split:])
            said = said[:split]
        if not is_good:
            return None
        return Findings(chose=tuple(said)) if case.draft.laws is None else Findings((), *said)


def _depths(draft: Draft) -> list[int]:
    """How many tokens stand before the one that each row judges."""
    depths = [0]
    for i in range(len(draft)):
        parent = i - 1 if draft.parents is None else draft.parents[i]
        depths.append(depths[parent + 1] + 1)
    return depths


def _tensor(array: Array) -> Tensor:
    """On a CPU logits are arrays of NumPy."""
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else array
