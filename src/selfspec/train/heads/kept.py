"""The target's states along the texts of a run: made once, in a folder, if there is room."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from selfspec.train.heads import features

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from selfspec.engine import Engine
    from selfspec.train.heads.corpus import Corpus
    from selfspec.train.options import StatesOptions


class KeptStates:
    """A run that reads the target's states after the layers ``taps``, and after the last one."""

    engine: Engine
    options: StatesOptions
    corpus: Corpus
    out: Path

    @property
    def taps(self) -> Sequence[int]:
        """None but the last."""
        return ()

    @cached_property
    def reader(self) -> features.Reader:
        """Runs the target."""
        return features.Reader(self.engine.runtime, self.taps)

    @cached_property
    def folder(self) -> Path:
        """Where states are kept."""
        return Path(self.options.features) if self.options.features else self.out / "features"

    @cached_property
    def plan(self) -> features.Plan:
        """What keeping the states of the training texts takes."""
        lengths = [len(sample.tokens) for sample in self.corpus.training]
        width = self.engine.config.hidden_size
        return features.planned(self.reader, lengths, width, self.options.budget_bytes, self.folder)

    @cached_property
    def states(self) -> features.Shards | features.Anew:
        """On disk if they fit."""
        texts = [sample.tokens for sample in self.corpus.training]
        if not self.plan.fits:
            return features.Anew(self.reader, texts)
        runtime = self.engine.runtime
        identity = {
            "model": self.engine.fingerprint, "taps": self.reader.taps, "runtime": runtime.name,
            "precision": runtime.precision, "format": 1,
        }  # fmt: skip
        return features.Shards(self.folder, identity, self.reader, texts)

    def make_states(self, tell: Callable[[int], None]) -> None:
        """Run the target over what is missing; ``tell`` gets rows as they are done."""
        if isinstance(self.states, features.Shards):
            for index in self.states.missing:
                tell(self.states.make(index))
