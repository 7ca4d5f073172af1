"""Files of trained heads: small modules that draft on the states of one target (docs/heads.md).

One safetensors file holds the weights of a head, the draft vocabulary, and in its metadata what the head is: its
kind and form, the layers that it reads, sizes, the target that it was trained for, and a card that says how.
Everything is checked when it is read, so who attaches a head has to look at nothing again but the target.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.errors import CorruptModelError, ModelNotFoundError, OptionError
from selfspec.model.config import Rope
from selfspec.model.head_weights import OfOne
from selfspec.model.reading import Fields, expanded, listed, one_line, quoted
from selfspec.types import MAX_GAMMA

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

FORMAT = 1
FORMS = {"exit_head": ("none", "linear", "attention", "layer"), "eagle": ("layer",), "medusa": ("blocks",)}
"""The forms of each kind of head."""
LM_HEAD = "lm_head.weight"
EMBEDDING = "embed_tokens.weight"
VOCABULARY = "vocabulary"
BLOCK = 32  # inputs that share a scale
_KEY = "selfspec.head"
_SCALE = ".scale"


@dataclass(frozen=True)
class HeadFacts:
    """What a head is.

    ``kind`` "exit_head" reads the states after ``taps`` = (k,) layers; ``form`` is what it adds to them: "none",
    "linear", "attention" (Kangaroo, arXiv 2404.18911) or "layer" (a decoder layer of Llama shape). "eagle" is
    EAGLE-3 (arXiv 2503.01840): a "layer" that reads the states after the three layers ``taps``, and the next token.
    "medusa" (arXiv 2401.10774) reads what leaves the last layer, normed: ``drafts`` heads of residual ``blocks``.
    ``target`` is the fingerprint of the checkpoint that it was trained for, "" where that is unknown; ``card`` says
    how it was made. A head without attention has no heads of it: their numbers may be 0, as the intermediate size
    may where there is no MLP.

    ``rope`` are fields of `config.Rope` beside ``rope_theta``. ``norm_before_residual``: EAGLE's layer adds to the
    normed feature, not to the feature itself; ``qk_norm``: its queries and keys are normed per head (Qwen 3).
    """

    kind: str
    form: str
    taps: tuple[int, ...]
    hidden_size: int
    num_heads: int = 0
    num_kv_heads: int = 0
    head_dim: int = 0
    intermediate_size: int = 0
    eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope: Mapping[str, Any] = field(default_factory=dict)
    norm_before_residual: bool = False
    qk_norm: bool = False
    drafts: int = 1
    blocks: int = 0
    target: str = ""
    target_name: str = ""
    card: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in FORMS:
            raise OptionError(f"the kind of a head is {self.kind!r}; it must be one of {', '.join(FORMS)}")
        forms = FORMS[self.kind]
        if self.form not in forms:
            raise OptionError(f"the form of an {self.kind} is {self.form!r}; it must be one of {', '.join(forms)}")
        taps, count = self.taps, 3 if self.kind == "eagle" else 1
        if len(taps) != count or min(taps, default=0) < 1 or list(taps) != sorted(set(taps)):
            raise OptionError(f"the taps of an {self.kind} are {taps}; it reads {count}, from 1 on and rising")
        if strange := sorted(set(self.rope) - {f.name for f in fields(Rope)} | {"theta"} & set(self.rope)):
            raise OptionError(f"the rotary embedding of a head says {listed(strange)}, which is not known")
        is_medusa = self.kind == "medusa"
        if not 1 <= self.drafts <= (MAX_GAMMA if is_medusa else 1) or (self.blocks < 1) == is_medusa:
            raise OptionError(
                f"a head of the kind {self.kind} has {self.drafts} heads of {self.blocks} blocks; only medusa has "
                f"such, 1 to {MAX_GAMMA} of at least 1"
            )
        if self.hidden_size < 1:
            raise OptionError(f"the hidden size of a head is {self.hidden_size}; it must be at least 1")
        heads, groups, width = self.num_heads, self.num_kv_heads, self.head_dim
        if self.attends and (min(heads, groups) < 1 or heads % groups or width < 2 or width % 2):
            raise OptionError(
                f"a head has {heads} query heads, {groups} KV heads and head width {width}; queries must be a "
                "multiple of KV heads, and the width even"
            )
        if self.form == "layer" and self.intermediate_size < 1:
            raise OptionError(f"the intermediate size of a head is {self.intermediate_size}; it must be at least 1")

    @property
    def attends(self) -> bool:
        """Whether it has attention, and so keys and values of its own."""
        return self.form in ("attention", "layer")

    @property
    def lm_heads(self) -> tuple[str, ...]:
        """The names of LM heads of its own, one for each head that drafts: all are there, or none."""
        return tuple(f"{i}.{LM_HEAD}" for i in range(self.drafts)) if self.kind == "medusa" else (LM_HEAD,)

    @property
    def prefix(self) -> str:
        """Of the names of its layer's weights."""
        return "midlayer." if self.kind == "eagle" else "layer."


