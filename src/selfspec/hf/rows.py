"""One text of a batch, under the processors and criteria that transformers has prepared for the batch."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import LogitsProcessorList

from selfspec.errors import OptionError
from selfspec.types import Array, Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from selfspec.model.config import ModelConfig

# They see the whole batch at once (pairs of rows, channels), or run a model.
_BATCH_WIDE = {
    "AlternatingCodebooksLogitsProcessor": "one row for each codebook",
    "ClassifierFreeGuidanceLogitsProcessor": "a batch of pairs",
    "ConfidenceCriteria": "assisted decoding",
    "DiaClassifierFreeGuidanceLogitsProcessor": "a batch of pairs",
    "DiaEOSChannelFilterLogitsProcessor": "one row for each channel",
    "DiaEOSDelayPatternLogitsProcessor": "one row for each channel",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "to run the model itself",
    "WhisperNoSpeechDetection": "to run the model itself",
    "WhisperTimeStampLogitsProcessor": "the timestamps of all rows",
}


@dataclass(frozen=True)
class RowSampling(Sampling):
    """What transformers' processors leave, taken as it is; ``drafts`` is the nearest to it that drafts can use."""

    drafts: Sampling = field(default_factory=Sampling)

    @property
    def for_drafts(self) -> Sampling:
        """Processors may keep state, and must be called for the rows of plain decoding only."""
        return self.drafts


class Row:
    """The text of one row, the pads on its left included, and what processors and criteria say of it.

    Parameters
    ----------
    batch
        The padded prompts [B, n], and which of them is this one.
    pads
        How many of its tokens are padding.
    rules
        The processors and the criteria of the batch.
    config
        The generation config.
    """

    def __init__(self, batch: tuple[Tensor, int], pads: int, rules: tuple[Any, Any], config: Any) -> None:
        prompts, index = batch
        self.pads, self.config = pads, config
        self.most: int = config.max_length
        self._processors = LogitsProcessorList(for_row(rule, index, len(prompts)) for rule in rules[0])
        self._criteria = list(rules[1])
        self._guard = _Guard(len(prompts) > 1)
        self._ids = prompts.new_zeros((1, max(self.most, prompts.shape[1])))
        self._ids[0, : prompts.shape[1]] = prompts[index]
        self.prompt_length = self.length = prompts.shape[1]
        wants = bool(config.return_dict_in_generate)
        self.scores: list[Tensor] | None = [] if wants and config.output_scores else None
        self.logits: list[Tensor] | None = [] if wants and config.output_logits else None

    @property
    def new(self) -> Tensor:
        """The new tokens [t]."""
        return self._ids[0, self.prompt_length : self.length]

    def sampling(self, drafts: Sampling, coupled: bool) -> Sampling:
        """How logits become probabilities: all is left to the processors, temperature and cuts too."""
        temperature = 1.0 if self.config.do_sample else 0.0
        drafts = replace(drafts, coupled=coupled)
        return RowSampling(temperature, processors=(self.law,), coupled=coupled, drafts=drafts)

    def law(self, tokens: Sequence[int], logits: Array) -> Array:
        """The logits [V] of what follows, processed: in float32, as ``generate`` has them."""
        assert len(tokens) + self.pads == self.length, "the rows of plain decoding, in order"
        raw = torch.as_tensor(logits).to(self._ids.device, torch.float32, copy=True)[None]
        if self.logits is not None:
            self.logits.append(raw.clone())
        scores = raw
        for processor in self._processors:
            with self._guard.of(processor):
                made = LogitsProcessorList([processor])(self._ids[:, : self.length], scores)
            if not isinstance(made, torch.Tensor) or made.shape != raw.shape:
                raise OptionError(
                    f"{_name(processor)} made {tuple(getattr(made, 'shape', ()))} of scores {tuple(raw.shape)}: it "
                    "needs the whole batch at once; leave it out, or leave out custom_generate"
                )
            scores = made
        if self.scores is not None:
            self.scores.append(scores)
        return scores[0].numpy() if isinstance(logits, np.ndarray) else scores[0].to(logits.device)

    def ends(self, token: int) -> bool:
        """Take a new token; whether one of the criteria holds now. All are asked, as ``generate`` does."""
        self._ids[0, self.length] = token
        self.length += 1
        scores = None if self.scores is None else tuple(self.scores)
        is_done = False
        for criterion in self._criteria:
            with self._guard.of(criterion):
                found = criterion(self._ids[:, : self.length], scores)
            is_done |= self._guard.judged(criterion, found)
        return is_done


class _Guard:
    """Keeps rules of a batch of several texts, which are asked for one at a time, from mixing them up."""

    def __init__(self, has_others: bool) -> None:
        self._has_others = has_others

    def of(self, rule: Any) -> _Unchanged:
        return _Unchanged(rule if self._has_others and not _is_of_transformers(rule) else None)

    def judged(self, criterion: Any, found: Any) -> bool:
        """What a criterion said of one text; for a batch, only a tensor says it of each."""
        if isinstance(found, torch.Tensor) and found.numel() == 1:
            return bool(found)
        if isinstance(found, torch.Tensor) or self._has_others:
            raise OptionError(
                f"the criterion {_name(criterion)} returned {found!r:.50}; for several texts it must be a tensor "
                "with one value for each, and here it is asked for one at a time"
            )
        return bool(found)


