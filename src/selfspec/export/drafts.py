"""Self-drafts for other engines: a plan becomes a model of its own, with its α and the line to use it."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfspec import drafters
from selfspec.drafters.self_draft import FixedSelfDraft
from selfspec.drafters.trained import opened, shipped
from selfspec.errors import OptionError
from selfspec.export.bundle import aside, checked_target
from selfspec.export.cut import cutting_of
from selfspec.export.engines import FORMATS, Use, uses
from selfspec.export.gguf_draft import not_a_gguf, write_gguf
from selfspec.export.heads import LAYOUTS, write_published
from selfspec.export.hf_folder import write_folder
from selfspec.export.openvino import write_openvino
from selfspec.loading import load
from selfspec.measure.prompts import BUILT_IN
from selfspec.model import find_checkpoint
from selfspec.model.embedded import unpacked
from selfspec.model.gguf import gguf_config
from selfspec.model.load import locate
from selfspec.model.reading import expanded

if TYPE_CHECKING:
    from collections.abc import Callable

    from selfspec.model.config import ModelConfig


@dataclass(frozen=True)
class Acceptance:
    """What a draft's tokens were worth here: α, τ, and what was asked."""

    alpha: float
    mean_accepted_length: float
    drafted: int
    prompts: int
    max_new_tokens: int


@dataclass(frozen=True)
class Export:
    """A finished draft: where it lies, what it runs, how to use it, and what was measured (None: nothing)."""

    path: Path
    format: str
    plan: str
    gamma: int
    layers: int
    silent: int
    uses: tuple[Use, ...]
    acceptance: Acceptance | None


def export_draft(
    model: str | os.PathLike[str],
    draft: str,
    kind: str,
    out: str | os.PathLike[str],
    *,
    tokens: int = 32,
    told: tuple[Callable[[str], None], Callable[[int, int], None]] = (lambda _: None, lambda _done, _all: None),
) -> Export:
    """Write the draft of a model as ordinary files of another engine; they appear whole, or not at all.

    Parameters
    ----------
    model
        As for `find_checkpoint`; for "gguf" a GGUF file.
    draft
        ``early_exit:exit_layer=8``, ``layer_skip:skip=(12-17)``, or another with one plan, with its ``gamma``;
        for the layouts of heads ``eagle:head=FILE`` or ``medusa:head=FILE``.
    kind
        One of `FORMATS`.
    out
        A folder, or for "gguf" a file, that does not exist yet.
    tokens
        New tokens for each built-in prompt from which α is measured, greedily; 0 measures nothing.

    Raises
    ------
    SelfspecError
        As `find_checkpoint`, for a draft that is no model, and for what a format cannot hold.
    """
    if kind not in FORMATS:
        raise OptionError(f"format is {kind!r}; it must be one of {', '.join(FORMATS)}")
    if kind in LAYOUTS:
        return _export_head(model, draft, kind, checked_target(expanded(out)), (tokens, told))
    source, path, _ = locate(model)
    if kind == "gguf" and source != "gguf":
        raise not_a_gguf(os.fspath(model))
    target = checked_target(expanded(out))
    is_whole = source == "gguf" and kind != "hf"  # its blocks stay as they are
    made = _write_gguf(path, draft, kind, target) if is_whole else _write(model, draft, kind, target, told)
    acceptance = _acceptance(model, draft, tokens, told) if tokens else None
    lines = uses(kind, str(path) if is_whole else os.fspath(model), str(out), made["gamma"])
    return Export(target, kind, uses=tuple(lines), acceptance=acceptance, **made)


def _export_head(model: Any, draft: str, kind: str, target: Path, measured: tuple[int, Any]) -> Export:
    """A trained head in the layout of others."""
    tokens, told = measured
    cls, options = drafters.resolve(draft)
    if cls.name not in LAYOUTS.values():
        raise OptionError(
            f"{kind} describes heads on the states of a model, and {draft!r} is none: give eagle:head=FILE or "
            "medusa:head=FILE; of a part of the model use --format hf, which vLLM loads as method draft_model"
        )
    engine = load(model, notify=told[0], progress=told[1], draft="plain")
    drafter = drafters.create(draft, engine.config, {}, engine)  # finds the head that comes with the package, too
    file = options.get("head") or shipped(engine, cls.name)
    assert file is not None
    with aside(target) as scratch:
        name = os.fspath(model) if Path(model).exists() else engine.name
        write_published(
            opened(file, cls.name, engine.config), engine.runtime, kind, scratch, drafter.options.gamma, name
        )
    acceptance = _acceptance(model, draft, tokens, told) if tokens else None
    lines = uses(kind, os.fspath(model), str(target), drafter.options.gamma)
    return Export(target, kind, drafter.runs, drafter.options.gamma, 0, 0, tuple(lines), acceptance)


def _write(
    model: Any, draft: str, kind: str, target: Path, told: tuple[Callable[[str], None], Callable[[int, int], None]]
) -> dict[str, Any]:
    checkpoint = find_checkpoint(model, notify=told[0], progress=told[1])
    drafter = _drafter(draft, checkpoint.config)
    cutting = cutting_of(drafter.plan, checkpoint.config)
    with aside(target) as scratch:
        if kind == "openvino":
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                write_folder(checkpoint, cutting, Path(folder), drafter.options.gamma)
                write_openvino(Path(folder), scratch)
        else:
            write_folder(checkpoint, cutting, scratch, drafter.options.gamma)
    return _facts(drafter, len(cutting.layers), len(cutting.silent))


def _write_gguf(path: Path, draft: str, kind: str, target: Path) -> dict[str, Any]:
    config = gguf_config(path)
    drafter = _drafter(draft, config)
    cutting = cutting_of(drafter.plan, config)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder, unpacked(path, Path(folder)) as source:
        part = Path(folder, "draft.gguf")
        write_gguf(source, config, cutting, part)
        if kind == "openvino":
            alone = Path(folder, "openvino")
            alone.mkdir()
            with aside(target) as scratch:
                write_openvino(part.rename(alone / part.name), scratch)
        else:
            part.rename(target)
    return _facts(drafter, len(cutting.layers), len(cutting.silent))


def _facts(drafter: FixedSelfDraft, layers: int, silent: int) -> dict[str, Any]:
    return {"plan": drafter.runs, "gamma": drafter.options.gamma, "layers": layers, "silent": silent}


def _drafter(draft: str, config: ModelConfig) -> FixedSelfDraft:
    """The drafter whose plan becomes a model; one with trained parts brings its own writer, when there is one."""
    cls, options = drafters.resolve(draft)
    made = drafters.create(cls, config, options)
    if not isinstance(made, FixedSelfDraft):
        raise OptionError(
            f"draft is {draft!r}, which is no part of the model that another engine could load; give an early_exit "
            "with an exit_layer, or a layer_skip"
        )
    return made


def _acceptance(
    model: Any, draft: str, tokens: int, told: tuple[Callable[[str], None], Callable[[int, int], None]]
) -> Acceptance:
    """Greedy answers to the built-in prompts, with the draft that was exported."""
    engine = load(model, notify=told[0], progress=told[1], draft=draft, max_new_tokens=tokens)
    found = [engine.generate(prompt).stats for prompt in BUILT_IN]
    drafted, accepted = sum(s.drafted for s in found), sum(s.accepted for s in found)
    rounds, new = sum(s.rounds for s in found), sum(s.tokens - s.texts for s in found)
    return Acceptance(accepted / max(1, drafted), new / max(1, rounds), drafted, len(BUILT_IN), tokens)
