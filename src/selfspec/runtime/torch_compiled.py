"""The torch runtime in compiled passes of few shapes: the default on a GPU.

Every pass of few rows, plain decoding's too, runs at one of the row counts `torch_static.WIDTHS`; so a row's result
does not depend on the rows beside it, as long as both passes have the same count. Larger passes (prompts) and plans
that run a part of a sub-layer run as in `TorchRuntime`, over the same cache.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own abbreviation)

from selfspec.errors import OptionError
from selfspec.model.cache import cache_folder
from selfspec.runtime.torch import TorchRuntime, ended
from selfspec.runtime.torch_arena import Arena, Arenas, StaticCache
from selfspec.runtime.torch_cache import Store
from selfspec.runtime.torch_compiler import Compiler, keep_compiled_in
from selfspec.runtime.torch_static import WIDTHS, Grid, Shapes, StaticPlacement, Views, views
from selfspec.types import Array, LayerPlan, Rows, SubLayer
from selfspec.unseen import Mark

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from torch import Tensor

    from selfspec.model.config import ModelConfig
    from selfspec.runtime.base import Cache
    from selfspec.runtime.on_device import OnDevice
    from selfspec.runtime.torch_block import Block
    from selfspec.types import Integers


HOWS = ("auto", "on", "off")


def lacking(config: ModelConfig) -> str:
    """What of a model cannot be compiled, for people; "" if all can."""
    if config.recurrences:
        return "recurrent layers, whose rows are put in order by the host"
    if any(config.layer(index).experts is not None for index in range(config.num_layers)):
        return "experts, which are chosen by the host"
    return ""


def compiled(runtime: TorchRuntime, how: str, notify: Callable[[str], None]) -> TorchRuntime:
    """See `TorchRuntime.compiled`."""
    if how not in HOWS:
        raise OptionError(f"compile is {how!r}; it must be one of {', '.join(HOWS)}")
    lack = lacking(runtime.config)
    if how == "on" and lack:
        raise OptionError(f"compile is on, but {runtime.config.family} has {lack}; use compile off")
    if how == "off" or lack or (how == "auto" and runtime.device.type != "cuda"):
        return runtime
    made = CompiledTorch(runtime.config, runtime.weights)
    made.precision, made.module = runtime.precision, runtime.module
    made.compiler = Compiler(is_required=how == "on", notify=notify)
    keep_compiled_in(cache_folder() / "torch")
    return made


class Work(NamedTuple):
    """What a pass runs beside its rows: the sub-layers of ``plan`` over a cache's memory, and what to keep."""

    plan: LayerPlan
    taps: tuple[SubLayer, ...]
    arena: Arena
    width: int