@dataclass(frozen=True, eq=False)
class HeadFile:
    """A head: ``weights`` by name, matrices [out, in] in float32, and the ids of its draft vocabulary, rising.

    ``vocabulary`` None: all tokens of the target. ``lm_head.weight`` is there only where the head has an LM head of
    its own; else that of the target serves, or its rows of the draft vocabulary. So it is with the embedding of
    EAGLE, ``embed_tokens.weight``.
    """

    facts: HeadFacts
    weights: Mapping[str, NDArray[np.float32]]
    vocabulary: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        wanted: dict[str, tuple[int, ...]] = weight_shapes(self.facts)
        heads, width = self.facts.lm_heads, self.facts.hidden_size
        if self.lm_rows is not None:
            rows = self.lm_rows if self.vocabulary is None else len(self.vocabulary)
            wanted |= dict.fromkeys(heads, (rows, width))
        if self.facts.kind == "eagle" and EMBEDDING in self.weights:
            wanted[EMBEDDING] = (len(self.weights[EMBEDDING]), width)
        names = self.weights.keys()
        if names != wanted.keys():
            lacks, has = listed(sorted(wanted.keys() - names)), listed(sorted(names - wanted.keys()))
            raise OptionError(
                f"a head of this form lacks {lacks or 'no weight'}, and has no use for {has or 'none'}"
            )
        for name, shape in wanted.items():
            found = self.weights[name]
            if found.shape != shape:
                raise OptionError(f"{name} of a head has shape {found.shape}; by its sizes it must be {shape}")
            if not np.isfinite(found).all():
                raise OptionError(f"{name} of a head has values that are not finite; train it again")
        ids = self.vocabulary
        if ids is not None and (ids.ndim != 1 or not len(ids) or ids[0] < 0 or (np.diff(ids) <= 0).any()):
            raise OptionError("the draft vocabulary of a head must be token ids from 0 on, rising, at least one")

    @cached_property
    def lm_rows(self) -> int | None:
        """Rows of an LM head of its own; None where the target's serves."""
        return next((len(self.weights[name]) for name in self.facts.lm_heads if name in self.weights), None)

    @property
    def lm_head(self) -> NDArray[np.float32] | None:
        """The LM head of its own of a head that drafts one token."""
        assert self.facts.drafts == 1
        return self.weights.get(self.facts.lm_heads[0])

    def parts(self) -> tuple[HeadFile, ...]:
        """Each head that drafts, alone: itself, but for Medusa."""
        facts = self.facts
        if facts.drafts == 1:
            return (self,)
        one = replace(facts, drafts=1)
        return tuple(HeadFile(one, OfOne(self.weights, i), self.vocabulary) for i in range(facts.drafts))