class _Unchanged:
    """Raises OptionError where a call has changed the attributes of what was called."""

    def __init__(self, rule: Any) -> None:
        self._rule = rule

    def __enter__(self) -> None:
        self._before = _state(self._rule)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None and _state(self._rule) != self._before:
            raise OptionError(
                f"{_name(self._rule)} keeps state, which would mix up the texts of a batch; give generate one text "
                "at a time, or leave out custom_generate"
            )


def _state(rule: Any) -> list[Any]:
    """What tells the attributes of an object before and after a call apart."""
    return [
        (
            name,
            id(value),
            getattr(value, "_version", None),
            len(value) if isinstance(value, list | dict | set) else 0,
        )
        for name, value in getattr(rule, "__dict__", {}).items()
    ]


def _name(rule: Any) -> str:
    return getattr(rule, "__name__", type(rule).__name__)


def _is_of_transformers(rule: Any) -> bool:
    """Whether it is of those that are known to treat every row by itself, always the same."""
    return type(rule).__module__.startswith("transformers.") and not type(rule).__name__.startswith("SynthID")


def check_rules(processors: Sequence[Any], criteria: Sequence[Any], batch: int) -> None:
    """Raise OptionError for processors and criteria that cannot be asked for one text at a time."""
    for rule in (*processors, *criteria):
        held = [value for value in getattr(rule, "__dict__", {}).values() if isinstance(value, torch.nn.Module)]
        why = _BATCH_WIDE.get(type(rule).__name__, "to run a model of its own" if held else "")
        if why:
            raise OptionError(f"{_name(rule)} needs {why}; leave it out, or leave out custom_generate")
    own = [rule for rule in criteria if type(rule).__name__ not in ("MaxLengthCriteria", "MaxTimeCriteria")]
    if batch > 1 and own and not any(hasattr(rule, "eos_token_id") for rule in criteria):
        raise OptionError(
            f"{_name(own[0])} ends single texts of a batch, but there is no eos_token_id, so generate would go on "
            "with those that have ended; give an eos_token_id, or one text at a time"
        )


# -- processors of transformers that know their row ---------------------------------------------------------


def _one_of(name: str) -> Callable[[Any, int, int], None]:
    """Cut an attribute with one entry for each row down to one row."""

    def cut(rule: Any, row: int, batch: int) -> None:
        values = getattr(rule, name)
        if values is not None and len(values) != batch:
            raise OptionError(f"{_name(rule)} has no entry for each of {batch} texts; give one text at a time")
        setattr(rule, name, None if values is None else values[row : row + 1])

    return cut


def _prefix_constrained(rule: Any, row: int, _batch: int) -> None:
    allowed, prompt = rule._prefix_allowed_tokens_fn, row // rule._num_beams
    rule._num_beams, rule._prefix_allowed_tokens_fn = 1, lambda _, ids: allowed(prompt, ids)


def _encoder_ngrams(rule: Any, row: int, batch: int) -> None:
    _one_of("generated_ngrams")(rule, row, batch)
    rule.batch_size = 1


_BY_ROW: dict[str, Callable[[Any, int, int], None]] = {
    "RepetitionPenaltyLogitsProcessor": _one_of("prompt_ignore_length"),
    "EncoderRepetitionPenaltyLogitsProcessor": _one_of("encoder_input_ids"),
    "EncoderNoRepeatNGramLogitsProcessor": _encoder_ngrams,
    "PrefixConstrainedLogitsProcessor": _prefix_constrained,
}


def for_row(rule: Any, row: int, batch: int) -> Any:
    """The processor for one row: itself, unless it is one of transformers' that know their row."""
    cut = _BY_ROW.get(type(rule).__name__) if _is_of_transformers(rule) else None
    if cut is None or batch == 1:
        return rule
    own = copy.copy(rule)
    cut(own, row, batch)
    return own


# -- drafts -------------------------------------------------------------------------------------------------


def draft_sampling(config: Any, pads: int, model: ModelConfig) -> Sampling:
    """What a generation config asks for, for drafts: whatever it misses costs accepted tokens at most."""
    names = ["repetition_penalty", "no_repeat_ngram_size"]
    if config.do_sample:
        names += ["temperature", "top_k", "top_p", "min_p", "typical_p"]
    found = {name: value for name in names if (value := getattr(config, name, None)) is not None}
    ends = config.eos_token_id
    found |= {
        "temperature": found.get("temperature", 1.0 if config.do_sample else 0.0),
        "min_length": max(0, (config.min_length or 0) - pads),
        "min_tokens": config.min_new_tokens or 0,
        "eos_token_ids": [ends] if isinstance(ends, int) else list(ends or ()),
        "bad_words": config.bad_words_ids or (),
        "suppress_tokens": [t for t in config.suppress_tokens or () if t < model.vocab_size],
        "begin_suppress_tokens": [t for t in config.begin_suppress_tokens or () if t < model.vocab_size],
    }
    try:
        return Sampling(**found)
    except OptionError:  # a value that only transformers allows
        return Sampling(temperature=found["temperature"])