class CompiledTorch(TorchRuntime):
    """See `TorchRuntime`; ``compiler`` says what was compiled, and is told whether that is required."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
        super().__init__(config, weights)
        assert not lacking(config)
        self.compiler = Compiler()
        self._kinds = [_kind(config, index, self._tensors(index)) for index in range(config.num_layers)]
        ropes = list(self._turns)
        layers = [config.layer(index) for index in range(config.num_layers)]
        self._rope_of = [ropes.index(layer.rope) if layer.rope else None for layer in layers]
        self._windows: list[int | None] = list(dict.fromkeys(layer.window for layer in layers))
        self._window_of = [self._windows.index(layer.window) for layer in layers]
        self._arenas = Arenas(self._embedding, (config.num_kv_heads, config.head_dim))

    @property
    def runs_on(self) -> str:
        """torch, that it is compiled, and the device where that is not a CPU."""
        return f"{super().runs_on}, {'as it is' if self.compiler.failure else 'compiled'}"

    @cached_property
    def on_device(self) -> OnDevice | None:
        """See `Runtime.on_device`."""
        from selfspec.runtime.torch_rounds import TorchRounds

        return TorchRounds(self)

    def embed(self, tokens: Sequence[int], positions: Integers | None = None) -> Array:
        """See `Runtime.embed`; among the tokens may be marks of `selfspec.unseen`."""
        marks = [(row, token) for row, token in enumerate(tokens) if isinstance(token, Mark)]
        with self.pass_of(f"{len(tokens)} tokens"):
            found = self.uploaded(np.asarray(tokens, dtype=np.int64))
            for unseen in {id(mark.unseen): mark.unseen for _, mark in marks}.values():
                own = [(row, mark.place) for row, mark in marks if mark.unseen is unseen]
                rows, places = self.uploaded(np.asarray(own, dtype=np.int64).T)
                found[rows] = unseen.array[places]
            return self.entered(found, None if positions is None else self.uploaded(positions))

    def new_cache(self, slots: int, length: int) -> StaticCache:
        """An empty cache with scratch cells; its memory may be that of one that is gone."""
        with self.memory_for_cache(slots, length):
            return StaticCache.of(self.config, (slots, length), self.most_rows, self._arenas)

    def cache_bytes(self, slots: int, length: int) -> int:
        """See `Runtime.cache_bytes`."""
        from selfspec.runtime.rings import Rings
        from selfspec.runtime.torch_arena import rounded

        sizes = rounded(Rings.of(self.config, self.most_rows).sizes(length))
        each = 2 * self.config.num_kv_heads * self.config.head_dim * self._embedding.element_size()
        return slots * each * sum(size + 1 for size in sizes)

    def run(
        self, hidden: Array, plan: LayerPlan, rows: Rows, cache: Cache, taps: Sequence[SubLayer] = ()
    ) -> tuple[Array, dict[SubLayer, Array]]:
        """Run ``plan`` over ``hidden`` [R, d]; see `Runtime.run`."""
        assert isinstance(cache, StaticCache)
        grid = None if plan.kept else Grid.of(rows, cache.slots)
        if grid is None or self.compiler.failure or not plan.steps:
            return super().run(hidden, plan, rows, cache, taps)
        with self.pass_of(f"a pass of {len(rows)} rows"), self.compiler.first_calls():
            index = None if grid.is_start else self.uploaded(grid.index)
            entering = spread(hidden, grid, index)
            work = Work(plan, tuple(tap for tap in plan.steps if tap in taps), cache.arena, grid.width)
            out, *tapped = self._graphed_pass(work, entering, self.uploaded(grid.packed))
            picked = [states[: len(rows)] if index is None else states[index] for states in (out, *tapped)]
        return picked[0], dict(zip(work.taps, picked[1:], strict=True))

    def uploaded(self, array: np.ndarray[Any, Any]) -> Tensor:
        """Numbers on the device; the host does not wait for it."""
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    def _graphed_pass(self, work: Work, entering: Tensor, packed: Tensor) -> tuple[Tensor, ...]:
        def body(entering: Tensor, packed: Tensor) -> tuple[Tensor, ...]:
            return self.layers(work, entering, packed)

        key = (work.plan, work.taps, entering.shape, packed.shape)
        return self.compiler.graphed(work.arena.graphs, key, body, entering, packed)

    def layers(self, work: Work, hidden: Tensor, packed: Tensor) -> tuple[Tensor, ...]:
        """The states [slots * width, d] after the plan, and after each tap; `Grid.packed` says which rows run."""
        arena, slots = work.arena, work.arena.shape[0]
        shape = (slots, work.width)
        seen: Views = self.compiler(
            ("views", *shape, len(packed)), views, packed, self._shapes(work, hidden.dtype), self._examples(arena)
        )
        tapped: list[Tensor] = []
        layer, entered = -1, hidden
        for step in work.plan.steps:
            block = self._blocks[step.layer]
            if step.layer != layer:
                layer, entered = step.layer, hidden
            reads = entered if block.is_parallel and entered is not hidden else None
            kind = (step.part, self._kinds[layer], *shape, reads is None)
            if step.part == "attention":
                cells = _marked(arena.keys[layer]), _marked(arena.values[layer])
                hidden = self.compiler(
                    kind, _attention, block, (hidden, reads), self._part(seen, layer), work.width, cells
                )
            else:
                hidden = self.compiler(kind, _mlp, block, (hidden, reads))
            if step in work.taps:
                tapped.append(hidden)
        return hidden, *tapped

    def _shapes(self, work: Work, dtype: torch.dtype) -> Shapes:
        group = self.config.num_heads // self.config.num_kv_heads
        return Shapes(
            work.arena.shape[0], work.width, group, tuple(self._windows), tuple(self._turns.values()), dtype
        )

    def _examples(self, arena: Arena) -> tuple[Tensor, ...]:
        """For each window the keys of a layer that has it."""
        return tuple(_marked(arena.keys[self._window_of.index(i)]) for i in range(len(self._windows)))

    def _part(self, seen: Views, layer: int) -> tuple[Any, ...]:
        window, rope = self._window_of[layer], self._rope_of[layer]
        mask = seen.masks[window]
        torch._dynamo.maybe_mark_dynamic(mask, mask.ndim - 1)
        return seen.slots, seen.places[window], mask, None if rope is None else seen.turned[rope]

    def logits(self, hidden: Array) -> Array:
        """See `TorchRuntime.logits`; at one of the few row counts, too."""
        out = self.scored(hidden)
        return out.numpy() if out.device.type == "cpu" else out

    def scored(self, hidden: Tensor) -> Tensor:
        """Logits [R, V] on the device."""
        rows = hidden.shape[0]
        width = next((width for width in (*WIDTHS, 256) if width >= rows), 0)
        if not width or self.compiler.failure:
            with self.pass_of(f"the logits of {rows} rows"):
                return ended(hidden, self._norm, self._head, self._ends)
        with self.pass_of(f"the logits of {rows} rows"), self.compiler.first_calls():
            entering = hidden if rows == width else F.pad(hidden, (0, 0, 0, width - rows))
            return self.head(entering)[:rows]

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of as many rows as were compiled for."""
        made: Tensor = self.compiler(("head", hidden.shape[0]), ended, hidden, self._norm, self._head, self._ends)
        return made

    @cached_property
    def _ends(self) -> tuple[float, float | None]:
        return self.config.logit_scale, self.config.logit_cap