def weight_shapes(facts: HeadFacts) -> dict[str, tuple[int, ...]]:
    """The weights that a head of these facts has, by name, its own LM head aside."""
    d, p = facts.hidden_size, facts.prefix
    if facts.kind == "medusa":
        linears = [f"{i}.{j}.linear." for i in range(facts.drafts) for j in range(facts.blocks)]
        return {linear + name: shape for linear in linears for name, shape in (("weight", (d, d)), ("bias", (d,)))}
    shapes: dict[str, tuple[int, ...]] = {"norm.weight": (d,)}
    if not facts.attends:
        return shapes if facts.form == "none" else {"transform.weight": (d, d), **shapes}
    is_eagle = facts.kind == "eagle"
    q, kv = facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim
    reads = 2 * d if is_eagle else d
    shapes[f"{p}input_layernorm.weight"] = (d,)
    if is_eagle:
        shapes |= {"fc.weight": (d, 3 * d), f"{p}hidden_norm.weight": (d,)}
    for name, shape in (("q", (q, reads)), ("k", (kv, reads)), ("v", (kv, reads)), ("o", (d, q))):
        shapes[f"{p}self_attn.{name}_proj.weight"] = shape
    if facts.qk_norm:
        shapes |= {f"{p}self_attn.{name}_norm.weight": (facts.head_dim,) for name in "qk"}
    if facts.form == "layer":
        f = facts.intermediate_size
        shapes[f"{p}post_attention_layernorm.weight"] = (d,)
        shapes |= {f"{p}mlp.{name}_proj.weight": (f, d) for name in ("gate", "up")}
        shapes[f"{p}mlp.down_proj.weight"] = (d, f)
    return shapes


_FACTS = {"format", *(entry.name for entry in fields(HeadFacts))}


def write_head(path: str | os.PathLike[str], head: HeadFile, int8: bool = False) -> None:
    """Write a head; the file appears whole or not at all.

    ``int8`` rounds matrices to levels of 8 bits, with a scale in fp16 for 32 inputs (GGUF's Q8_0), in such a way
    that rounding what is read again gives the same levels and scales. The draft vocabulary is kept in 32 bits.
    """
    from safetensors.numpy import save

    target = Path(path)
    stored: dict[str, NDArray[Any]] = {}
    for name, weight in head.weights.items():
        if int8 and weight.ndim == 2:
            stored[name], stored[name + _SCALE] = rounded(weight)
        else:
            stored[name] = np.ascontiguousarray(weight, dtype=np.float32)
    if head.vocabulary is not None:
        stored[VOCABULARY] = head.vocabulary.astype(np.int32)
    facts = {"format": FORMAT, **asdict(head.facts)}
    data = save(stored, metadata={_KEY: json.dumps(facts, allow_nan=False)})
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=target.name, delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).chmod(0o644)
            Path(file.name).replace(target)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def read_head(path: str | os.PathLike[str]) -> HeadFile:
    """Read a head and check all of it.

    Raises
    ------
    ModelNotFoundError
        There is no such file.
    CorruptModelError
        It is no head, damaged, or contradicts itself.
    """
    file = _existing(path)
    facts, stored = _open(file)
    ids = stored.pop(VOCABULARY, None)
    try:
        vocabulary = None if ids is None else ids.astype(np.int64)
        return HeadFile(facts, _widened(file, stored), vocabulary)
    except OptionError as error:
        raise CorruptModelError(f"{quoted(file)} is damaged: {one_line(error)}") from error


def is_ours(file: Path) -> bool:
    """Whether a file says that it is a head of this format; False too for what cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as reader:
            return _KEY in (reader.metadata() or {})
    except (SafetensorError, OSError):
        return False


def read_facts(path: str | os.PathLike[str]) -> HeadFacts:
    """What a head is, without its weights; raises as `read_head`."""
    return _open(_existing(path), weights=False)[0]


def _existing(path: str | os.PathLike[str]) -> Path:
    file = expanded(path)
    if not file.is_file():
        raise ModelNotFoundError(
            f"there is no trained head {quoted(file)}: give a file that `selfspec train` wrote"
        )
    return file


def _open(file: Path, weights: bool = True) -> tuple[HeadFacts, dict[str, NDArray[Any]]]:
    """What a file says of itself, and its tensors as stored."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as reader:
            about = (reader.metadata() or {}).get(_KEY)
            if about is None:
                raise CorruptModelError(
                    f"{quoted(file)} is no trained head; give a file that `selfspec train` wrote"
                )
            facts = _facts(file, about)
            names = reader.keys() if weights else ()
            return facts, {name: reader.get_tensor(name) for name in names}
    except (SafetensorError, OSError, TypeError) as error:  # TypeError: numbers that NumPy has not
        raise CorruptModelError(f"{quoted(file)} cannot be read as a trained head ({one_line(error)})") from error


