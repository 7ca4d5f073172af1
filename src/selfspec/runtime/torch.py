"""The torch runtime: one configurable transformer over the tensors it is given, with a static KV cache.

It shares the parameter tensors of a Hugging Face model (no copy). Rows are flat: [R, ...] with a slot and a
position each, so prefill chunks, draft steps, verification and ragged batches are one code path. On a CPU
the logits come back as NumPy arrays (a view, no copy), whose sorts and sums are several times faster there.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own abbreviation)

from selfspec.errors import OptionError, UnsupportedModelError
from selfspec.model.families import config_from_hf, family_of, weight_shapes, weights_by_role, with_layout_of
from selfspec.runtime.base import Cache, Runtime
from selfspec.runtime.parts import part_of
from selfspec.runtime.products import linear
from selfspec.runtime.rings import run_in_parts, split
from selfspec.runtime.rotary import inverse_frequencies
from selfspec.runtime.states import BLOCK
from selfspec.runtime.torch_block import Block, Norm, norm_of
from selfspec.runtime.torch_cache import FEWER, TorchCache, memory_for
from selfspec.runtime.torch_names import device_of, dtype_of, read_tensors
from selfspec.runtime.torch_objects import base_of, is_torchao, tensors_of
from selfspec.runtime.torch_placement import Placement, Turn
from selfspec.runtime.torch_quantised import BITS, quantise, saved
from selfspec.types import MOST_ROWS, Array, LayerPlan, Rows, SubLayer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray
    from torch import Tensor

    from selfspec.model.config import ModelConfig, Rope
    from selfspec.model.head_file import HeadFile
    from selfspec.runtime.attached import Attached
    from selfspec.runtime.rotary import Floats
    from selfspec.types import Integers


class TorchRuntime(Runtime):
    """Runs plans of a decoder of any known family in torch.

    Parameters
    ----------
    config
        Sizes and switches.
    weights
        Canonical (Hugging Face) name to tensor; used as they are, never copied. A tied model needs no
        weight of the head.
    """

    name = "torch"
    most_rows = MOST_ROWS  # of a slot in one pass, where a layer has a window; longer passes are cut
    block = BLOCK  # positions between two states that a recurrent layer keeps; no draft may be longer

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
        self.config = config
        self.weights = weights
        self.module: Callable[[], Mapping[str, Tensor]] | None = None  # reads the multi-token module
        ends = self._tensors(None)
        self._embedding = ends["embedding"]
        self._positions = ends.get("positions")
        self._norm = norm_of(config, config.layer(0).norm, ends, "final_norm")
        self._head = ends.get("head", self._embedding)
        self._scale = None if config.embedding_scale == 1.0 else self._embedding.new_tensor(config.embedding_scale)
        self._turns: dict[Rope, Turn] = {}
        self._blocks = [
            Block(config, index, self._tensors(index), self._turn(config.layer(index).rope))
            for index in range(config.num_layers)
        ]
        self.precision = str(self._embedding.dtype).removeprefix("torch.")
        self.value_bytes = self._embedding.element_size()

    def _tensors(self, layer: int | None) -> dict[str, Tensor]:
        """The tensors of a layer, or of embedding, final norm and head, by role; matrices as [out, in]."""
        return {
            role: self.weights[weight.name].transpose(-1, -2) if weight.transposed else self.weights[weight.name]
            for role, weight in weights_by_role(self.config, layer).items()
        }

    def _turn(self, rope: Rope | None) -> Turn | None:
        """A rotary embedding with its frequencies, one for all layers that have it."""
        if rope is not None and rope not in self._turns:
            frequencies = torch.from_numpy(inverse_frequencies(rope, self.config.head_dim, _power))
            self._turns[rope] = Turn(rope, frequencies.to(self.device))
        return None if rope is None else self._turns[rope]

    @classmethod
    def load(
        cls,
        config: ModelConfig,
        files: Mapping[str, Any],
        dtype: str | None = None,
        device: str = "auto",
        module_files: Mapping[str, Any] | None = None,
    ) -> TorchRuntime:
        """Read weights from safetensors ``files`` (canonical name -> path), each converted to ``dtype``.

        ``dtype`` None keeps the stored precision; int8 and int4 are those of the matrices alone (torchao), the rest
        is in bfloat16 or as stored, if that is as narrow. ``module_files`` has the weights of a multi-token module,
        which are read when somebody drafts with it. Raises OptionError for an unknown dtype or device, and as
        `torch_quantised.quantise`.
        """
        stored = config.dtype if dtype is None else dtype
        narrow = dtype if dtype in BITS else None
        if narrow:
            stored = config.dtype if config.dtype in ("bfloat16", "float16") else "bfloat16"
        chosen, target = dtype_of(stored), device_of(device)
        with memory_for(f"{config.parameters:,} weights in {chosen}; use a lower dtype or a smaller model"):
            weights = read_tensors(files, chosen, target)
            if narrow:
                quantise(config, weights, narrow)
        made = cls(config, weights)
        made.precision = narrow or made.precision
        if module_files:
            made.module = partial(read_tensors, module_files, chosen, target)
        return made

    @property
    def pass_bytes(self) -> int:
        """See `Runtime.pass_bytes`."""
        return super().pass_bytes - saved(self.config, self.precision, self.value_bytes)

    @property
    def weight_bytes(self) -> int:
        """See `Runtime.weight_bytes`."""
        return super().weight_bytes - saved(self.config, self.precision, self.value_bytes)

    def compiled(self, how: str, notify: Callable[[str], None] = lambda _: None) -> TorchRuntime:
        """The same model in compiled passes, or itself, as ``how`` says: "auto" (on a GPU), "on" or "off".

        ``notify`` is told what compiling takes. Raises OptionError where it is on and cannot be.
        """
        from selfspec.runtime.torch_compiled import compiled

        return compiled(self, how, notify)

    @property
    def runs_on(self) -> str:
        """torch, and the device where that is not a CPU."""
        return self.name if self.device.type == "cpu" else f"{self.name} ({self.device})"

    @property
    def placement(self) -> dict[str, Any]:
        """torch, on the same device."""
        return {"runtime": self.name, "device": str(self.device)}

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self._embedding.device

    @staticmethod
    def has_gpu() -> bool:
        """Whether torch finds a GPU here."""
        return torch.cuda.is_available()

    @staticmethod
    def gpus() -> list[str]:
        """The names of those that torch finds."""
        return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]

    @classmethod
    def of(cls, model: Any, eos_token_ids: Sequence[int] = ()) -> TorchRuntime:
        """Share the parameter tensors of a transformers model with an LM head.

        LoRA adapters of PEFT are merged into copies of their matrices (`torch_objects.tensors_of`). Its texts end
        at the end-of-text ids of its generation config, else of its config, else at those given.
        Raises UnsupportedModelError for another kind of object, or an end-of-text id that is no token of it.
        """
        if not hasattr(getattr(model, "config", None), "to_dict") or isinstance(model, type):
            raise UnsupportedModelError(f"{type(model).__name__} is no transformers model with an LM head")
        model = base_of(model)
        weights = tensors_of(model)
        said = model.config.to_dict()
        if is_torchao(model):
            del said["quantization_config"]
        config = config_from_hf(said, f"the config of {type(model).__name__}")
        ends = _ends(model, config, eos_token_ids)
        config = with_layout_of(_with_own_head(config, weights), weights)
        for name, shape in weight_shapes(config).items():
            if name not in weights or tuple(weights[name].shape) != shape or weights[name].is_meta:
                raise UnsupportedModelError(f"{type(model).__name__} has no {name} of shape {shape} in memory")
        return cls(replace(config, eos_token_ids=ends), weights)

    def refuses(self, plan: LayerPlan) -> str:
        """See `Runtime.refuses`: what lies apart in a layer's weights can be left out."""
        lacking = (self._blocks[cut.step.layer].uncut(cut.step.part) for cut in plan.cuts)
        if reason := next(filter(None, lacking), ""):
            return f"{self.config.family} has {reason}: name whole sub-layers"
        return ""

    def weight(self, role: str, layer: int | None = None) -> NDArray[np.float32] | None:
        """See `Runtime.weight`."""
        part = part_of(self.config, role, layer)
        if part is None:
            return None
        stored = self.weights[part.name].detach()
        whole = (stored.dequantize() if hasattr(stored, "qdata") else stored).float().cpu().numpy()
        return np.ascontiguousarray(part.cut(whole, len(whole)))

    def head_rows(self, tokens: Integers) -> NDArray[np.float32]:
        """See `Runtime.head_rows`."""
        found = self._head.detach()[torch.from_numpy(tokens).to(self._head.device)]
        return np.ascontiguousarray(found.float().cpu().numpy())

    def vectors(self) -> Iterator[tuple[str, Array]]:
        """See `Runtime.vectors`."""
        for layer in range(self.config.num_layers):
            for role, weight in weights_by_role(self.config, layer).items():
                if role.endswith("norm"):
                    yield weight.name, self.weights[weight.name].float()

    def attach(self, head: HeadFile, bits: int | None = None) -> Attached:
        """See `Runtime.attach`: in the precision of the weights."""
        from selfspec.runtime.torch_attached import TorchAttached
        from selfspec.runtime.torch_blocks import TorchBlocks

        if bits is not None:
            raise OptionError(f"head_bits is {bits}, but torch runs heads in its own precision: leave it out")
        if head.facts.form == "blocks":
            return TorchBlocks(head, self, self._norm, self._head)
        return TorchAttached(head, self, self._embedding, self._head)

    def attach_module(self) -> Attached:
        """See `Runtime.attach_module`: in the precision of the weights."""
        from selfspec.runtime.torch_mtp import TorchMtp

        if self.module is None:
            raise OptionError(
                f"no multi-token module (mtp.*) came with this {self.config.family} model: give the folder of a "
                "checkpoint that has one, which transformers leaves out of its models; or another drafter"
            )
        tensors = self.module()
        kinds = [layer for layer in map(self.config.layer, range(self.config.num_layers)) if layer.attends]
        turn = self._turn(kinds[0].rope) if kinds else None
        return TorchMtp(self, tensors, self._norm, self._head, turn)

    @contextmanager
    def pass_of(self, what: str) -> Iterator[None]:
        """No gradients, products in the precision of the weights, and a clear line where memory runs out."""
        with _as_stored(self.device), memory_for(f"{what}; {FEWER}"):
            yield

    def embed(self, tokens: Sequence[int], positions: Integers | None = None) -> Array:
        """Hidden states [R, d] that enter layer 0."""
        with _as_stored(self.device):
            places = None if self._positions is None else positions
            return self.entered(
                torch.tensor(tokens, device=self.device),
                None if places is None else torch.from_numpy(places).to(self.device),
            )

    def entered(self, tokens: Tensor, places: Tensor | None) -> Tensor:
        """See `embed`, of ``tokens`` [R] at ``places`` [R] that are on the device."""
        hidden = F.embedding(tokens, self._embedding)
        if self._scale is not None:
            hidden = hidden * self._scale
        if self._positions is not None:
            assert places is not None, "the positions of this model are learned vectors"
            hidden = hidden + F.embedding(places + (self.config.position_offset or 0), self._positions)
        return hidden

    def new_cache(self, slots: int, length: int) -> TorchCache:
        """An empty cache in the precision of the weights; layers with a window have the cells that they need."""
        with self.memory_for_cache(slots, length):
            return TorchCache.new(self._embedding, self.config, (slots, length), (self.most_rows, self.block))

    def memory_for_cache(self, slots: int, length: int) -> AbstractContextManager[None]:
        """A clear line where there is not enough memory for a cache."""
        size = slots * length * self.config.kv_values_per_token * self.value_bytes
        return memory_for(f"a KV cache of {slots} x {length} tokens, {size / 1e6:.0f} MB; {FEWER}")

    def cache_bytes(self, slots: int, length: int) -> int:
        """See `Runtime.cache_bytes`."""
        from selfspec.runtime.cache_sizes import torch_cache_bytes

        return torch_cache_bytes(self.config, self.value_bytes, slots, length)

    def keep(self, cache: Cache, rows: Rows) -> None:
        """See `Runtime.keep`: the cells of all ``rows`` are read before any is written."""
        assert isinstance(cache, TorchCache)
        moved = np.flatnonzero(rows.cells != rows.positions)
        if not len(moved):
            return
        slots, cells, positions = (
            torch.from_numpy(part[moved]).to(self.device) for part in (rows.slots, rows.cells, rows.positions)
        )
        for stored in (*cache.keys, *cache.values):
            size = stored.shape[1]
            stored[slots, positions % size] = stored[slots, cells % size]

    def run(
        self, hidden: Array, plan: LayerPlan, rows: Rows, cache: Cache, taps: Sequence[SubLayer] = ()
    ) -> tuple[Array, dict[SubLayer, Array]]:
        """Run ``plan`` over ``hidden`` [R, d]; see `Runtime.run`."""
        assert isinstance(cache, TorchCache)
        assert plan.num_layers == self.config.num_layers
        assert hidden.shape[0] == len(rows)
        if cache.states and rows.lineage is not None:
            raise OptionError(
                f"a draft is a tree; {self.config.family} has recurrent layers, which verify chains only: "
                "use siblings 0, or a drafter of chains"
            )
        if cache.has_rings and (parts := split(rows, self.most_rows)):
            return run_in_parts(lambda part, own: self.run(part, plan, own, cache, taps), hidden, rows, parts)
        tapped: dict[SubLayer, Array] = {}
        with self.pass_of(f"a pass of {len(rows)} rows"):
            placement = Placement(rows, cache, hidden.dtype, self.device)
            layer, entered = -1, hidden
            for step in plan.steps:
                block = self._blocks[step.layer]
                if step.layer != layer:
                    layer, entered = step.layer, hidden
                reads = entered if block.is_parallel else hidden
                kept = plan.kept.get(step)
                if step.part == "attention":
                    hidden = hidden + block.attention(reads, placement, cache.store(layer), kept)
                else:
                    hidden = hidden + block.mlp(reads, plan.experts, kept)
                if step in taps:
                    tapped[step] = hidden
        return hidden, tapped

    def logits(self, hidden: Array) -> Array:
        """Logits [R, V] in float32 or float64: a NumPy array where the weights are on a CPU."""
        with self.pass_of(f"the logits of {hidden.shape[0]} rows"):
            out = ended(hidden, self._norm, self._head, (self.config.logit_scale, self.config.logit_cap))
            return out.contiguous().numpy() if out.device.type == "cpu" else out


