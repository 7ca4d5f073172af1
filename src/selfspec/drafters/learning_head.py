"""Exit heads that learn while texts are written: `early_exit --learn`. See `selfspec.learning`.

Every verification says what the target thinks of rows whose states after the exit layer are there: that is what a
head is trained on. The head is linear, begins as nothing on top of its states (or as a file says), and is exchanged
between two drafts: all tokens of a draft, and all texts that draft together, have the same one. Whatever it says,
verification is told the law that a token was drawn from.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.drafters.base import Extra, option
from selfspec.drafters.exit_head import ExitHead
from selfspec.drafters.trained import Attachment, HeadOptions, names_of, opened
from selfspec.errors import OptionError, UnsupportedModelError
from selfspec.learning.learner import Learner, LearnSettings, Offered
from selfspec.model.head_file import HeadFacts, HeadFile
from selfspec.model.reading import expanded
from selfspec.types import require_defaults

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.context import Context, Text
    from selfspec.drafters.base import Host
    from selfspec.model.config import ModelConfig
    from selfspec.types import Array, Draft


@dataclass(frozen=True)
class LearnOptions(HeadOptions):
    """Options of drafters that learn from verifications."""

    learn: bool = option(
        False,
        "Learn while it writes: verifications teach a linear head at the exit layer, in a thread of its own.",
        opens=True,
    )
    learn_share: float = option(
        LearnSettings.share, "learn: how much of one core it may take, by CPU time.", opens=True
    )
    learn_memory: int = option(LearnSettings.memory, "learn: MiB of verified rows that are kept.", opens=True)
    learn_out: str | None = option(
        None,
        "learn: keep the head in this file, written whole, from time to time and at the end; give it as --head to "
        "go on.",
        opens=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        given: Any = self.learn_out
        if isinstance(given, os.PathLike):
            object.__setattr__(self, "learn_out", os.fspath(given))
        elif given is not None and (not isinstance(given, str) or not given):
            raise OptionError(f"learn_out is {given!r}; it must name a file")
        if not self.learn:
            why = "which only learning reads; give learn, too"
            require_defaults(self, ("learn_share", "learn_memory", "learn_out"), why)
            return
        _ = self.learning  # what is wrong with its numbers is said now
        if self.learn_out is not None:
            _require_writable(self.learn_out)

    @property
    def learning(self) -> LearnSettings:
        """How it learns."""
        return LearnSettings(self.learn_share, self.learn_memory, self.learn_out)


def _require_writable(out: str) -> None:
    """Hours of learning must not end with a file that cannot be written."""
    path = expanded(out)
    if path.is_dir():
        raise OptionError(f"learn_out {out!r} is a folder; name a file")
    folder = path.absolute().parent
    if not os.access(folder, os.W_OK):
        why = "no permission" if folder.is_dir() else "its folder does not exist"
        raise OptionError(f"learn_out {out!r} cannot be written: {why}")


class LearningHead(ExitHead):
    """Drafts with layers [0, k) and the head that the learner of its engine offers."""

    Options = LearnOptions
    usual_alpha = 0.25

    def __init__(self, options: LearnOptions, config: ModelConfig, layer: int | None = None) -> None:
        self._settings = options
        start = HeadFile(*_untrained(config, layer)) if options.head is None else _linear(options.head, config)
        super().__init__(options, config, layer, start)
        self._start = start
        (self._layer,) = start.facts.taps
        self._learner: Learner | None = None
        self._offered: Offered | None = None

    @property
    def runs(self) -> str:
        """The layers, and that the head learns."""
        return f"{self._plan} + learning head"

    @property
    def extra_bytes(self) -> Extra:
        """The head, and what learning takes."""
        own = super().extra_bytes
        return own if self._learner is None else own._replace(weights=own.weights + self._learner.nbytes)

    @property
    def studies(self) -> int | None:
        """The exit layer, as long as anybody learns."""
        return self._layer if self._learner is not None and self._learner.is_on else None

    def bind(self, host: Host) -> None:
        """Learn with all drafters of this engine that have the same options."""
        options = self._settings
        key = ("learner", self._layer, options.head, options.head_bits, options.learning)
        self._learner = host.kept(key, lambda: self._learning(host))
        self._follow()

    def _learning(self, host: Host) -> Learner:
        options, runtime = self._settings, host.runtime
        options.learning.sizes(self.config.hidden_size)
        self._head.check(host)
        start = self._start if options.head is not None else _begun(self._start, host)

        def attach(head: HeadFile) -> Any:
            return runtime.attach(head, options.head_bits)

        return Learner(Offered(start, attach(start)), runtime, options.learning, attach, host.notify)

    def _follow(self) -> None:
        """Draft with the head of this moment from now on."""
        assert self._learner is not None, "no engine has bound this drafter"
        offered = self._learner.current
        if offered is not self._offered:
            self._offered = offered
            self._head = Attachment(self.config, self._settings, offered.head, offered.attached)

    def begin(self, text: Text) -> None:
        """Its prompt shows tokens that its answer may have."""
        super().begin(text)
        assert self._learner is not None
        self._learner.read(text.tokens[: text.prompt_length])

    def refine(
        self, context: Context, texts: Sequence[Text], gammas: Sequence[int], drafts: Sequence[Draft]
    ) -> list[Draft]:
        """As every exit; with one head for the whole round."""
        self._follow()
        return super().refine(context, texts, gammas, drafts)

    def taught(self, text: Text, states: Array, logits: Array) -> None:
        """Hand the rows over."""
        assert self._learner is not None
        sampling = text.sampling
        self._learner.offer(states, logits, 0.0 if sampling.is_greedy else float(sampling.temperature))

    def end(self, text: Text) -> None:
        """Leave with the text what was learned so far."""
        super().end(text)
        assert self._learner is not None
        text.explanation = {**(text.explanation or {}), "learning": self._learner.facts()}


def _linear(path: str, config: ModelConfig) -> HeadFile:
    head = opened(path, "exit_head", config)
    if head.facts.form != "linear":
        raise OptionError(
            f"the form of the head {path!r} is {head.facts.form}; only linear ones learn while serving"
        )
    return replace(head, weights=dict(head.weights))  # the file may be written again while this one learns


def _untrained(config: ModelConfig, layer: int | None) -> tuple[HeadFacts, dict[str, Any]]:
    """A head that adds nothing, whose norm is not known yet."""
    d, k = config.hidden_size, default_layer(config) if layer is None else layer
    if not 1 <= k < config.num_layers:
        raise OptionError(f"exit_layer is {k}; it must be 1 to {config.num_layers - 1}")
    zeros, ones = np.zeros((d, d), dtype=np.float32), np.ones(d, dtype=np.float32)
    facts = HeadFacts("exit_head", "linear", (k,), d, eps=config.norm_eps)
    return facts, {"transform.weight": zeros, "norm.weight": ones}


def default_layer(config: ModelConfig) -> int:
    """Where a head learns if nobody says: after a quarter of the layers (docs/learning.md compares)."""
    return max(1, config.num_layers // 4)


def _begun(head: HeadFile, host: Host) -> HeadFile:
    """The head that says what its exit says: with the target's norm; a norm that centres is a product, too."""
    runtime, d = host.runtime, head.facts.hidden_size
    norm = runtime.weight("final_norm")
    if norm is None:
        raise UnsupportedModelError("this model has no norm before its LM head, and heads need one")
    kind = runtime.config.layer(0).norm
    weights = {
        "transform.weight": np.full((d, d), -1.0 / d, dtype=np.float32)
        if kind.startswith("layer")
        else head.weights["transform.weight"],
        "norm.weight": np.asarray(norm, dtype=np.float32) + np.float32(kind == "rms_plus_one"),
    }
    target = next(filter(None, names_of(host)), "")
    return HeadFile(replace(head.facts, target=target, card={"recipe": "learned while serving"}), weights)