def _facts(file: Path, about: str) -> HeadFacts:
    try:
        values = json.loads(about)
    except (ValueError, RecursionError) as error:
        raise CorruptModelError(f"{quoted(file)} is damaged: its facts are no JSON ({one_line(error)})") from error
    if not isinstance(values, dict):
        raise CorruptModelError(f"{quoted(file)} is damaged: its facts are no object")
    said = Fields(values, quoted(file), "train the head again")
    if said.integer("format") != FORMAT:
        raise CorruptModelError(
            f"{quoted(file)} has format {values['format']}; this selfspec reads {FORMAT}: use the one that wrote it"
        )
    if unknown := values.keys() - _FACTS:
        raise CorruptModelError(
            f"{quoted(file)} says {listed(sorted(unknown))} of its head, which this selfspec does not know: use "
            "the one that wrote it"
        )
    sizes = ("num_heads", "num_kv_heads", "head_dim", "intermediate_size")
    try:
        return HeadFacts(
            kind=said.text("kind"),
            form=said.text("form"),
            taps=said.ids("taps", "number of layers"),
            hidden_size=said.integer("hidden_size"),
            **{name: said.integer(name, 0, 0) for name in sizes},
            eps=said.number("eps"),
            rope_theta=said.number("rope_theta"),
            rope=rope.raw_items() if (rope := said.child("rope")) else {},
            norm_before_residual=said.flag("norm_before_residual", False),
            qk_norm=said.flag("qk_norm", False),
            drafts=said.integer("drafts", 1, 0),
            blocks=said.integer("blocks", 0, 0),
            target=said.text("target", ""),
            target_name=said.text("target_name", ""),
            card=card.raw_items() if (card := said.child("card")) else {},
        )
    except OptionError as error:
        raise CorruptModelError(f"{quoted(file)} is damaged: {one_line(error)}") from error


def _widened(file: Path, stored: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float32]]:
    """The weights in float32, from floats or from levels and scales."""
    weights: dict[str, NDArray[np.float32]] = {}
    for name, array in stored.items():
        if name.endswith(_SCALE):
            if name.removesuffix(_SCALE) not in stored:
                raise CorruptModelError(f"{quoted(file)} is damaged: {one_line(name, 80)} belongs to nothing")
        elif array.dtype == np.int8:
            weights[name] = _levels(file, name, array, stored.get(name + _SCALE))
        else:
            weights[name] = array.astype(np.float32)
    return weights


def _levels(file: Path, name: str, levels: NDArray[Any], scales: NDArray[Any] | None) -> NDArray[np.float32]:
    shape = (levels.shape[0], -(-levels.shape[1] // BLOCK)) if levels.ndim == 2 else None
    if scales is None or scales.shape != shape or not scales.dtype == np.float16:
        raise CorruptModelError(
            f"{quoted(file)} is damaged: {one_line(name, 80)} has no scale for each {BLOCK} inputs"
        )
    wide: NDArray[np.float32] = np.repeat(scales.astype(np.float32), BLOCK, axis=1)[:, : levels.shape[1]] * levels
    return wide


def rounded(weight: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Levels [out, in] and scales [out, in / 32] of a matrix, as the core's int8 has them.

    It is rounded until rounding changes nothing more: scales are fp16, so a block of very small numbers may come
    back with another largest one, and would get another scale when it is packed again.
    """
    levels, scales = _round(np.asarray(weight, dtype=np.float32))
    while True:
        wide = np.repeat(scales.astype(np.float32), BLOCK, axis=1)[:, : levels.shape[1]] * levels
        again = _round(wide)
        if np.array_equal(again[0], levels) and np.array_equal(again[1], scales):
            return again
        levels, scales = again


def _round(weight: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    rows, columns = weight.shape
    blocks = np.pad(weight, ((0, 0), (0, -columns % BLOCK))).reshape(rows, -1, BLOCK)
    scales = (np.abs(blocks).max(axis=-1) / np.float32(127)).astype(np.float16)
    steps = scales.astype(np.float32)
    inverse = np.divide(np.float32(1), steps, out=np.zeros_like(steps), where=steps > 0)
    levels = np.clip(np.rint(blocks * inverse[..., None]), -127, 127).astype(np.int8)
    return np.ascontiguousarray(levels.reshape(rows, -1)[:, :columns]), scales