def spread(hidden: Tensor, grid: Grid, index: Tensor | None) -> Tensor:
    """States [R, d] at their places of the grid; ``index`` None: they are its first rows."""
    size = grid.slots * grid.width
    if index is None:
        return hidden if hidden.shape[0] == size else F.pad(hidden, (0, 0, 0, size - hidden.shape[0]))
    return hidden.new_zeros(size, hidden.shape[1]).index_copy_(0, index, hidden)


def _attention(
    block: Block,
    states: tuple[Tensor, Tensor | None],
    part: tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor] | None],
    width: int,
    cells: tuple[Tensor, Tensor],
) -> Tensor:
    hidden, reads = states
    placement: Any = StaticPlacement(*part, width)
    return hidden + block.attention(hidden if reads is None else reads, placement, Store(*cells, None))


def _mlp(block: Block, states: tuple[Tensor, Tensor | None]) -> Tensor:
    hidden, reads = states
    return hidden + block.mlp(hidden if reads is None else reads)


def _marked(stored: Tensor) -> Tensor:
    """Keys or values, compiled for any number of cells."""
    torch._dynamo.maybe_mark_dynamic(stored, 1)
    return stored


def _kind(config: ModelConfig, index: int, tensors: Mapping[str, Tensor]) -> Hashable:
    """Layers of one kind run the same code over tensors of the same shapes."""
    shapes = ((role, type(t).__name__, t.dtype, tuple(t.shape), t.stride()) for role, t in sorted(tensors.items()))
    return config.layer(index), tuple(shapes)
