"""Self-drafts for other engines: a plan becomes a model of its own, with its α and the line to use it."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from selfspec import drafters
from selfspec.drafters.early_exit import ALL
from selfspec.drafters.learning_head import LearningHead
from selfspec.drafters.self_draft import FixedSelfDraft
from selfspec.drafters.trained import HeadOptions, opened, shipped
from selfspec.drafters.trimmed_exit import TrimmedExit
from selfspec.errors import OptionError
from selfspec.export.acceptance import Acceptance, acceptance, acceptance_along, read_texts
from selfspec.export.bundle import aside, checked_target
from selfspec.export.cut import Cutting, cutting_of
from selfspec.export.engines import FORMATS, Use, uses
from selfspec.export.exit_heads import with_head
from selfspec.export.gguf_draft import not_a_gguf, write_gguf
from selfspec.export.heads import LAYOUTS, write_published
from selfspec.export.hf_folder import write_folder
from selfspec.export.openvino import write_openvino
from selfspec.loading import load
from selfspec.model import find_checkpoint
from selfspec.model.embedded import unpacked
from selfspec.model.gguf import gguf_config
from selfspec.model.head_file import write_head
from selfspec.model.load import locate
from selfspec.model.reading import expanded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from selfspec.engine import Engine
    from selfspec.export.acceptance import Written
    from selfspec.model.config import ModelConfig
    from selfspec.model.head_file import HeadFile

Told: TypeAlias = "tuple[Callable[[str], None], Callable[[int, int], None]]"
"""Who is told what is done, in a line, and how far a conversion is."""


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
    tokens: int | str | os.PathLike[str] = 32,
    told: Told = (lambda _: None, lambda _done, _all: None),
) -> Export:
    """Write the draft of a model as ordinary files of another engine; they appear whole, or not at all.

    Parameters
    ----------
    model
        As for `find_checkpoint`; for "gguf" a GGUF file.
    draft
        ``early_exit:exit_layer=8``, ``early_exit:head=FILE``, ``layer_skip:skip=(12-17)``, or another with one
        plan, with its ``gamma``; for the layouts of heads ``eagle:head=FILE`` or ``medusa:head=FILE``.
    kind
        One of `FORMATS`.
    out
        A folder, or for "gguf" a file, that does not exist yet.
    tokens
        New tokens for each built-in prompt from which α is measured, greedily; 0 measures nothing. Or a file of
        texts (`read_texts`), along which it is measured.

    Raises
    ------
    SelfspecError
        As `find_checkpoint`, for a draft that is no model, and for what a format cannot hold.
    """
    if kind not in FORMATS:
        raise OptionError(f"format is {kind!r}; it must be one of {', '.join(FORMATS)}")
    target = checked_target(expanded(out))
    measured = _Measured(model, tokens if isinstance(tokens, int) else read_texts(tokens), told)
    if kind in LAYOUTS:
        return _export_head(draft, kind, target, measured)
    source, path, _ = locate(model)
    if kind == "gguf" and source != "gguf":
        raise not_a_gguf(os.fspath(model))
    is_whole = source == "gguf" and kind != "hf"  # its blocks stay as they are
    config = gguf_config(path) if is_whole else find_checkpoint(model, notify=told[0], progress=told[1]).config
    cut = _Cut.of(draft, config)
    acceptance = measured.of(draft, cut.drafter)
    if is_whole:
        _write_gguf(path, config, cut, kind, target)
    else:
        _write(model, cut, kind, target)
    layers, silent, gamma = len(cut.cutting.layers), len(cut.cutting.silent), cut.drafter.options.gamma
    lines = uses(kind, str(path) if is_whole else os.fspath(model), str(out), gamma)
    return Export(target, kind, cut.drafter.runs, gamma, layers, silent, tuple(lines), acceptance)


@dataclass(frozen=True)
class _Measured:
    """How α is measured: over so many tokens of each built-in prompt (0: not at all), or along texts."""

    model: Any
    over: int | Sequence[Written]
    told: Told

    def of(self, draft: str, drafter: FixedSelfDraft) -> Acceptance | None:
        """Of a draft as other engines have it, which draft among all tokens."""
        if not self.is_on:
            return None
        cls, options = drafters.resolve(draft)
        if isinstance(drafter, TrimmedExit):
            return self.of_engine(self.engine(draft=cls.name, **options | {"draft_vocabulary": ALL}))
        head = _head_of(drafter)
        if head is None or head.vocabulary is None:
            return self.of_engine(self.engine(draft=draft))
        with tempfile.TemporaryDirectory() as folder:
            whole = Path(folder, "head.safetensors")
            write_head(whole, replace(head, vocabulary=None))
            return self.of_engine(self.engine(draft=cls.name, **options | {"head": str(whole)}))

    @property
    def is_on(self) -> bool:
        """Whether anything is measured."""
        return self.over != 0

    def engine(self, **options: Any) -> Engine:
        """The model with a draft."""
        return load(self.model, notify=self.told[0], progress=self.told[1], **options)

    def of_engine(self, engine: Engine) -> Acceptance:
        """With the draft that an engine has."""
        if isinstance(self.over, int):
            return acceptance(engine, self.over)
        return acceptance_along(engine, self.over)


def _export_head(draft: str, kind: str, target: Path, measured: _Measured) -> Export:
    """A trained head in the layout of others."""
    model = measured.model
    cls, options = drafters.resolve(draft)
    if cls.name not in LAYOUTS.values():
        raise OptionError(
            f"{kind} describes heads on the states of a model, and {draft!r} is none: give eagle:head=FILE or "
            "medusa:head=FILE; of a part of the model use --format hf, which vLLM loads as method draft_model"
        )
    engine = measured.engine(draft=draft)
    drafter = drafters.create(draft, engine.config, {}, engine)  # finds the head that comes with the package, too
    file = options.get("head") or shipped(engine, cls.name)
    assert file is not None
    found = measured.of_engine(engine) if measured.is_on else None
    gamma = drafter.options.gamma
    with aside(target) as scratch:
        name = os.fspath(model) if Path(model).exists() else engine.name
        write_published(opened(file, cls.name, engine.config), engine.runtime, kind, scratch, gamma, name)
    lines = uses(kind, os.fspath(model), str(target), gamma)
    return Export(target, kind, drafter.runs, gamma, 0, 0, tuple(lines), found)


class _Cut(NamedTuple):
    """A drafter, and what of the model it is made of."""

    drafter: FixedSelfDraft
    cutting: Cutting

    @classmethod
    def of(cls, draft: str, config: ModelConfig) -> _Cut:
        """Raises OptionError for a draft that no other engine could load as a model."""
        kind, options = drafters.resolve(draft)
        made = drafters.create(kind, config, options)
        if not isinstance(made, FixedSelfDraft):
            raise OptionError(
                f"draft is {draft!r}, which is no part of the model that another engine could load; give an "
                "early_exit with an exit_layer or a head, or a layer_skip"
            )
        if isinstance(made, LearningHead):
            raise OptionError(f"draft is {draft!r}, which learns while it drafts; other engines load what is fixed")
        cutting, head = cutting_of(made.plan, config), _head_of(made)
        return cls(made, cutting if head is None else with_head(cutting, head, config))


def _head_of(drafter: FixedSelfDraft) -> HeadFile | None:
    """The trained head of an exit, if it has one."""
    options = drafter.options
    if not isinstance(options, HeadOptions) or options.head is None:
        return None
    return opened(options.head, "exit_head", drafter.config)


def _write(model: Any, cut: _Cut, kind: str, target: Path) -> None:
    """From a folder; of a GGUF file the one that it was converted to."""
    checkpoint, gamma = find_checkpoint(model), cut.drafter.options.gamma
    with aside(target) as scratch:
        if kind == "openvino":
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                write_folder(checkpoint, cut.cutting, Path(folder), gamma)
                write_openvino(Path(folder), scratch)
        else:
            write_folder(checkpoint, cut.cutting, scratch, gamma)


def _write_gguf(path: Path, config: ModelConfig, cut: _Cut, kind: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as folder, unpacked(path, Path(folder)) as source:
        part = Path(folder, "draft.gguf")
        write_gguf(source, config, cut.cutting, part)
        if kind == "openvino":
            alone = Path(folder, "openvino")
            alone.mkdir()
            with aside(target) as scratch:
                write_openvino(part.rename(alone / part.name), scratch)
        else:
            part.rename(target)
