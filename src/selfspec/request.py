"""What is asked of one generation, and what comes back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from selfspec.errors import OptionError
from selfspec.grammar import KINDS, require_one
from selfspec.model.chat import TemplateInputs, Tool
from selfspec.model.textstream import check_stop
from selfspec.model.tools import schemas_of
from selfspec.rounds import Score, Stats
from selfspec.settings import listed, token_ids
from selfspec.types import FinishReason, Processor, Sampling, require_types

if TYPE_CHECKING:
    from selfspec.drafters.base import Drafter
    from selfspec.model import Tokenizer
    from selfspec.model.config import ModelConfig


@dataclass(frozen=True)
class Request:
    """What may be asked of one generation; the command line takes its defaults from here.

    ``chat`` None wraps a text prompt in the model's chat template if it has one. ``tools``, ``documents``,
    ``chat_template``, ``chat_options`` and ``continue_final_message`` are for that template (see `TemplateInputs`).
    ``seed`` None draws one.
    ``coupled`` makes a sampled text the same, token for token, with and without a draft (see `Sampling`).
    ``ignore_eos`` goes on past end-of-text tokens. ``draft`` None uses the drafter that the engine was loaded
    with. ``prediction`` is text, or token ids, that the answer is expected to hold, such as the file that it is to
    change: drafters that copy draft from it, and nothing else sees it. ``logprobs`` reports of every new token what
    the model thought of it before anything below changed that (`Score`), with so many likeliest tokens; None says
    nothing.
    ``prompt_logprobs`` does so of the prompt, from its second token on. At most one of ``json_schema``, ``regex``
    (of the Rust crate) and ``grammar`` (Lark, as llguidance reads it) is what the answer must be, its end included
    (`selfspec.grammar`).

    What shapes the probabilities, and in which order, is described by `Sampling`; the names are those of
    transformers, OpenAI and vLLM. Here a ``bad_words`` entry may also be a text, which is banned with and
    without a space before it, and ``forced_eos_token_id`` must be the last token when the text would end by
    its length.
    """

    system: str | None = None
    chat: bool | None = None
    tools: Sequence[Tool] | None = TemplateInputs.tools
    documents: Sequence[Mapping[str, Any]] | None = TemplateInputs.documents
    chat_template: str | None = TemplateInputs.chat_template
    chat_options: Mapping[str, Any] | Sequence[tuple[str, Any]] = ()
    continue_final_message: bool = TemplateInputs.continue_final_message
    max_new_tokens: int = 256
    temperature: float = Sampling.temperature
    top_k: int = Sampling.top_k
    top_p: float = Sampling.top_p
    seed: int | None = None
    coupled: bool = Sampling.coupled
    stop: str | Sequence[str] = ()
    ignore_eos: bool = False
    processors: Sequence[Processor] = Sampling.processors
    min_p: float = Sampling.min_p
    typical_p: float = Sampling.typical_p
    repetition_penalty: float = Sampling.repetition_penalty
    presence_penalty: float = Sampling.presence_penalty
    frequency_penalty: float = Sampling.frequency_penalty
    no_repeat_ngram_size: int = Sampling.no_repeat_ngram_size
    min_tokens: int = Sampling.min_tokens
    min_length: int = Sampling.min_length
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] = Sampling.logit_bias
    bad_words: str | Sequence[str | Sequence[int]] = Sampling.bad_words
    suppress_tokens: Sequence[int] = Sampling.suppress_tokens
    begin_suppress_tokens: Sequence[int] = Sampling.begin_suppress_tokens
    forced_tokens: Mapping[int, int] | Sequence[tuple[int, int]] = Sampling.forced_tokens
    forced_eos_token_id: int | None = None
    draft: str | Drafter | None = None
    prediction: str | Sequence[int] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    json_schema: Mapping[str, Any] | bool | str | None = None
    regex: str | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        require_types(self)
        for name in ("system", "chat_template"):
            if not isinstance(getattr(self, name), str | None):
                raise OptionError(f"{name} is {getattr(self, name)!r}; it must be a text")
        if self.tools is not None:
            schemas_of(self.tools)  # checks them
        if self.max_new_tokens < 1:
            raise OptionError(f"max_new_tokens is {self.max_new_tokens}; it must be at least 1")
        if self.min_tokens > self.max_new_tokens:
            raise OptionError(
                f"min_tokens is {self.min_tokens}; it must be at most max_new_tokens ({self.max_new_tokens})"
            )
        if self.seed is not None and self.seed < 0:
            raise OptionError(f"seed is {self.seed}; it must be 0 or a positive integer")
        for name in ("logprobs", "prompt_logprobs"):
            if (count := getattr(self, name)) is not None and count < 0:
                raise OptionError(f"{name} is {count}; it must be 0 or a positive number of likeliest tokens")
        check_stop(self.stops)
        self._check_prediction()
        if (asked := self.structure) and self.ignore_eos:
            raise OptionError(f"ignore_eos goes on past the end, and {asked[0]} says where that is; leave one out")
        self.template_inputs  # noqa: B018 - checks them
        self._sampling(bad_words=[word for word in self._words if not isinstance(word, str)])  # checks the values

    @property
    def template_inputs(self) -> TemplateInputs:
        """What the chat template is given beside the messages."""
        try:
            options: dict[Any, Any] = dict(self.chat_options)
        except (TypeError, ValueError):
            options = {None: None}
        if not all(isinstance(name, str) for name in options):
            raise OptionError(
                f"chat_options is {self.chat_options!r}; it must be a mapping from names to values, such as "
                "{'enable_thinking': False}"
            )
        return TemplateInputs(self.tools, self.documents, self.chat_template, options, self.continue_final_message)

    @property
    def structure(self) -> tuple[str, Any] | None:
        """The kind of grammar that the answer obeys, and what it says; None where any text will do."""
        return require_one({kind: getattr(self, kind) for kind in KINDS})

    @property
    def stops(self) -> Sequence[str]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else self.stop

    def _check_prediction(self) -> None:
        if self.prediction is None:
            return
        if isinstance(self.prediction, bytes | Mapping) or not isinstance(self.prediction, Collection):
            raise OptionError(f"prediction is a {type(self.prediction).__name__}; it must be text or token ids")
        if len(self.prediction) == 0:
            raise OptionError("prediction is empty; give the expected text, or leave it out")

    def predicted(self, config: ModelConfig, tokenizer: Tokenizer | None) -> tuple[int, ...]:
        """The tokens of the prediction. Raises OptionError where they are not of this model's vocabulary."""
        if self.prediction is None:
            return ()
        if not isinstance(self.prediction, str):
            ids = token_ids("prediction", self.prediction)
        elif tokenizer is None:
            raise OptionError("prediction is a text, but there is no tokenizer; give its token ids")
        else:
            ids = tuple(tokenizer.encode(self.prediction, add_special_tokens=False))
        if wrong := [token for token in ids if token >= config.vocab_size]:
            raise OptionError(
                f"prediction has token {wrong[0]}; this model's tokens are 0 to {config.vocab_size - 1}"
            )
        return ids

    def limit(self, config: ModelConfig, prompt_length: int) -> int:
        """The most tokens that the text may have, prompt included."""
        return min(prompt_length + self.max_new_tokens, config.context_length)

    def sampling(self, config: ModelConfig, tokenizer: Tokenizer | None, prompt_length: int) -> Sampling:
        """How logits become probabilities, in the tokens of a model.

        Raises
        ------
        OptionError
            A token is not in the vocabulary, or a bad word is a text and there is no tokenizer.
        """
        forced = dict(self.forced_tokens)
        if self.forced_eos_token_id is not None:
            last = self.limit(config, prompt_length) - prompt_length - 1
            if last in forced:
                raise OptionError(
                    f"forced_tokens has {last}, the last token, which is that of forced_eos_token_id; give one"
                )
            forced[last] = self.forced_eos_token_id
        made = self._sampling(
            forced_tokens=forced,
            bad_words=[tokens for word in self._words for tokens in _word_tokens(word, tokenizer)],
            eos_token_ids=config.eos_token_ids,
        )
        made.require_vocabulary(config.vocab_size)
        return made

    @property
    def _words(self) -> Sequence[str | Sequence[int]]:
        return (self.bad_words,) if isinstance(self.bad_words, str) else listed("bad_words", self.bad_words)

    def _sampling(self, **changes: Any) -> Sampling:
        shared = {f.name: getattr(self, f.name) for f in fields(Sampling) if hasattr(self, f.name)}
        return Sampling(**(shared | changes))


