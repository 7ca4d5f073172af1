"""Layer plans: which parts of a model a pass runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from selfspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

Part: TypeAlias = Literal["attention", "mlp"]
Spans: TypeAlias = "tuple[tuple[int, int], ...]"
"""Half-open ranges, ascending, with gaps between them."""


class SubLayer(NamedTuple):
    """One sub-layer; as a tap, the residual stream right after it: ``SubLayer(i)`` is the output of layer i."""

    layer: int
    part: Part = "mlp"


class Cut(NamedTuple):
    """A sub-layer that runs in part: of its ``size`` query heads, or channels of its MLP, those in ``kept``.

    Heads are independent of each other, and so are channels: what is left is a sum of fewer terms. Keys and values
    of a group of queries that is left out whole are not made either. As text, what is left out.
    """

    step: SubLayer
    kept: Spans
    size: int

    @property
    def share(self) -> float:
        """What is kept of it."""
        return sum(stop - start for start, stop in self.kept) / self.size

    @property
    def left_out(self) -> Spans:
        """The heads or channels that are not run."""
        edges = [0, *(edge for span in self.kept for edge in span), self.size]
        return tuple((a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b)

    def __str__(self) -> str:
        return ",".join(
            f"{self.step.layer}:{a}" if b == a + 1 else f"{self.step.layer}:{a}-{b - 1}" for a, b in self.left_out
        )


def spans_of(numbers: Iterable[int]) -> Spans:
    """Numbers as half-open ranges, ascending and with gaps between them."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    return tuple(found)


@dataclass(frozen=True)
class LayerPlan:
    """Which sub-layers of a model with ``num_layers`` layers a pass runs, in ascending order.

    Early exit and layer skip are one concept: ``exit_at`` keeps ``[0, k)``, ``skipping`` leaves sub-layers out,
    ``span`` keeps what lies in a range of layers (verification resumes with it). ``experts`` is how many
    experts of a mixture each row has, instead of as many as the model was made with. ``cuts`` are sub-layers that
    run without some of their heads or channels.
    """

    num_layers: int
    attention: tuple[int, ...]
    mlp: tuple[int, ...]
    experts: int | None = None
    cuts: tuple[Cut, ...] = ()

    @classmethod
    @cache
    def full(cls, num_layers: int) -> LayerPlan:
        """Everything: the target."""
        layers = tuple(range(num_layers))
        return cls(num_layers, layers, layers)

    @classmethod
    def exit_at(cls, num_layers: int, layer: int) -> LayerPlan:
        """Early exit: layers ``[0, layer)``; ``layer`` must lie in ``[1, num_layers)``."""
        if not 1 <= layer < num_layers:
            raise OptionError(
                f"exit layer is {layer}; this model has {num_layers} layers, so it must be 1 to {num_layers - 1}"
            )
        return cls.full(num_layers).span(0, layer)

    @classmethod
    def skipping(cls, num_layers: int, attention: Iterable[int] = (), mlp: Iterable[int] = ()) -> LayerPlan:
        """Everything but the given attention and MLP sub-layers."""
        skipped = {"attention": set(attention), "mlp": set(mlp)}
        for part, layers in skipped.items():
            if wrong := sorted(layer for layer in layers if not 0 <= layer < num_layers):
                raise OptionError(f"cannot skip {part} {wrong}: this model has layers 0 to {num_layers - 1}")
        kept = {part: tuple(i for i in range(num_layers) if i not in out) for part, out in skipped.items()}
        return cls(num_layers, kept["attention"], kept["mlp"])

    @classmethod
    def without(cls, num_layers: int, steps: Iterable[SubLayer]) -> LayerPlan:
        """Everything but ``steps``, as `skipping`."""
        parts: dict[Part, list[int]] = {"attention": [], "mlp": []}
        for step in steps:
            parts[step.part].append(step.layer)
        return cls.skipping(num_layers, parts["attention"], parts["mlp"])

    @property
    def left_out(self) -> tuple[SubLayer, ...]:
        """The sub-layers that it does not run, in order."""
        run = set(self.steps)
        return tuple(step for step in self.full(self.num_layers).steps if step not in run)

    def span(self, start: int, stop: int) -> LayerPlan:
        """The part of this plan that lies in layers ``[start, stop)``."""
        return replace(
            self,
            attention=tuple(i for i in self.attention if start <= i < stop),
            mlp=tuple(i for i in self.mlp if start <= i < stop),
            cuts=tuple(cut for cut in self.cuts if start <= cut.step.layer < stop),
        )

    def cut(self, cuts: Iterable[Cut]) -> LayerPlan:
        """The same with only a part of those sub-layers that it runs."""
        run = set(self.steps)
        return replace(self, cuts=tuple(sorted(cut for cut in cuts if cut.step in run)))

    @cached_property
    def kept(self) -> dict[SubLayer, Spans]:
        """Of sub-layers that run in part the heads or channels that do."""
        return {cut.step: cut.kept for cut in self.cuts}

    @cached_property
    def steps(self) -> tuple[SubLayer, ...]:
        """The sub-layers in the order in which they run."""
        steps = [SubLayer(i, "attention") for i in self.attention] + [SubLayer(i, "mlp") for i in self.mlp]
        return tuple(sorted(steps, key=lambda step: (step.layer, step.part != "attention")))

    @cached_property
    def shared_prefix(self) -> int:
        """How many leading layers equal the full model's: verification resumes at this layer."""
        if self.experts is not None:
            return 0  # a mixture may be in any layer
        whole = (set(self.attention) & set(self.mlp)) - {cut.step.layer for cut in self.cuts}
        return next((i for i in range(self.num_layers) if i not in whole), self.num_layers)

    @property
    def row_layers(self) -> float:
        """Layers that one row pays for; a sub-layer counts half, and in part its share of heads or channels."""
        saved = sum(1.0 - cut.share for cut in self.cuts)
        return (len(self.attention) + len(self.mlp) - saved) / 2

    def __str__(self) -> str:
        if self.experts is not None:
            return f"{replace(self, experts=None)}, {self.experts} experts"
        if self == self.full(self.num_layers):
            return f"full {self.num_layers}"
        prefix = self.shared_prefix
        if self == self.full(self.num_layers).span(0, prefix):
            return f"exit {prefix}/{self.num_layers}"
        out = [
            f"{part} {','.join(str(i) for i in range(self.num_layers) if i not in kept)}"
            for part, kept in (("attention", self.attention), ("mlp", self.mlp))
            if len(kept) < self.num_layers
        ]
        for part, name in PARTS_OF.items():
            listed = ",".join(str(cut) for cut in self.cuts if cut.step.part == part)
            out += [f"{name} {listed}"] if listed else []
        return f"skip {' '.join(out)} of {self.num_layers}"


PARTS_OF: dict[Part, str] = {"attention": "heads", "mlp": "channels"}
"""What a sub-layer of each kind has parts of."""
