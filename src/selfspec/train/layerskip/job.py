"""From options to a job: texts, the model, its exits; and the checkpoint that a run keeps."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from selfspec._version import __version__
from selfspec.control import best_gamma, shared_share, speedup
from selfspec.errors import OptionError
from selfspec.model.checkpoint import open_folder, text_files
from selfspec.model.config import Exits
from selfspec.model.exits import NOTE, note_of
from selfspec.train.data import draft_vocabulary, read_data
from selfspec.train.heads.claim import FREE, claim, run_begun
from selfspec.train.heads.corpus import corpus_of
from selfspec.train.heads.progress import History
from selfspec.train.heads.trainer import Job
from selfspec.train.layerskip.decoder import decoder_of, quietly
from selfspec.train.layerskip.heldout import measured
from selfspec.train.layerskip.learner import Learner, Packer
from selfspec.train.model_folder import replacing, say_precision

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from selfspec.model.checkpoint import Checkpoint
    from selfspec.train.heads.corpus import Corpus
    from selfspec.train.heads.progress import Progress
    from selfspec.train.layerskip.decoder import Decoder
    from selfspec.train.options import LayerSkipOptions

# what a later sitting may ask otherwise and still go on
_FREE = {*FREE, "store", "draft_vocabulary"}
_MEASURED = 8  # exits of an evaluation, if no layers are named
_ROW = 1.1  # what a pass of several rows is taken to cost when an exit is chosen


class Setup:
    """A run in the folder ``out``, of the model in ``checkpoint``.

    Raises
    ------
    OptionError
        Options that do not fit the model or the data, or a folder that holds another run.
    """

    def __init__(self, checkpoint: Checkpoint, options: LayerSkipOptions, out: Path) -> None:
        self.checkpoint, self.options, self.out = checkpoint, options, out
        config, begun = checkpoint.config, run_begun(out)
        self.exits = options.exits_of(config.num_layers)
        data = read_data(*options.data)
        # whoever wrote the texts, in whatever precision: they must be tokens of this model
        tokenizer = data.provenance["model"].get("tokenizer", checkpoint.tokenizer.fingerprint)
        if (data.vocab_size, tokenizer) != (config.vocab_size, checkpoint.tokenizer.fingerprint):
            raise OptionError(
                f"the data in {options.data[0]!r} are tokens of {data.provenance['model']['name']}, which has "
                f"another tokenizer than {checkpoint.name}; give --model, or make them again"
            )
        self.data = data if begun is None else data.first(int(begun["texts"]))
        self.corpus: Corpus = corpus_of(
            self.data,
            min(options.max_length, config.context_length),
            options.held_out,
            options.limit,
            options.seed,
        )
        self.vocabulary: tuple[int, ...] = ()
        if options.draft_vocabulary and self.exits:
            self.vocabulary = tuple(draft_vocabulary(self.data, options.draft_vocabulary)[0].tolist())
        claim(out, self._identity(), begun)

    def _identity(self) -> dict[str, Any]:
        asked = {name: value for name, value in asdict(self.options).items() if name not in _FREE}
        return {
            "texts": len(self.data), "training": self.corpus.digest, "model": self.checkpoint.fingerprint,
            "recipe": "layerskip", **asked,
        }  # fmt: skip

    @property
    def model(self) -> Path:
        """The folder of the checkpoint."""
        return self.out / "model"

    @property
    def measured(self) -> tuple[int, ...]:
        """The exits of an evaluation: those that learn, or some of them where all do."""
        layers = self.checkpoint.config.num_layers
        if self.options.exits or layers <= _MEASURED:
            return self.options.exits or tuple(range(1, layers))
        return tuple(sorted({max(1, layers * part // (_MEASURED + 1)) for part in range(1, _MEASURED + 1)}))

    def job(self, device: torch.device) -> Job:
        """What the trainer needs."""
        options, config = self.options, self.checkpoint.config
        decoder = decoder_of(self.checkpoint, options.scratch, options.seed).to(device)
        kept = self.corpus.evaluated(options.held_out_tokens)
        return Job(
            options,
            self.out,
            Learner(decoder),
            self.corpus,
            Packer(self.corpus.training, config.num_layers, options, device),
            (lambda: measured(decoder, kept, self.measured)) if kept else None,
            lambda progress: self._write(decoder, progress),
        )

    # -- the checkpoint ----------------------------------------------------------------------------------

    def _write(self, decoder: Decoder, progress: Progress) -> None:
        """A Hugging Face folder, whole or not at all: weights, configuration, tokenizer, note of exits."""
        with replacing(self.model) as scratch:
            weights = _in(getattr(torch, self.options.store), decoder.model.state_dict())
            with quietly():
                decoder.model.save_pretrained(scratch, state_dict=weights)
            self._copy_texts(scratch)
            for file in scratch.glob("*.safetensors"):
                file.chmod(0o644)  # not its writer's alone
            if self.exits:
                exits, more = self._note(progress)
                (scratch / NOTE).write_text(json.dumps(note_of(exits, **more)) + "\n", encoding="utf-8")
            open_folder(scratch, self.out.name)  # every name and shape is what config.json asks for

    def _copy_texts(self, target: Path) -> None:
        """The tokenizer as it came; the configuration as transformers writes it, but for the precision."""
        source = self.checkpoint.folder
        for file in text_files(source):
            copy = target / file.relative_to(source)
            if copy.name not in {"config.json", NOTE}:
                copy.parent.mkdir(exist_ok=True)
                shutil.copyfile(file, copy)
        say_precision(target, self.options.store)

    def _note(self, progress: Progress) -> tuple[Exits, dict[str, Any]]:
        """The exits, the one to draft with first, and what is known of them."""
        alphas = self._alphas()
        layers = sorted(alphas or self.exits, key=lambda k: (-self._worth(k, alphas.get(k, 0.0)), k))
        card = {
            "version": __version__, "base": self.checkpoint.name, "texts": self.corpus.digest,
            "steps": progress.step, "tokens": progress.tokens,
            "alphas": {str(k): round(alpha, 4) for k, alpha in alphas.items()},
        }  # fmt: skip
        return Exits(tuple(layers), self.vocabulary), {"card": card}

    def _alphas(self) -> Mapping[int, float]:
        """How often each exit agreed with the last layer in the last evaluation."""
        told = [line for line in History.read(self.out / "history.jsonl") if line["kind"] == "evaluation"]
        if not told:
            return {}
        found = told[-1]["heads"]
        return {k: found[f"exit-{k}"]["greedy"]["alphas"][0] for k in self.measured if f"exit-{k}" in found}

    def _worth(self, k: int, alpha: float) -> float:
        """The speed-up that exit k promises with its best draft length, by the weights that its steps read."""
        config = self.checkpoint.config
        share = config.head_parameters / config.pass_parameters
        f = shared_share(config.num_layers, k, share)
        head = share * len(self.vocabulary) / config.vocab_size if self.vocabulary else share
        return speedup(alpha, best_gamma(alpha, f + head, _ROW, f, 16), f + head, _ROW, f)


def _in(dtype: torch.dtype, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights in a precision; those that are one stay one, so that a tied head is not written twice."""
    made: dict[int, Tensor] = {}
    return {name: made.setdefault(tensor.data_ptr(), tensor.to(dtype)) for name, tensor in weights.items()}
