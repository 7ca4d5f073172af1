"""From options to a job: texts, a draft of the model's own layers, the target's laws; and what a run keeps."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file

from selfspec.errors import SelfspecError, UnsupportedModelError
from selfspec.export.bundle import aside
from selfspec.export.cut import Cutting
from selfspec.export.hf_folder import write_folder
from selfspec.model.checkpoint import open_folder
from selfspec.model.families import weight_shapes
from selfspec.train.data import data_of
from selfspec.train.distill.heldout import HeldOut
from selfspec.train.distill.learner import Learner, Packer
from selfspec.train.heads.claim import FREE, claim, run_begun
from selfspec.train.heads.corpus import corpus_of
from selfspec.train.heads.kept import KeptStates
from selfspec.train.heads.target import teacher_of
from selfspec.train.heads.trainer import Job
from selfspec.train.layerskip.decoder import decoder_of
from selfspec.train.model_folder import replacing, say_precision

if TYPE_CHECKING:
    from pathlib import Path

    from selfspec.engine import Engine
    from selfspec.model.checkpoint import Checkpoint
    from selfspec.train.layerskip.decoder import Decoder
    from selfspec.train.options import DistillOptions

# what a later sitting may ask otherwise and still go on
_FREE = {*FREE, "features", "disk_budget", "store"}
_GAMMA = 5  # that transformers' own assisted decoding is told to draft with it


class Setup(KeptStates):
    """A run in the folder ``out``: ``engine`` is the target, whose weights are in ``checkpoint``.

    Raises
    ------
    OptionError
        Options that do not fit the model or the data, or a folder that holds another run.
    UnsupportedModelError
        Layers that would compute something else in another place.
    """

    options: DistillOptions

    def __init__(self, engine: Engine, checkpoint: Checkpoint, options: DistillOptions, out: Path) -> None:
        self.engine, self.checkpoint, self.options, self.out = engine, checkpoint, options, out
        self.layers = options.chosen(engine.config.num_layers)
        begun = run_begun(out)
        data = data_of(engine, options.data)
        self.grown = len(data)
        self.data = data if begun is None else data.first(int(begun["texts"]))
        length = min(options.max_length, engine.config.context_length)
        self.corpus = corpus_of(self.data, length, options.held_out, options.limit, options.seed)
        asked = {name: value for name, value in asdict(options).items() if name not in _FREE}
        identity = {
            "texts": len(self.data), "training": self.corpus.digest, "model": engine.fingerprint,
            "recipe": "distill", **asked, "layers": self.layers,
        }  # fmt: skip
        is_new = not out.exists()
        claim(out, identity, begun)
        try:
            self._write_first()
        except SelfspecError:
            if is_new:
                shutil.rmtree(out, ignore_errors=True)
            raise

    def _write_first(self) -> None:
        """The chosen layers with the model's ends, as they are stored."""
        if not self.first.exists():
            with aside(self.first.absolute()) as scratch:
                write_folder(self.checkpoint, Cutting(self.layers, frozenset()), scratch, _GAMMA)

    @property
    def first(self) -> Path:
        """The draft as it was before it learned."""
        return self.out / "initial"

    @property
    def model(self) -> Path:
        """The draft."""
        return self.out / "model"

    def job(self, device: torch.device) -> Job:
        """What the trainer needs."""
        runtime, options = self.engine.runtime, self.options
        decoder = decoder_of(open_folder(self.first, self.out.name), False, options.seed).to(device)
        teacher = teacher_of(runtime, None, device)
        kept = self.corpus.evaluated(options.held_out_tokens)
        held_out = HeldOut(runtime, kept, self.reader) if kept else None
        return Job(
            options,
            self.out,
            Learner(decoder, teacher, options.kl, options.ce),
            self.corpus,
            Packer(self.corpus.training, self.states, device),
            None if held_out is None else lambda: held_out.measure(decoder),
            lambda _progress: self._write(decoder),
        )

    def _write(self, decoder: Decoder) -> None:
        """A Hugging Face folder, whole or not at all: the first one with other weights."""
        found, dtype = decoder.model.state_dict(), getattr(torch, self.options.store)
        names = weight_shapes(decoder.config)
        if lacking := [name for name in names if name not in found]:
            raise UnsupportedModelError(
                f"transformers has no {lacking[0]} in its {decoder.config.family}: this family is not distilled"
            )
        with replacing(self.model) as scratch:
            shutil.copytree(self.first, scratch, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
            say_precision(scratch, self.options.store)
            weights = {name: found[name].detach().to(dtype).contiguous() for name in names}
            save_file(weights, scratch / "model.safetensors", metadata={"format": "pt"})
            open_folder(scratch, self.out.name)  # every name and shape is what config.json asks for
