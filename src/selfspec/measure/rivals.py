"""The programs that a user would otherwise run, by name."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfspec.errors import OptionError
from selfspec.measure import hf
from selfspec.measure.process import RivalMissingError, WorkerColumn
from selfspec.measure.timing import Column, ColumnError
from selfspec.model import find_checkpoint
from selfspec.model.embedded import PACKAGED, find_embedded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from selfspec.engine import Engine
    from selfspec.measure.specs import Spec


@dataclass(frozen=True)
class NoOptions:
    """A rival without options."""


_IN_PROCESS: dict[str, type[Any]] = {
    "transformers": hf.GenerateOptions,
    "transformers-early-exit": hf.EarlyExitOptions,
    "transformers-lookup": hf.LookupOptions,
}
_WORKERS: dict[str, type[Any]] = {
    "llama.cpp": NoOptions,
    "llama.cpp-lookup": hf.LookupOptions,
    "onnxruntime-genai": NoOptions,
    "openvino-genai": NoOptions,
    "vllm": NoOptions,
}
NAMES = (*_IN_PROCESS, *_WORKERS)
WORKER_NAMES = tuple(name for name in _WORKERS if not name.endswith("-lookup"))  # what has a Python and a model
_READS_GGUF = ("llama.cpp", "openvino-genai")


def check_rivals(specs: Sequence[Spec]) -> None:
    """Raise OptionError for a rival that is not known, or an option of it that is not allowed."""
    for spec in specs:
        if spec.name not in NAMES:
            raise OptionError(f"rival is {spec.name!r}; it must be one of {', '.join(NAMES)}")
        spec.options({**_IN_PROCESS, **_WORKERS}[spec.name])


@dataclass
class Rivals:
    """Opens rivals for one engine and model; one that is not there is named in ``skipped``, with the reason.

    ``pythons`` and ``models`` say, by name, whose Python runs a worker and which files it loads.
    """

    engine: Engine
    model: str
    threads: int
    context: int
    pythons: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def open(self, specs: Sequence[Spec]) -> list[Column]:
        """The columns of those that are installed. Raises OptionError where the model cannot have an option."""
        shared = hf.Transformers(self.engine, self._folder)
        columns = []
        for spec in specs:
            try:
                columns.append(self._worker(spec) if spec.name in _WORKERS else self._own(spec, shared))
            except (RivalMissingError, ModuleNotFoundError) as error:
                self.skipped[spec.label] = str(error)
            except ColumnError as error:
                self.failed[spec.label] = str(error)
            except Exception:
                close_all(columns)
                raise
        return columns

    def _own(self, spec: Spec, shared: hf.Transformers) -> Column:
        kind = _IN_PROCESS[spec.name]
        options = kind(**spec.options(kind))
        return hf.TransformersColumn(spec.label, shared, options, self.engine.config.num_layers)

    def _worker(self, spec: Spec) -> Column:
        name = spec.name.removesuffix("-lookup")
        kind = _WORKERS[spec.name]
        options = kind(**spec.options(kind))
        settings = {
            "rival": name,
            "model": self._model_of(name),
            "threads": self.threads,
            "context": self.context,
            "dtype": self.engine.runtime.precision,
            "options": vars(options),
        }
        python = self.pythons.get(name, sys.executable)
        script = str(Path(__file__).with_name("worker.py"))
        # -I: nothing of this process's environment, and not this folder, may be imported there
        command = [python, "-I", script, json.dumps(settings)]
        return WorkerColumn(spec.label, command, self.engine.config.eos_token_ids)

    def _model_of(self, name: str) -> str:
        """The files that a worker loads: those that were named, else the same model if the rival can read it."""
        if name in self.models:
            return self.models[name]
        if name == "vllm":
            return str(self._folder())
        if name in _READS_GGUF and (path := self._gguf()) is not None:
            return str(path)
        raise RivalMissingError(f"no model for it; give --rival-model {name}=PATH, in its own format")

    def _folder(self) -> Path:
        return find_checkpoint(self.model).folder

    def _gguf(self) -> Path | None:
        path = find_embedded(self.model) if self.model in PACKAGED else Path(self.model)
        return path if path.suffix == ".gguf" else None


def close_all(columns: Sequence[Column]) -> None:
    """End what runs in processes of its own."""
    for column in columns:
        column.close()
