"""The runtime: the seam for hardware. It knows layers, cache memory and masks, and nothing of drafting."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any

from selfspec.errors import OptionError
from selfspec.runtime.costs import PassCosts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from selfspec.model.config import ModelConfig
    from selfspec.model.head_file import HeadFile
    from selfspec.runtime.attached import Attached
    from selfspec.runtime.on_device import OnDevice
    from selfspec.types import Array, Integers, LayerPlan, Rows, SubLayer


class Cache(ABC):
    """Keys and values of ``slots`` sequences of up to ``length`` cells each; who owns which is not its concern."""

    slots: int
    length: int

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes held."""

    @property
    def state_bytes(self) -> int:
        """The part of them that recurrent layers hold, which does not depend on the length."""
        return 0

    def rewinds(self, written: int, to: int) -> bool:  # noqa: ARG002
        """Whether the first ``to`` cells of a text of ``written`` cells still serve a text that goes on from there.

        A draft that is rejected never needs to ask. Caches that keep every cell always can.
        """
        return True

    @abstractmethod
    def longer(self, length: int) -> Cache:
        """A cache of ``length`` cells, more than now, that holds what this one holds."""


class Runtime(ABC):
    """Runs layer plans over flat sets of rows. R rows, d hidden width, V vocabulary.

    Nothing here keeps lengths or positions: they come with every call, so a roll-back costs nothing, in recurrent
    layers too (`selfspec.runtime.states`). What they verify must be a chain: `run` raises OptionError for a tree.
    ``is_row_invariant`` says that a row's result is the same to the last bit whatever other rows run beside
    it, so that speculation changes no bit.
    """

    name: str
    precision: str
    value_bytes: int  # of one number in a hidden state
    config: ModelConfig
    is_row_invariant: bool = False  # a claim, which `certify` tests

    @property
    def on_device(self) -> OnDevice | None:
        """Drafts and verdicts that the host does not wait for; None where every token goes through the host."""
        return None

    @property
    def runs_on(self) -> str:
        """What runs, for people: the runtime, and which of its kernels and threads where there is a choice."""
        return self.name

    @property
    def pass_bytes(self) -> int:
        """Bytes of weights that a full pass of one row reads: all layers and the head."""
        return self.config.pass_parameters * self.value_bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights that it holds."""
        return self.config.parameters * self.value_bytes

    @property
    def placement(self) -> dict[str, Any]:
        """Keywords of `selfspec.load` that put another model where this one runs."""
        return {"runtime": self.name}

    @property
    def fewer_bits(self) -> tuple[int, ...]:
        """Fewer bits a weight, in falling order, in which the same model can run here on the same cache."""
        return ()

    @cached_property
    def costs(self) -> PassCosts:
        """What passes cost here, as far as they have shown."""
        return PassCosts()

    def refuses(self, plan: LayerPlan) -> str:
        """Why this runtime cannot run a plan, and what to do, for people; "" if it can."""
        if not plan.cuts:
            return ""
        return f"the runtime {self.name} leaves out whole sub-layers only: name these, or use runtime torch"

    def weight(self, role: str, layer: int | None = None) -> NDArray[np.float32] | None:  # noqa: ARG002
        """A weight as it is computed with here, in float32; matrices as [out, in].

        ``role`` is one of `selfspec.runtime.parts`, of a ``layer`` or (None) of the ends; None if there is none.
        Raises OptionError where the runtime does not give its weights.
        """
        raise OptionError(f"the runtime {self.name} does not give its weights; use cpu or torch")

    def head_rows(self, tokens: Integers) -> NDArray[np.float32]:
        """The rows [n, d] of the LM head of ``tokens`` [n], as `weight` has them; raises as that."""
        head = self.weight("head")
        assert head is not None
        return head[tokens]

    def vectors(self) -> Iterator[tuple[str, Array]]:
        """The weights that are vectors, by name: they are never rounded, so they tell checkpoints apart."""
        yield from ()

    def attach(self, head: HeadFile, bits: int | None = None) -> Attached:  # noqa: ARG002
        """A trained head that runs beside this model.

        ``bits`` a weight (4, 8, 16 or 32) of its matrices, where the runtime packs; None is its choice.

        Raises
        ------
        OptionError
            The head does not fit this model, or the runtime runs none.
        """
        raise OptionError(f"the runtime {self.name} runs no trained heads; use cpu or torch")

    def attach_module(self) -> Attached:
        """The multi-token module that came with this model (`selfspec.model.mtp`), ready to run.

        Raises
        ------
        OptionError
            None came with it, or the runtime runs none.
        """
        raise OptionError(f"the runtime {self.name} runs no multi-token modules; use runtime torch")

    @abstractmethod
    def embed(self, tokens: Sequence[int], positions: Integers | None = None) -> Array:
        """Hidden states [R, d] that enter layer 0.

        ``positions`` [R] are needed where positions are learned vectors (``config.has_positions``).
        """

    @abstractmethod
    def run(
        self, hidden: Array, plan: LayerPlan, rows: Rows, cache: Cache, taps: Sequence[SubLayer] = ()
    ) -> tuple[Array, Mapping[SubLayer, Array]]:
        """Run the sub-layers of ``plan`` over ``hidden`` [R, d]; keys and values land in the rows' cells.

        Returns the residual stream after the plan, and after each sub-layer named in ``taps``.
        """

    @abstractmethod
    def logits(self, hidden: Array) -> Array:
        """Final norm and LM head over ``hidden`` [R, d]: logits [R, V] in float32 or wider."""

    @abstractmethod
    def new_cache(self, slots: int, length: int) -> Cache:
        """An empty cache of ``slots`` sequences of up to ``length`` cells."""

    def cache_bytes(self, slots: int, length: int) -> int:
        """Bytes of such a cache (`Cache.nbytes`), before there is one."""
        return self.new_cache(slots, length).nbytes

    @abstractmethod
    def keep(self, cache: Cache, rows: Rows) -> None:
        """Move the keys and values of ``rows`` from their cells to the cells of their positions, in every layer.

        These are the rows of an accepted branch: afterwards cell and position are one again. Nothing to do
        for a chain.
        """
