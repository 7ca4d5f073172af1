"""Heads that others have published, read as ours: Medusa's, and EAGLE-3's in two layouts (docs/heads.md).

- Medusa's authors: ``0.0.linear.weight``, ``0.0.linear.bias``, ``0.1.weight`` (head, block; then an LM head).
- Medusa for vLLM: ``blocks.0.layers.0.weight``, ``lm_heads.0.weight``, ``token_map`` (a draft vocabulary);
  ``original_lm_head`` in config.json says that the target's LM head serves.
- EAGLE-3's authors, "eagle3": ``fc``, ``midlayer.*``, ``norm``, ``lm_head``, ``d2t``; a config.json as of a Llama.
- vLLM's "speculators": ``fc``, ``layers.0.*``, ``norm``, ``lm_head``, ``d2t``, ``embed_tokens``; sizes are in
  transformer_layer_config, beside norm_before_residual.

``d2t`` [D] is what is added to a draft token to get the target's. None of them says how many layers the target has,
which decides what is read: by default the states after 2, L / 2 and L - 3 layers, or the last.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.errors import CorruptModelError, ModelError, OptionError, UnsupportedModelError
from selfspec.model.families.ropes import rope_of
from selfspec.model.head_file import LM_HEAD, HeadFacts, HeadFile, is_ours, read_head
from selfspec.model.reading import Fields, listed, one_line, quoted, read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    Tensors = dict[str, NDArray[Any]]
    Reader = Callable[[Path], Tensors]

_TORCH = (".pt", ".pth", ".bin")
_KINDS = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32, "U8": np.uint8,
    "I8": np.int8, "BOOL": np.bool_, "BF16": np.uint16,
}  # fmt: skip
_MEDUSA = (
    (re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)"), r"\1.\2.linear.\3"),
    (re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)"), r"\1.\2.linear.\3"),
    (re.compile(r"(\d+)\.\d+\.weight|lm_heads\.(\d+)\.weight"), rf"\1\2.{LM_HEAD}"),
)
_UNUSED = re.compile(r"(.*\.)?rotary_emb\.inv_freq|t2d")


def read_any(path: Path, num_layers: int, of_torch: Reader) -> HeadFile:
    """A head of ours, or a published one: a folder, or a file of Medusa's, for a target of so many layers.

    ``of_torch`` reads a file in torch's format.

    Raises
    ------
    ModelError
        As `read_head`; a layout or option that is not known, weights that are missing or of the wrong shape.
    SelfspecError
        As ``of_torch``.
    """
    if path.is_file() and path.suffix not in _TORCH and is_ours(path):
        return read_head(path)
    if not path.exists():
        return read_head(path)  # which says so
    settings = read_json(path / "config.json") if path.is_dir() else {}
    tensors = _tensors(path, of_torch)
    try:
        if any(pattern.fullmatch(_bare(name)) for pattern, _ in _MEDUSA for name in tensors):
            return _medusa(tensors, settings, num_layers, quoted(path))
        if "fc.weight" in tensors:
            return _eagle(tensors, settings, num_layers, quoted(path / "config.json"))
    except OptionError as error:
        raise CorruptModelError(f"{quoted(path)} is no head that can be used: {one_line(error)}") from error
    raise UnsupportedModelError(
        f"{quoted(path)} is no trained head: it has weights such as {listed(sorted(tensors), 2)}; give a file that "
        "`selfspec train` wrote, or a checkpoint of Medusa's or EAGLE-3's kind"
    )


# -- Medusa ---------------------------------------------------------------------------------------------


def _bare(name: str) -> str:
    return re.sub(r"^medusa_heads?\.", "", name)


def _medusa(tensors: Tensors, settings: Mapping[str, Any], num_layers: int, source: str) -> HeadFile:
    token_map = tensors.pop("token_map", None)
    found: Tensors = {}
    for name, array in tensors.items():
        new = next((re.sub(p, to, _bare(name)) for p, to in _MEDUSA if p.fullmatch(_bare(name))), None)
        if new is not None:
            found[new] = array
        elif name != LM_HEAD:  # of the target, where all heads share it
            raise UnsupportedModelError(f"{source} has {one_line(name, 80)}, which no Medusa head has")
    places = [tuple(map(int, name.split(".")[:2])) for name in found if name.endswith("linear.weight")]
    drafts, blocks = (1 + max((place[i] for place in places), default=-1) for i in (0, 1))
    if settings.get("original_lm_head"):
        found = {name: array for name, array in found.items() if not name.endswith(LM_HEAD)}
    vocabulary = None
    if token_map is not None:
        vocabulary, order = _rising(token_map)
        found = {
            name: _rows(array, token_map, order) if name.endswith(LM_HEAD) else array
            for name, array in found.items()
        }
    width = next((array.shape[-1] for name, array in found.items() if name.endswith("linear.weight")), 0)
    for i in range(drafts):
        for j in range(blocks):
            found.setdefault(f"{i}.{j}.linear.bias", np.zeros(width, np.float32))
    facts = HeadFacts("medusa", "blocks", (num_layers,), width, drafts=drafts, blocks=blocks, **_told(settings))
    return HeadFile(facts, _wide(found), vocabulary)


def _rows(array: NDArray[Any], token_map: NDArray[Any], order: NDArray[np.int64]) -> NDArray[Any]:
    """Of an LM head those of a draft vocabulary, in rising order of the tokens."""
    own = array[token_map] if len(array) > len(token_map) else array
    return np.ascontiguousarray(own[order])


# -- EAGLE-3 --------------------------------------------------------------------------------------------


def _eagle(tensors: Tensors, settings: Mapping[str, Any], num_layers: int, source: str) -> HeadFile:
    is_speculators = "speculators_model_type" in settings
    outer = Fields(settings, source)
    inner = (outer.child("transformer_layer_config") if is_speculators else None) or outer
    _require_known(outer, inner)
    found: Tensors = {}
    for name, array in tensors.items():
        renamed = re.sub(r"^(model\.)?(layers\.0|midlayer)\.", "midlayer.", name).removeprefix("model.")
        if not _UNUSED.fullmatch(name):
            found[renamed] = array
    offsets, vocabulary = found.pop("d2t", None), None
    if offsets is not None:
        vocabulary, order = _rising(np.arange(len(offsets)) + offsets.astype(np.int64))
        if LM_HEAD in found:
            found[LM_HEAD] = np.ascontiguousarray(found[LM_HEAD][order])
    facts = HeadFacts(
        "eagle",
        "layer",
        _taps(outer, num_layers),
        hidden_size=inner.integer("hidden_size"),
        num_heads=(heads := inner.integer("num_attention_heads")),
        num_kv_heads=inner.integer("num_key_value_heads", heads),
        head_dim=inner.integer("head_dim", inner.integer("hidden_size") // heads),
        intermediate_size=inner.integer("intermediate_size"),
        eps=inner.number("rms_norm_eps", 1e-6),
        **_rope(inner),
        qk_norm="midlayer.self_attn.q_norm.weight" in found,
        norm_before_residual=outer.flag("norm_before_residual", is_speculators),
        **_told(settings),
    )
    return HeadFile(facts, _wide(found), vocabulary)


def _require_known(outer: Fields, inner: Fields) -> None:
    kind = outer.text("speculators_model_type", "eagle3")
    odd = {
        f"speculators_model_type {kind!r}": kind != "eagle3",
        **{name: outer.flag(name, False) for name in ("norm_before_fc", "fc_norm", "norm_output")},
        "a window": "sliding_attention" in (inner.raw("layer_types") or ()),
        "attention_bias": inner.flag("attention_bias", False),
        "several layers": inner.integer("num_hidden_layers", 1) != 1,
        "another activation than silu": inner.text("hidden_act", "silu") != "silu",
    }
    if unknown := [name for name, is_there in odd.items() if is_there]:
        raise UnsupportedModelError(
            f"{outer.source} has {', '.join(unknown)}, which is not supported here; give a head of EAGLE-3 with "
            "one layer of Llama shape"
        )


def _taps(fields: Fields, num_layers: int) -> tuple[int, ...]:
    """Those of config.json, wherever it names them, or the published ones."""
    beside = fields.child("eagle_config")
    for place in (fields, beside):
        if place is not None and "eagle_aux_hidden_state_layer_ids" in place:
            return place.ids("eagle_aux_hidden_state_layer_ids")
    return (2, num_layers // 2, num_layers - 3)


def _rope(fields: Fields) -> dict[str, Any]:
    scaling = fields.child("rope_parameters") or fields.child("rope_scaling") or Fields({}, fields.source)
    theta = scaling.number("rope_theta", fields.number("rope_theta", 10_000.0))
    found = asdict(rope_of(scaling, fields, theta, 1.0))
    plain = asdict(rope_of(Fields({}, fields.source), fields, theta, 1.0))
    return {"rope_theta": theta, "rope": {name: value for name, value in found.items() if value != plain[name]}}


# -- both -----------------------------------------------------------------------------------------------


def _told(settings: Mapping[str, Any]) -> dict[str, Any]:
    """For which model it was made, as far as it says."""
    verifier = settings.get("speculators_config", {})
    verifier = verifier.get("verifier", {}) if isinstance(verifier, dict) else {}
    name = settings.get("base_model_name_or_path") or (
        verifier.get("name_or_path") if isinstance(verifier, dict) else ""
    )
    return {"target_name": name if isinstance(name, str) else "", "card": {"published": True}}


def _rising(tokens: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens of a draft vocabulary in rising order, and where each stood."""
    order = np.argsort(tokens, kind="stable")
    return tokens[order].astype(np.int64), order