def ended(hidden: Tensor, norm: Norm | None, head: Tensor, ends: tuple[float, float | None]) -> Tensor:
    """Final norm and LM head: logits [R, V] in float32 or float64; ``ends`` are their scale and their cap."""
    scale, cap = ends
    out = linear(hidden if norm is None else norm(hidden), head)
    if out.dtype in (torch.float16, torch.bfloat16):
        out = out.float()
    if scale != 1.0:
        out = out * scale
    return out if cap is None else cap * torch.tanh(out / cap)


def _with_own_head(config: ModelConfig, weights: Mapping[str, Tensor]) -> ModelConfig:
    """What the config says of a tied head may have been undone since, by loading or by hand: the tensors decide."""
    for index in range(len(family_of(config).layouts)) if config.tied_head else ():
        untied = replace(config, tied_head=False, layout=index)
        roles = weights_by_role(untied)
        head, embedding = (weights.get(roles[role].name) for role in ("head", "embedding"))
        if head is not None and embedding is not None:
            return replace(config, tied_head=head.data_ptr() == embedding.data_ptr())
    return config


def _ends(model: Any, config: ModelConfig, others: Sequence[int]) -> tuple[int, ...]:
    """The end-of-text ids of a transformers model: of its generation config, else its config, else ``others``."""
    own = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = ((own,) if isinstance(own, int) else tuple(own or ())) or config.eos_token_ids or tuple(others)
    if wrong := [token for token in ids if not 0 <= token < config.vocab_size]:
        raise UnsupportedModelError(
            f"eos_token_id is {wrong[0]}; this model's tokens are 0 to {config.vocab_size - 1}: "
            "correct its generation_config, or give the tokenizer it was trained with"
        )
    return ids


@contextmanager
def _as_stored(device: torch.device) -> Iterator[None]:
    """No gradients, and all products in the precision of the weights, whatever the caller has switched on."""
    is_cast = torch.is_autocast_enabled(device.type)
    with torch.no_grad(), torch.autocast(device.type, enabled=False) if is_cast else nullcontext():
        yield


def _power(base: float, exponents: Floats) -> Floats:
    """As transformers has it, to the last bit, which differs between libraries where there is AVX-512."""
    found: Floats = torch.pow(base, torch.from_numpy(exponents)).numpy()
    return found
