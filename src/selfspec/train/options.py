"""What may be asked of the training of heads; flags and their defaults come from here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from selfspec.drafters.base import inherited, option
from selfspec.errors import OptionError
from selfspec.train.schedules import CURRICULA, OVER_TIME, WEIGHTS
from selfspec.types import MAX_GAMMA, require_least, require_types

_BYTES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
PRECISIONS = ("float32", "bfloat16")
FORMS = ("linear", "attention", "layer")
STORED = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class TrainingOptions:
    """The flags that all training has."""

    data: Sequence[str] = option((), "Folder of `selfspec train data`; may be given several times.")
    usual_epochs: ClassVar[float] = 3.0
    epochs: float | None = option(None, "How often the answers are read.  [default: 3]")
    minutes: float | None = option(
        None, "Train so long instead, all sittings together; the learning rate then follows the clock."
    )
    limit: int | None = option(None, "Most answer tokens to train on, the first ones of the data.")
    batch_tokens: int = option(2048, "Answer tokens of a step.")
    max_length: int = option(2048, "Longer texts are cut there.")
    learning_rate: float = option(1e-3, "The highest learning rate of AdamW.")
    warm_up: float = option(0.05, "Share of the training in which it rises; then it falls as a cosine to a tenth.")
    weight_decay: float = option(0.01, "Weight decay of matrices.")
    clip: float = option(1.0, "Longest gradient of a head; longer ones are shortened.")
    precision: str = option("float32", "Of products in training: float32 or bfloat16; weights are float32.")
    seed: int = option(0, "Seed of the order of the texts and of new weights.")
    held_out: float = option(0.05, "Share of the prompts that is kept for evaluation.")
    held_out_tokens: int = option(3000, "Most answer tokens of an evaluation.")
    evaluate_minutes: float = option(5.0, "Minutes between evaluations.")
    checkpoint_minutes: float = option(5.0, "Minutes between checkpoints.")

    def __post_init__(self) -> None:
        require_types(self)
        require_least(self, limit=1, batch_tokens=1, max_length=3, seed=0, held_out_tokens=1)
        for name in ("epochs", "minutes", "learning_rate", "clip", "evaluate_minutes", "checkpoint_minutes"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < float("inf"):
                raise OptionError(f"{name} is {value}; it must be above 0")
        if None not in (self.epochs, self.minutes):
            raise OptionError("epochs and minutes are both given, and each says when training ends; give one")
        for name in ("warm_up", "weight_decay", "held_out"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise OptionError(f"{name} is {getattr(self, name)}; it must be at least 0 and below 1")
        if self.precision not in PRECISIONS:
            raise OptionError(f"precision is {self.precision!r}; it must be one of {', '.join(PRECISIONS)}")
        if not self.data:
            raise OptionError("no data; give --data FOLDER, which `selfspec train data` makes")


@dataclass(frozen=True)
class StatesOptions(TrainingOptions):
    """The flags of training that reads the model's states along the data."""

    features: str | None = option(None, "Folder for the states of the data.  [default: features in --out]")
    disk_budget: str = option("20G", "Most bytes for them (K, M, G, T); what does not fit is run anew every time.")

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.budget_bytes >= 0

    @property
    def budget_bytes(self) -> int:
        """``disk_budget`` in bytes. Raises OptionError for what is no size."""
        found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([KMGT]?)B?", self.disk_budget.strip())
        if found is None:
            raise OptionError(f"disk_budget is {self.disk_budget!r}; it must be bytes such as 500M or 20G")
        return int(float(found[1]) * _BYTES[found[2]])