def _wide(tensors: Tensors) -> dict[str, NDArray[np.float32]]:
    return {name: np.ascontiguousarray(array, dtype=np.float32) for name, array in tensors.items()}


def _tensors(path: Path, of_torch: Reader) -> Tensors:
    """All tensors of a file, or of the files of a folder: safetensors if there are some, else torch's."""
    files = [path]
    if path.is_dir():
        files = sorted(path.glob("*.safetensors")) or [f for end in _TORCH for f in sorted(path.glob(f"*{end}"))]
    if not files:
        raise ModelError(f"there are no weights in {quoted(path)}: no .safetensors, {', '.join(_TORCH)}")
    found: Tensors = {}
    for file in files:
        found |= of_torch(file) if file.suffix in _TORCH else _of_safetensors(file)
    return found


def _of_safetensors(file: Path) -> Tensors:
    from safetensors import SafetensorError, deserialize

    try:
        entries = deserialize(file.read_bytes())  # type: ignore[no-untyped-call]
    except (SafetensorError, OSError) as error:
        raise CorruptModelError(f"{quoted(file)} cannot be read as safetensors ({one_line(error)})") from error
    found: Tensors = {}
    for name, entry in entries:
        if entry["dtype"] not in _KINDS:
            raise UnsupportedModelError(
                f"{one_line(name, 80)} in {quoted(file)} has the precision {entry['dtype']}; supported: "
                f"{', '.join(_KINDS)}"
            )
        array = np.frombuffer(entry["data"], _KINDS[entry["dtype"]]).reshape(entry["shape"])
        if entry["dtype"] == "BF16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        found[name] = array
    return found
