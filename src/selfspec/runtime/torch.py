"""The torch runtime: one configurable transformer over the tensors it is given, with a static KV cache.

It shares the parameter tensors of a Hugging Face model (no copy). Rows are flat: [R, ...] with a slot and a
position each, so prefill chunks, draft steps, verification and ragged batches are one code path. On a CPU
the logits come back as NumPy arrays (a view, no copy), whose sorts and sums are several times faster there.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own abbreviation)

from selfspec.errors import CorruptModelError, OptionError, OutOfMemoryError, UnsupportedModelError
from selfspec.model.config import DTYPE_BYTES
from selfspec.runtime.base import Cache, Runtime
from selfspec.runtime.products import linear
from selfspec.runtime.rotary import inverse_frequencies
from selfspec.types import Array, LayerPlan, Rows, SubLayer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from selfspec.model.config import ModelConfig


_FEWER = "ask for fewer tokens, or fewer texts at once"


class TorchCache(Cache):
    """Keys and values per layer: [slots, length, KV heads, head width]. Zeroed, so unused cells stay finite."""

    def __init__(self, keys: list[Tensor], values: list[Tensor]) -> None:
        self.slots, self.length = keys[0].shape[:2]
        self.keys, self.values = keys, values

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(t.nbytes for t in self.keys + self.values)

    def longer(self, length: int) -> TorchCache:
        """A longer copy."""
        with _memory_for(f"a KV cache of {self.slots} x {length} tokens beside the one it replaces; {_FEWER}"):
            return TorchCache(*([_lengthened(t, length) for t in part] for part in (self.keys, self.values)))


def _lengthened(old: Tensor, length: int) -> Tensor:
    new = _writable(old, (old.shape[0], length, *old.shape[2:]))
    new[:, : old.shape[1]] = old
    return new


def _writable(like: Tensor, shape: Sequence[int]) -> Tensor:
    """Zeros that may be written later, outside the `torch.inference_mode` that the caller may be in, too."""
    with torch.inference_mode(False):
        return like.new_zeros(*shape)


class _Layer:
    """The tensors of one layer."""

    def __init__(self, weights: Mapping[str, Tensor], index: int) -> None:
        def get(name: str) -> tuple[Tensor, Tensor | None]:
            full = f"model.layers.{index}.{name}"
            return weights[f"{full}.weight"], weights.get(f"{full}.bias")

        self.attention_norm, _ = get("input_layernorm")
        self.q, self.k, self.v = get("self_attn.q_proj"), get("self_attn.k_proj"), get("self_attn.v_proj")
        self.o = get("self_attn.o_proj")
        self.mlp_norm, _ = get("post_attention_layernorm")
        self.gate, self.up, self.down = get("mlp.gate_proj"), get("mlp.up_proj"), get("mlp.down_proj")


class _Placement:
    """Where the rows of one pass read and write, computed once for all its layers."""

    def __init__(self, rows: Rows, cache: TorchCache, inverse_frequencies: Tensor, dtype: torch.dtype) -> None:
        device = inverse_frequencies.device
        self.visible = int(rows.cells.max()) + 1
        assert self.visible <= cache.length
        self.slots = torch.from_numpy(rows.slots).to(device)
        self.cells = torch.from_numpy(rows.cells).to(device)
        positions = torch.from_numpy(rows.positions).to(device)
        angles = positions.float()[:, None] * inverse_frequencies
        angles = torch.cat((angles, angles), dim=-1)[:, None, :]
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)  # [R, 1, head width]
        self.distinct: slice | Tensor
        slots, segment = np.unique(rows.slots, return_inverse=True)
        self.single = int(slots[0]) if len(slots) == 1 else None
        self.mask: Tensor | None = None
        if self.single is None:
            self._pad(slots, segment.reshape(-1), self._sees(rows, device))
        elif len(rows) > 1 or rows.lineage is not None:
            self.mask = self._sees(rows, device)

    def _sees(self, rows: Rows, device: torch.device) -> Tensor:
        """Which cells of its slot each row sees: [R, visible]."""
        cells = torch.arange(self.visible, device=device)
        if rows.lineage is None:
            return cells <= self.cells[:, None]
        lineage = torch.from_numpy(rows.lineage).to(device)
        return (cells < lineage[:, :1]).scatter_(1, lineage, True)

    def _pad(self, slots: np.ndarray[Any, Any], segment: np.ndarray[Any, Any], sees: Tensor) -> None:
        """Give every slot the same number of rows: row r becomes [segment, offset] of [slots, widest]."""
        device = sees.device
        counts = np.bincount(segment)
        order = np.argsort(segment, kind="stable")
        offset = np.empty_like(segment)
        offset[order] = np.arange(len(segment)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.segment = torch.from_numpy(segment).to(device)
        self.offset = torch.from_numpy(offset).to(device)
        self.shape = (len(slots), int(counts.max()))
        first, last = int(slots[0]), int(slots[-1])
        # neighbouring slots are a view of the cache, others are copied
        is_run = last - first == len(slots) - 1
        self.distinct = slice(first, last + 1) if is_run else torch.from_numpy(slots).to(device)
        padded = torch.zeros(*self.shape, self.visible, dtype=torch.bool, device=device)
        padded[..., 0] = True  # padding sees cell 0, and is dropped
        padded[self.segment, self.offset] = sees
        self.mask = padded[:, None]  # [slots, 1, widest, visible]

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention of q [R, heads, width] over the cells that each row sees: [R, heads, width]."""
        if self.single is not None:
            k, v = keys[self.single, : self.visible], values[self.single, : self.visible]
            out = _attention(q[None], k[None], v[None], self.mask)
            return out[0]
        k, v = keys[self.distinct, : self.visible], values[self.distinct, : self.visible]
        padded = q.new_zeros(*self.shape, *q.shape[1:])
        padded[self.segment, self.offset] = q
        return _attention(padded, k, v, self.mask)[self.segment, self.offset]


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Grouped-query attention; q, k, v are [batch, rows or cells, heads, width], and so is the result."""
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, enable_gqa=True
    )
    return out.transpose(1, 2)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


class TorchRuntime(Runtime):
    """Runs plans of a Llama-type decoder in torch.

    Parameters
    ----------
    config
        Sizes and switches.
    weights
        Canonical (Hugging Face Llama) name to tensor; used as they are, never copied. A tied model needs no
        ``lm_head.weight``.
    """

    name = "torch"

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
        self.config = config
        self.weights = weights
        self._embedding = weights["model.embed_tokens.weight"]
        self._layers = [_Layer(weights, i) for i in range(config.num_layers)]
        self._norm = weights["model.norm.weight"]
        self._head = self._embedding if config.tied_head else weights["lm_head.weight"]
        self._heads = [config.num_heads, config.num_kv_heads]
        self._frequencies = torch.from_numpy(inverse_frequencies(config.rope, config.head_dim)).to(
            self._embedding.device
        )
        self.precision = str(self._embedding.dtype).removeprefix("torch.")
        self.value_bytes = self._embedding.element_size()

    @classmethod
    def load(
        cls, config: ModelConfig, files: Mapping[str, Any], dtype: str | None = None, device: str = "auto"
    ) -> TorchRuntime:
        """Read weights from safetensors ``files`` (canonical name -> path), each converted to ``dtype``.

        ``dtype`` None keeps the stored precision. Raises OptionError for an unknown dtype or device.
        """
        from safetensors import SafetensorError, safe_open

        chosen = _dtype(config.dtype if dtype is None else dtype)
        target = _device(device)
        weights: dict[str, Tensor] = {}
        with _memory_for(f"{config.parameters:,} weights in {chosen}; use a lower dtype or a smaller model"):
            for path in sorted(set(files.values())):
                try:
                    with safe_open(path, framework="pt", device=str(target)) as reader:
                        for name in (n for n, p in files.items() if p == path):
                            weights[name] = reader.get_tensor(name).to(chosen)
                except SafetensorError as error:
                    raise CorruptModelError(f"{str(path)!r} cannot be read ({error}); download it again") from error
        return cls(config, weights)

    @property
    def runs_on(self) -> str:
        """torch, and the device where that is not a CPU."""
        device = self._embedding.device
        return self.name if device.type == "cpu" else f"{self.name} ({device})"

    @staticmethod
    def has_gpu() -> bool:
        """Whether torch finds a GPU here."""
        return torch.cuda.is_available()

    @classmethod
    def of(cls, model: Any, eos_token_ids: Sequence[int] = ()) -> TorchRuntime:
        """Share the parameter tensors of a transformers model with an LM head.

        Its texts end at the end-of-text ids of its generation config, else of its config, else at those given.
        Raises UnsupportedModelError for another kind of object, or an end-of-text id that is no token of it.
        """
        from selfspec.model.families import config_from_hf, weight_shapes

        if not hasattr(getattr(model, "config", None), "to_dict") or isinstance(model, type):
            raise UnsupportedModelError(f"{type(model).__name__} is no transformers model with an LM head")
        config = config_from_hf(model.config.to_dict(), f"the config of {type(model).__name__}")
        ends = _ends(model, config, eos_token_ids)
        weights = model.state_dict()
        if config.tied_head and "lm_head.weight" in weights:
            # what the config says may have been undone since, by loading or by hand: the tensors decide
            shared = weights["lm_head.weight"].data_ptr() == weights["model.embed_tokens.weight"].data_ptr()
            config = replace(config, tied_head=shared)
        for name, shape in weight_shapes(config).items():
            if name not in weights or tuple(weights[name].shape) != shape or weights[name].is_meta:
                raise UnsupportedModelError(f"{type(model).__name__} has no {name} of shape {shape} in memory")
        return cls(replace(config, eos_token_ids=ends), weights)

    def embed(self, tokens: Sequence[int]) -> Array:
        """Hidden states [R, d] that enter layer 0."""
        with _as_stored(self._embedding.device):
            return F.embedding(torch.tensor(tokens, device=self._embedding.device), self._embedding)

    def new_cache(self, slots: int, length: int) -> TorchCache:
        """An empty cache in the precision of the weights."""
        shape = (slots, length, self.config.num_kv_heads, self.config.head_dim)
        layers = range(self.config.num_layers)
        size = slots * length * self.config.kv_values_per_token * self.value_bytes
        with _memory_for(f"a KV cache of {slots} x {length} tokens, {size / 1e6:.0f} MB; {_FEWER}"):
            return TorchCache(*([_writable(self._embedding, shape) for _ in layers] for _ in ("keys", "values")))

    def keep(self, cache: Cache, rows: Rows) -> None:
        """See `Runtime.keep`: the cells of all ``rows`` are read before any is written."""
        assert isinstance(cache, TorchCache)
        moved = np.flatnonzero(rows.cells != rows.positions)
        if not len(moved):
            return
        slots, cells, positions = (
            torch.from_numpy(part[moved]).to(self._embedding.device)
            for part in (rows.slots, rows.cells, rows.positions)
        )
        for stored in (*cache.keys, *cache.values):
            stored[slots, positions] = stored[slots, cells]

    def run(
        self, hidden: Array, plan: LayerPlan, rows: Rows, cache: Cache, taps: Sequence[SubLayer] = ()
    ) -> tuple[Array, dict[SubLayer, Array]]:
        """Run ``plan`` over ``hidden`` [R, d]; see `Runtime.run`."""
        assert isinstance(cache, TorchCache)
        assert plan.num_layers == self.config.num_layers
        assert hidden.shape[0] == len(rows)
        tapped: dict[SubLayer, Array] = {}
        with _as_stored(self._embedding.device), _memory_for(f"a pass of {len(rows)} rows; {_FEWER}"):
            placement = _Placement(rows, cache, self._frequencies, hidden.dtype)
            for step in plan.steps:
                layer = self._layers[step.layer]
                if step.part == "attention":
                    store = (cache.keys[step.layer], cache.values[step.layer])
                    hidden = hidden + self._attention(layer, hidden, placement, store)
                else:
                    hidden = hidden + self._mlp(layer, hidden)
                if step in taps:
                    tapped[step] = hidden
        return hidden, tapped

    def logits(self, hidden: Array) -> Array:
        """Logits [R, V] in float32 or float64: a NumPy array where the weights are on a CPU."""
        with _as_stored(self._embedding.device), _memory_for(f"the logits of {hidden.shape[0]} rows; {_FEWER}"):
            out = linear(self._normed(hidden, self._norm), self._head)
            if out.dtype in (torch.float16, torch.bfloat16):
                out = out.float()
            return out.contiguous().numpy() if out.device.type == "cpu" else out

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMSNorm with its statistics in float32 whatever the precision, as transformers computes it."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.config.norm_eps)
        return weight * wide.to(x.dtype)

    def _attention(
        self, layer: _Layer, hidden: Tensor, placement: _Placement, store: tuple[Tensor, Tensor]
    ) -> Tensor:
        x = self._normed(hidden, layer.attention_norm)
        q, k, v = (linear(x, *w) for w in (layer.q, layer.k, layer.v))
        # queries and keys are turned together: on a CPU every small operation costs microseconds
        heads = torch.cat((q, k), dim=1).view(len(x), -1, self.config.head_dim)
        q, k = torch.split(_rotate(heads, placement.cos, placement.sin), self._heads, dim=1)
        keys, values = store
        keys[placement.slots, placement.cells] = k
        values[placement.slots, placement.cells] = v.reshape(k.shape)
        return linear(placement.attend(q, keys, values).flatten(1), *layer.o)

    def _mlp(self, layer: _Layer, hidden: Tensor) -> Tensor:
        x = self._normed(hidden, layer.mlp_norm)
        return linear(F.silu(linear(x, *layer.gate)) * linear(x, *layer.up), *layer.down)


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


@contextmanager
def _memory_for(what: str) -> Iterator[None]:
    """Turn torch's failed allocations, which are RuntimeErrors on a CPU, into an error that says for what."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or any(
            words in str(error) for words in ("allocate memory", "size calculation overflowed")
        ):
            raise OutOfMemoryError(f"there is not enough memory for {what}") from error
        raise


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPE_BYTES:
        raise OptionError(f"dtype is {name!r}; it must be one of {', '.join(DTYPE_BYTES)}")
    found: torch.dtype = getattr(torch, name)
    return found


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.empty(0, device=name).device
        if device.type == "meta":
            raise RuntimeError("it holds no data")
        return device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise OptionError(f"device {name!r} cannot be used here ({reason}); use auto, cpu or cuda") from error