@dataclass(frozen=True)
class HeadOptions(StatesOptions):
    """The flags that all kinds of heads have in training."""

    vocabulary: int = option(8192, "Tokens that a draft may use, the most frequent in the answers; 0 is all.")
    init: str | None = option(None, "Begin with the weights of this head file.")
    int8: bool = option(False, "Write the matrices of the head in 8 bits.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_least(self, vocabulary=0)


@dataclass(frozen=True)
class EagleOptions(HeadOptions):
    """The flags of ``selfspec train eagle``."""

    steps: int = option(
        3, "Steps of the training-time test: how many of its own outputs a draft builds on, plus 1."
    )
    decay: float = option(0.8, "Weight of a step ÷ that of the one before.")
    rolling: float = option(1.0, "Share of the texts that roll out; the others have the first step only.")
    taps: str = option("", "The three layers after which states are read, with commas.  [default: 2, L/2, L-3]")
    intermediate: int | None = option(None, "Channels of its MLP.  [default: those of the model]")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_least(self, steps=1, intermediate=1)
        if self.steps > MAX_GAMMA:
            raise OptionError(f"steps is {self.steps}; it must be at most {MAX_GAMMA}")
        if not 0.0 < self.decay <= 1.0:
            raise OptionError(f"decay is {self.decay}; it must be above 0 and at most 1")
        if not 0.0 < self.rolling <= 1.0:
            raise OptionError(f"rolling is {self.rolling}; it must be above 0 and at most 1")
        assert self.tap_layers is not None

    @property
    def tap_layers(self) -> tuple[int, ...]:
        """``taps`` as numbers; empty for the default."""
        found = _integers("taps", self.taps)
        if len(found) not in (0, 3):
            raise OptionError(f"taps is {self.taps!r}; it must be three layers such as 2,15,27")
        return found


@dataclass(frozen=True)
class MedusaOptions(HeadOptions):
    """The flags of ``selfspec train medusa``."""

    heads: int = option(4, "How many heads: that many tokens can a draft have.")
    blocks: int = option(1, "Residual blocks of each head.")
    decay: float = option(0.8, "Weight of a head ÷ that of the one before.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_least(self, heads=1, blocks=1)
        if self.heads > MAX_GAMMA:
            raise OptionError(f"heads is {self.heads}; it must be at most {MAX_GAMMA}")
        if not 0.0 < self.decay <= 1.0:
            raise OptionError(f"decay is {self.decay}; it must be above 0 and at most 1")


@dataclass(frozen=True)
class ExitHeadOptions(HeadOptions):
    """The flags of ``selfspec train exit-head``."""

    layers: str = option("", "Exit layers with commas, a head for each: 4,8.")
    form: str = option("layer", "linear, attention (one attention block) or layer (a decoder layer).")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form not in FORMS:
            raise OptionError(f"form is {self.form!r}; it must be one of {', '.join(FORMS)}")
        if not self.exits:
            raise OptionError("no exit layer; give --layers, such as 8 or 4,8")

    @property
    def exits(self) -> tuple[int, ...]:
        """``layers`` as numbers, each once."""
        return tuple(sorted(set(_integers("layers", self.layers))))


@dataclass(frozen=True)
class LayerSkipOptions(TrainingOptions):
    """The flags of ``selfspec train layerskip``."""

    layers: str = option("", "Exit layers that learn with the last one, with commas: 4,6,8.  [default: all]")
    curriculum: str = option(
        "rotational",
        "Which exits learn when: rotational (every --rotation-th, others in each step), gradual (the last ones "
        "first, all from --gradual on) or none (all, always).",
    )
    rotation: int = option(8, "rotational: of so many exits one learns in a step.")
    gradual: float = option(0.5, "gradual: the share of the training after which all exits learn.")
    exit_weights: str = option(
        "sum", "What the loss of exit k weighs: sum (1 + 2 + ... + k), linear (k) or uniform; all together weigh 1."
    )
    exit_scale: float = option(1.0, "Times that of the last layer.")
    dropout: float = option(
        0.1, "How often the last layer is left out of a text; earlier ones less often, the first never."
    )
    dropout_over_time: str = option(
        "", "constant, or exponential: rising from 0 over the training.  [default: exponential with --scratch]"
    )
    scratch: bool = option(False, "Begin with new weights in the model's sizes.")
    plain: bool = option(False, "For comparison: no layer is left out, and the last layer alone learns.")
    draft_vocabulary: int = option(
        0, "Note so many tokens, the most frequent in the answers, for drafts to choose among; 0 is all."
    )
    store: str = option("bfloat16", "Precision of the checkpoint's weights: bfloat16, float16 or float32.")
    usual_epochs: ClassVar[float] = 1.0
    epochs: float | None = option(None, "How often the answers are read.  [default: 1]")
    learning_rate: float = inherited(TrainingOptions, "learning_rate", 1e-4)
    checkpoint_minutes: float = inherited(TrainingOptions, "checkpoint_minutes", 15.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_least(self, rotation=1, draft_vocabulary=0)
        choices = {"curriculum": CURRICULA, "exit_weights": WEIGHTS, "store": STORED}
        choices |= {"dropout_over_time": ("", *OVER_TIME)}
        for name, allowed in choices.items():
            if (value := getattr(self, name)) not in allowed:
                words = ", ".join(word for word in allowed if word)
                raise OptionError(f"{name} is {value!r}; it must be one of {words}")
        if not 0.0 <= self.dropout < 1.0:
            raise OptionError(f"dropout is {self.dropout}; it must be at least 0 and below 1")
        if not 0.0 <= self.gradual <= 1.0:
            raise OptionError(f"gradual is {self.gradual}; it must be from 0 to 1")
        if not 0.0 < self.exit_scale < float("inf"):
            raise OptionError(f"exit_scale is {self.exit_scale}; it must be above 0")
        if self.plain and self.draft_vocabulary:
            raise OptionError("plain notes no exits, and draft_vocabulary is for them; leave one of them out")
        assert self.exits is not None

    @property
    def exits(self) -> tuple[int, ...]:
        """``layers`` as numbers, each once; empty for all."""
        return tuple(sorted(set(_integers("layers", self.layers))))

    def exits_of(self, num_layers: int) -> tuple[int, ...]:
        """The exits before the last layer that learn in a model of so many layers.

        Raises OptionError for one that it does not have.
        """
        if wrong := [k for k in self.exits if not 1 <= k < num_layers]:
            raise OptionError(
                f"layers has {wrong[0]}; this model has {num_layers} layers, so an exit must be 1 to "
                f"{num_layers - 1}"
            )
        return () if self.plain else self.exits or tuple(range(1, num_layers))

    @property
    def most_dropout(self) -> float:
        """How often the last layer is left out in the end."""
        return 0.0 if self.plain else self.dropout

    @property
    def over_time(self) -> str:
        """How dropout changes."""
        return self.dropout_over_time or ("exponential" if self.scratch else "constant")


@dataclass(frozen=True)
class DistillOptions(StatesOptions):
    """The flags of ``selfspec train distill``."""

    layers: str = option(
        "",
        "How many layers of the model the draft has, evenly chosen, first and last kept; or which: 0,1,15,29.",
    )
    kl: float = option(1.0, "Weight of the divergence from the model's distributions.")
    ce: float = option(0.1, "Weight of the cross entropy of the answers' tokens.")
    store: str = option("bfloat16", "Precision of the draft's weights: bfloat16, float16 or float32.")
    learning_rate: float = inherited(TrainingOptions, "learning_rate", 5e-4)
    checkpoint_minutes: float = inherited(TrainingOptions, "checkpoint_minutes", 15.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.store not in STORED:
            raise OptionError(f"store is {self.store!r}; it must be one of {', '.join(STORED)}")
        for name in ("kl", "ce"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise OptionError(f"{name} is {getattr(self, name)}; it must be at least 0")
        if self.kl + self.ce <= 0.0:
            raise OptionError("kl and ce are 0, so nothing would be learned; one of them must be above 0")
        if not _integers("layers", self.layers):
            raise OptionError("no layers; give --layers, a number such as 6, or which of them: 0,1,15,29")

    def chosen(self, num_layers: int) -> tuple[int, ...]:
        """The layers of a model of so many that the draft begins with.

        Raises OptionError for those that it does not have, or all of them.
        """
        found = _integers("layers", self.layers)
        if len(found) == 1 and "," not in self.layers:
            if not 1 <= found[0] < num_layers:
                raise OptionError(
                    f"layers is {found[0]}; this model has {num_layers}, so a draft must have 1 to {num_layers - 1}"
                )
            steps = max(1, found[0] - 1)
            return tuple((2 * i * (num_layers - 1) + steps) // (2 * steps) for i in range(found[0]))
        if list(found) != sorted(set(found)) or found[-1] >= num_layers or len(found) == num_layers:
            raise OptionError(
                f"layers is {self.layers!r}; it must be some of 0 to {num_layers - 1}, rising, each once"
            )
        return found


def _integers(name: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if not all(re.fullmatch(r"[0-9]{1,5}", part) for part in parts):
        raise OptionError(f"{name} is {text!r}; it must be numbers of layers with commas")
    return tuple(int(part) for part in parts)