def _word_tokens(word: str | Sequence[int], tokenizer: Tokenizer | None) -> list[Sequence[int]]:
    """The token sequences of a bad word; a text has two, at the start of a line and after a space."""
    if not isinstance(word, str):
        return [word]
    if tokenizer is None:
        raise OptionError(f"bad_words has the text {word!r}, but there is no tokenizer; give its token ids")
    if not (bare := word.strip()):
        raise OptionError(f"bad_words has {word!r}; it must be a text that is not blank, or token ids")
    spellings = (tokenizer.encode(text, add_special_tokens=False) for text in (bare, f" {bare}"))
    return [tokens for tokens in spellings if tokens]


Source: TypeAlias = Literal["draft", "bonus", "plain"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """One new token.

    ``text`` is what is final with it, often empty while characters or stop strings are held back;
    ``source`` is who wrote it: an accepted draft, the target after a draft (the bonus token of a round), or the
    target in a round, or a prefill, without a draft. ``score`` is there where the request asks for ``logprobs``.
    """

    text: str
    token: int
    source: Source
    score: Score | None = None


@dataclass(frozen=True)
class Completion:
    """A finished generation and how it came about.

    ``kv_bytes`` is what its slot of the cache holds, ``state_bytes`` the part of it that recurrent layers hold, and
    ``rollback_bytes`` what of that serves only to go back to before a rejected draft. ``draft_weight_bytes`` and
    ``draft_kv_bytes`` are what the drafter brought (`selfspec.drafters.base.Extra`). ``explanation`` is what the
    drafter says of its decisions: of `auto`, what it knew of each candidate, how often it chose it, and whether
    speculation was off; None for drafters that decide nothing. ``scores`` has one entry for each token where the
    request asks for ``logprobs``, ``prompt_scores`` one for each token of the prompt but the first where it asks
    for ``prompt_logprobs``. ``cached_tokens`` of the prompt were in the cache already, from an earlier text.
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    finish_reason: FinishReason
    stats: Stats
    seed: int
    model: str
    runtime: str
    runs_on: str
    precision: str
    draft: str
    plan: str
    gamma: int
    kv_bytes: int
    state_bytes: int = 0
    rollback_bytes: int = 0
    buffers: Mapping[str, int] = field(default_factory=dict)
    draft_weight_bytes: int = 0
    draft_kv_bytes: int = 0
    explanation: Mapping[str, Any] | None = None
    scores: tuple[Score, ...] | None = None
    prompt_scores: tuple[Score, ...] | None = None
    cached_tokens: int = 0

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; speeds are new tokens per second of wall time."""
        stats = self.stats
        return {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "finish_reason": self.finish_reason,
            "rounds": stats.rounds,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "acceptance_rate": stats.acceptance_rate,
            "mean_accepted_length": stats.mean_accepted_length,
            "accepted_prediction_tokens": stats.accepted_prediction_tokens,
            "rejected_prediction_tokens": stats.rejected_prediction_tokens,
            "drafted_per_position": stats.drafted_per_position,
            "accepted_per_position": stats.accepted_per_position,
            "tokens_per_second": stats.tokens_per_second,
            "decode_tokens_per_second": stats.decode_tokens_per_second,
            "ttft_seconds": stats.ttft_seconds,
            "seconds": stats.seconds,
            "draft_seconds": stats.draft_seconds,
            "draft_row_layers": stats.draft_row_layers,
            "verify_row_layers": stats.verify_row_layers,
            "prefill_row_layers": stats.prefill_row_layers,
            "model": self.model,
            "runtime": self.runtime,
            "runs_on": self.runs_on,
            "precision": self.precision,
            "draft": self.draft,
            "plan": self.plan,
            "gamma": self.gamma,
            "seed": self.seed,
            "kv_bytes": self.kv_bytes,
            "state_bytes": self.state_bytes,
            "rollback_bytes": self.rollback_bytes,
            "buffers": dict(self.buffers),
            "draft_weight_bytes": self.draft_weight_bytes,
            "draft_kv_bytes": self.draft_kv_bytes,
            **_listed("logprobs", self.scores),
            **_listed("prompt_logprobs", self.prompt_scores),
        }


def _listed(name: str, scores: Sequence[Score] | None) -> dict[str, Any]:
    return {} if scores is None else {name: [score._asdict() for score in scores]}
