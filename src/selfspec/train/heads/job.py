"""From options to a job: data, vocabulary, states, heads; and the folder that keeps a run."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from selfspec._version import __version__
from selfspec.errors import OptionError
from selfspec.model.head_file import HeadFile, read_head, write_head
from selfspec.runtime.attached import identity_of
from selfspec.train.data import data_of, draft_vocabulary
from selfspec.train.heads.claim import FREE, claim, run_begun
from selfspec.train.heads.corpus import corpus_of
from selfspec.train.heads.heldout import HeldOut
from selfspec.train.heads.kept import KeptStates
from selfspec.train.heads.learner import Learner
from selfspec.train.heads.packer import Packer
from selfspec.train.heads.progress import History
from selfspec.train.heads.start import started
from selfspec.train.heads.target import Sizes, default_taps, facts_of, medusa_facts, teacher_of
from selfspec.train.heads.trainer import Job
from selfspec.train.options import EagleOptions, ExitHeadOptions, HeadOptions, MedusaOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from selfspec.engine import Engine
    from selfspec.model.head_file import HeadFacts
    from selfspec.train.heads.corpus import Corpus
    from selfspec.train.heads.modules import Head
    from selfspec.train.heads.progress import Progress

# what a later sitting may ask otherwise and still go on
_FREE = {*FREE, "features", "disk_budget", "int8", "init"}
_POSITIONS = 5  # of a draft that are measured, or as many as there are steps


class Setup(KeptStates):
    """A run of one kind of head, in the folder ``out``.

    Raises
    ------
    OptionError
        Options that do not fit the model or the data, or a folder that holds another run.
    """

    options: HeadOptions

    def __init__(self, engine: Engine, options: HeadOptions, out: Path) -> None:
        self.engine, self.options, self.out = engine, options, out
        begun = run_begun(out)
        self.facts: dict[str, HeadFacts] = self._facts()
        self._first_weights = self._read_first_weights()
        data = data_of(engine, options.data)
        self.grown = len(data)
        self.data = data if begun is None else data.first(int(begun["texts"]))
        self.corpus: Corpus = corpus_of(
            self.data, options.max_length, options.held_out, options.limit, options.seed
        )
        size = engine.config.vocab_size
        self.vocabulary, self.coverage = draft_vocabulary(self.data, min(options.vocabulary or size, size))
        claim(out, self._identity(), begun)

    def _facts(self) -> dict[str, HeadFacts]:
        """Of each head, by the name of its file."""
        engine, options = self.engine, self.options
        about = {"target": identity_of(engine.runtime) or engine.fingerprint, "target_name": engine.name}
        if isinstance(options, EagleOptions):
            taps = options.tap_layers or default_taps(engine.config.num_layers)
            sizes = Sizes(intermediate=options.intermediate)
            return {"eagle": facts_of(engine.runtime, "eagle", taps, sizes, **about)}
        if isinstance(options, MedusaOptions):
            return {"medusa": medusa_facts(engine.runtime, options.heads, options.blocks, **about)}
        assert isinstance(options, ExitHeadOptions)
        sizes = Sizes(options.form)
        return {f"exit-{k}": facts_of(engine.runtime, "exit_head", (k,), sizes, **about) for k in options.exits}

    def _read_first_weights(self) -> Mapping[str, NDArray[Any]] | None:
        """Those of --init, which must be of this model, kind and layers; shapes are compared with the modules'."""
        if (path := self.options.init) is None:
            return None
        found = read_head(path)
        for facts in self.facts.values():
            if (found.facts.kind, found.facts.form, found.facts.taps) != (facts.kind, facts.form, facts.taps):
                raise OptionError(
                    f"--init {path!r} is a head of another form, size or layer than asked for; it reads after "
                    f"{found.facts.taps}"
                )
            if found.facts.target and found.facts.target != facts.target:
                raise OptionError(
                    f"--init {path!r} was trained for another checkpoint, {found.facts.target_name}; leave it "
                    "out, or give one of this model"
                )
        return found.weights

    def _identity(self) -> dict[str, Any]:
        """What must be the same for a later sitting to go on."""
        asked = {name: value for name, value in asdict(self.options).items() if name not in _FREE}
        return {
            "texts": len(self.data), "training": self.corpus.digest, "model": self.engine.fingerprint,
            "vocabulary_ids": _digest(self.vocabulary), "first_weights": _digest_of(self._first_weights),
            "heads": {name: f.taps for name, f in self.facts.items()},
            **asked,
        }  # fmt: skip

    @property
    def taps(self) -> tuple[int, ...]:
        """Those of all heads; the states after the last layer are there anyway."""
        last = self.engine.config.num_layers
        return tuple(sorted({tap for facts in self.facts.values() for tap in facts.taps} - {last}))

    # -- the job -----------------------------------------------------------------------------------------

    def job(self, device: torch.device) -> Job:
        """What the trainer needs."""
        runtime, options = self.engine.runtime, self.options
        teacher = teacher_of(runtime, self.vocabulary, device)
        heads = {name: self._module(facts).to(device) for name, facts in self.facts.items()}
        steps, decay, rolling = 1, 1.0, 1.0
        if isinstance(options, EagleOptions):
            steps, decay, rolling = options.steps, options.decay, options.rolling
        if isinstance(options, MedusaOptions):
            steps, decay = options.heads, options.decay
        packer = Packer(runtime, self.corpus.training, self.states, teacher)
        (kind,) = {facts.kind for facts in self.facts.values()}
        positions = steps if kind == "medusa" else max(_POSITIONS, steps)
        held_out = self._held_out(teacher)
        return Job(
            options,
            self.out,
            Learner(heads, teacher.head.to(getattr(torch, options.precision)), steps, decay),
            self.corpus,
            lambda texts, _progress, _share: packer(texts, kind, rolling),
            None if held_out is None else lambda: held_out.measure(heads, positions),
            lambda progress: self._write(heads, progress),
        )

    def _held_out(self, teacher: Any) -> HeldOut | None:
        kept = self.corpus.evaluated(self.options.held_out_tokens)
        return HeldOut(self.engine.runtime, kept, self.reader, teacher, self.vocabulary) if kept else None

    def _module(self, facts: HeadFacts) -> Head:
        """From --init, else from the target."""
        module = started(facts, self.engine.runtime, self.options.seed)
        if (given := self._first_weights) is not None:
            ours = {name: tuple(weight.shape) for name, weight in module.state_dict().items()}
            if ours != {name: weight.shape for name, weight in given.items()}:
                raise OptionError(f"--init {self.options.init!r} is a head of another size than asked for")
            module.load_state_dict({name: torch.from_numpy(weight) for name, weight in given.items()})
        return module

    def path(self, name: str) -> Path:
        """The file of a head."""
        return self.out / f"{name}.safetensors"

    def _write(self, heads: dict[str, Head], progress: Progress) -> None:
        told = [line for line in History.read(self.out / "history.jsonl") if line["kind"] == "evaluation"]
        for name, module in heads.items():
            alphas = told[-1]["heads"].get(name, {}) if told else {}
            facts = replace(self.facts[name], card=self._card(progress, alphas))
            weights = {key: value.detach().cpu().float().numpy() for key, value in module.state_dict().items()}
            head = HeadFile(facts, weights, self.vocabulary)
            write_head(self.path(name), head, self.options.int8)

    def _card(self, progress: Progress, alphas: dict[str, Any]) -> dict[str, Any]:
        data, runtime = self.data.provenance, self.engine.runtime
        return {
            "version": __version__,
            "command": command_of(self.options),
            "data": {
                "model": data["model"]["name"], "texts": self.corpus.digest,
                "answer_tokens": self.corpus.drafted + len(self.corpus.training),
                "temperatures": data.get("temperatures"), "prompts": data.get("prompts"),
            },
            "states": f"{runtime.name} {runtime.precision}",
            "vocabulary": {"size": len(self.vocabulary), "coverage": round(self.coverage, 5)},
            "steps": progress.step,
            "tokens": progress.tokens,
            "epochs": round(progress.tokens / self.corpus.drafted, 3),
            "seconds": round(progress.seconds, 1),
            "held_out": alphas,
        }  # fmt: skip


def command_of(options: HeadOptions) -> str:
    """The command with what differs from the defaults; folders are named without their places."""
    verbs = {EagleOptions: "eagle", MedusaOptions: "medusa", ExitHeadOptions: "exit-head"}
    words = ["selfspec", "train", verbs[type(options)]]
    for f in fields(options):
        value = getattr(options, f.name)
        if value == f.default or f.name in {"features", "disk_budget"}:
            continue
        for part in value if f.name == "data" else [value]:
            shown = Path(part).name if f.name in {"data", "init"} else part
            flag = f"--{f.name.replace('_', '-')}"
            words += [flag] if shown is True else [flag, str(shown)]
    return shlex.join(words)


def _digest(ids: np.ndarray[Any, np.dtype[np.int64]]) -> str:
    return hashlib.sha256(np.ascontiguousarray(ids, np.int64).tobytes()).hexdigest()


def _digest_of(weights: Mapping[str, NDArray[Any]] | None) -> str:
    """Of the weights that a run begins with; "" where they follow from the target."""
    if weights is None:
        return ""
    hashed = hashlib.sha256()
    for name in sorted(weights):
        hashed.update(name.encode() + np.ascontiguousarray(weights[name]).tobytes())
    return hashed.hexdigest()
