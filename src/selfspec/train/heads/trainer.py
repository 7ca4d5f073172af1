"""The loop of training: steps, evaluations and checkpoints, as a generator of events; it prints nothing."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from accelerate import Accelerator
from torch import nn

from selfspec.errors import OptionError, TrainingError
from selfspec.runtime.torch_cache import memory_for
from selfspec.train.heads import checkpoints
from selfspec.train.heads.interrupts import uninterrupted
from selfspec.train.heads.progress import Event, History, Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from selfspec.train.heads.corpus import Corpus
    from selfspec.train.heads.heldout import Acceptance
    from selfspec.train.options import TrainingOptions

_FLOOR = 0.1  # of the learning rate, at the end
_STOPPED = 10.0  # times as long as usual: such a step was not at work all the time


class Learned(Protocol):
    """What a learner makes of a pack: ``total`` has a gradient, ``told`` are facts of the step, for the history."""

    @property
    def total(self) -> Tensor:
        """What is learned from."""

    @property
    def told(self) -> Mapping[str, Any]:
        """At least ``loss``, a list of numbers for each of its parts."""


class Learns(Protocol):
    """A module that makes losses of packs."""

    @property
    def parts(self) -> Sequence[nn.Module]:
        """What it consists of; the gradient of each is clipped for itself."""

    def __call__(self, pack: Any) -> Learned:
        """The losses of what `Job.pack` makes."""


@dataclass(frozen=True, eq=False)
class Job:
    """What a run needs, whatever learns.

    ``pack`` makes what ``learner`` (a module that `Learns`) reads of some texts, at a place and share of the
    training; ``measure`` says how often drafts of the held-out texts are accepted, by name and kind; ``write``
    keeps what was learned.
    """

    options: TrainingOptions
    out: Path
    learner: nn.Module
    corpus: Corpus
    pack: Callable[[Sequence[int], Progress, float], Any]
    measure: Callable[[], dict[str, dict[str, Acceptance]]] | None
    write: Callable[[Progress], None]
    clock: Callable[[], float] = time.monotonic


def accelerator_of(options: TrainingOptions, device: str | None) -> Accelerator:
    """On the GPU where there is one, unless ``device`` is "cpu"; raises OptionError in one of several processes."""
    kind = {"float32": "no", "bfloat16": "bf16"}[options.precision]
    made = Accelerator(mixed_precision=kind, cpu=device == "cpu" or not torch.cuda.is_available())
    if made.num_processes > 1:
        raise OptionError(f"this trains in one process, and {made.num_processes} were launched; start it plainly")
    return made


def train(job: Job, accelerator: Accelerator) -> Iterator[Event]:
    """Train to the end, from the last checkpoint if there is one.

    Raises
    ------
    TrainingError
        The loss is no number any more; the last checkpoint is from before.
    OutOfMemoryError
        A step does not fit.
    """
    yield from _Run(job, accelerator)


class _Run:
    """A run in progress."""

    def __init__(self, job: Job, accelerator: Accelerator) -> None:
        options = job.options
        self.job, self.accelerator, self.progress = job, accelerator, Progress()
        matrices = [p for p in job.learner.parameters() if p.ndim == 2]
        others = [p for p in job.learner.parameters() if p.ndim != 2]
        groups = [
            {"params": matrices, "weight_decay": options.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=options.learning_rate, betas=(0.9, 0.95))
        self.learner, self.optimizer = accelerator.prepare(job.learner, optimizer)
        self.folder = job.out / "checkpoints"
        if (found := checkpoints.latest(self.folder)) is not None:
            self.progress = checkpoints.restore(accelerator, found)
        self.history = History(job.out / "history.jsonl", self.progress.step)
        self.saved = self.progress.step if found else None  # the step of the last checkpoint
        self._last: list[float] = []  # seconds of the last steps
        self._plan: tuple[int, list[list[int]]] = (-1, [])  # an epoch, and the texts of its steps

    def __iter__(self) -> Iterator[Event]:
        job, options = self.job, self.job.options
        evaluated = saved = job.clock()
        if not self.progress.step:
            yield self._evaluation()
        try:
            while self.share < 1.0:
                with uninterrupted():
                    event = self._step()
                yield event
                now = job.clock()
                if now - evaluated > options.evaluate_minutes * 60 and self.share < 1.0:
                    yield self._evaluation()
                    evaluated = job.clock()
                if now - saved > options.checkpoint_minutes * 60 and self.share < 1.0:
                    yield self._checkpoint()
                    saved = job.clock()
        except KeyboardInterrupt:
            self._checkpoint()
            raise
        if self.saved != self.progress.step:
            yield self._evaluation()
            yield self._checkpoint()

    @property
    def share(self) -> float:
        """Of the training that is done."""
        options, progress = self.job.options, self.progress
        if options.minutes is not None:
            return progress.seconds / (60 * options.minutes)
        return progress.tokens / ((options.epochs or options.usual_epochs) * self.job.corpus.drafted)

    def _rate(self) -> float:
        """The learning rate: it rises, then falls as a cosine."""
        options, share = self.job.options, self.share
        if share < options.warm_up:
            # the first step must move, too
            return options.learning_rate * max(share / options.warm_up, 0.01)
        done = min(1.0, (share - options.warm_up) / (1.0 - options.warm_up))
        return options.learning_rate * (_FLOOR + (1.0 - _FLOOR) * 0.5 * (1.0 + math.cos(math.pi * done)))

    def _step(self) -> Event:
        started = self.job.clock()
        texts = self._texts()
        rate = self._rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with memory_for(
            f"a step of {self.job.options.batch_tokens} answer tokens; lower --batch-tokens, or --max-length"
        ):
            losses, gradient = self._learn(texts)
        progress = self.progress
        tokens = sum(self.job.corpus.training[text].drafted for text in texts)
        seconds = self.job.clock() - started
        progress.step, progress.batch = progress.step + 1, progress.batch + 1
        progress.tokens, progress.seconds = progress.tokens + tokens, progress.seconds + self._counted(seconds)
        facts = {
            **losses.told, "learning_rate": rate, "gradient": gradient,
            "tokens_per_second": tokens / max(seconds, 1e-9),
        }  # fmt: skip
        return self._told("step", facts)

    def _counted(self, seconds: float) -> float:
        """Seconds of a step as they count: a process that was stopped, or slept, has not trained meanwhile."""
        usual = sorted(self._last)[len(self._last) // 2] if self._last else seconds
        self._last = [*self._last[-20:], seconds]
        return min(seconds, _STOPPED * usual)

    def _texts(self) -> list[int]:
        """The texts of the next step."""
        progress, options = self.progress, self.job.options
        if self._plan[0] != progress.epoch:
            self._plan = (progress.epoch, self.job.corpus.steps(progress.epoch, options.seed, options.batch_tokens))
        if progress.batch >= len(self._plan[1]):
            progress.epoch, progress.batch = progress.epoch + 1, 0
            return self._texts()
        return self._plan[1][progress.batch]

    def _learn(self, texts: list[int]) -> tuple[Learned, float]:
        job, accelerator = self.job, self.accelerator
        losses: Learned = self.learner(job.pack(texts, self.progress, self.share))
        accelerator.backward(losses.total)
        parts = cast("Learns", job.learner).parts
        lengths = [float(nn.utils.clip_grad_norm_(module.parameters(), job.options.clip)) for module in parts]
        if not math.isfinite(float(losses.total.detach())) or not all(map(math.isfinite, lengths)):
            raise TrainingError(self._broken())
        self.optimizer.step()
        self.optimizer.zero_grad()
        return losses, max(lengths)

    def _broken(self) -> str:
        found = checkpoints.latest(self.folder)
        kept = (
            f"the last good checkpoint is {found.name} in {str(self.folder)!r}"
            if found
            else "no checkpoint was made yet"
        )
        return (
            f"the loss or its gradient is not finite after step {self.progress.step}; {kept}: "
            f"lower --learning-rate from {self.job.options.learning_rate:g}, or --clip"
        )

    def _evaluation(self) -> Event:
        job, started = self.job, self.job.clock()
        if job.measure is None:
            return self._told("evaluation", {"heads": {}, "took": 0.0})
        self.learner.eval()
        with memory_for("an evaluation; lower --held-out-tokens"):
            found = job.measure()
        self.learner.train()
        heads = {
            name: {kind: {"alphas": list(a.alphas), "tokens_per_round": a.tokens_per_round, "tokens": a.tokens}
                   for kind, a in kinds.items()} for name, kinds in found.items()
        }  # fmt: skip
        return self._told("evaluation", {"heads": heads, "took": job.clock() - started})

    def _checkpoint(self) -> Event:
        path = checkpoints.save(self.accelerator, self.folder, self.progress)
        self.saved = self.progress.step
        self.job.write(replace(self.progress))
        return self._told("checkpoint", {"path": str(path)})

    def _told(self, kind: str, facts: dict[str, Any]) -> Event:
        event = Event(kind, replace(self.progress), min(1.0, self.share), facts)
        if kind != "checkpoint":
            self.history.add(event)
        return event
