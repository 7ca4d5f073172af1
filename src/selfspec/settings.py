"""What may be asked of the way logits become probabilities, and the prefix that it looks at.

`Sampling` is checked when it is made; `selfspec.processors` and `selfspec.sampling` apply it. Both classes are
part of the vocabulary: import them from ``selfspec.types``.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from selfspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

Array: TypeAlias = Any
Integers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Flags: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"
Processor: TypeAlias = "Callable[[Sequence[int], Array], Array]"
_MOST_BIAS = 1e30  # a logit and this are a number in float32

_PLAIN_TYPES: dict[str, tuple[type, Callable[[Any], Any], str]] = {
    "int": (numbers.Integral, int, "an integer"),
    "float": (numbers.Real, float, "a number"),
    "bool": (bool, bool, "true or false"),
}


def temperatures_of(text: str, name: str = "temperature") -> tuple[float, ...]:
    """Temperatures with commas, as numbers. Raises OptionError for what is none, is negative, or is there twice."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or not all(0.0 <= value < math.inf for value in values) or len({*values}) < len(values):
        raise OptionError(f"{name} is {text!r}; it must be numbers from 0, each once, with commas")
    return values


MOST = 2**63 - 1
"""The largest integer of an option: what is beyond it is a slip."""


def require_types(options: Any) -> None:
    """Raise OptionError where a field annotated int, float or bool (or None) holds something else.

    Numbers of other kinds (NumPy's) become Python's own: options are reported, and a report must be JSON.
    """
    for name, plain, is_optional in _plain_fields(options.__class__):
        value = getattr(options, name)
        if is_optional and value is None:
            continue
        kind, own, wanted = _PLAIN_TYPES[plain]
        # every request asks this of every option of every candidate, and an abstract class takes its time
        if type(value) is not own and (not isinstance(value, kind) or isinstance(value, bool)):
            raise OptionError(f"{name} is {value!r}; it must be {wanted}")
        if kind is numbers.Integral and abs(int(value)) > MOST:
            raise OptionError(f"{name} is a number beyond 2^63; give a smaller one")
        if type(value) not in (int, float, bool):
            object.__setattr__(options, name, own(value))


@cache
def _plain_fields(options: type) -> tuple[tuple[str, str, bool], ...]:
    """Of fields that hold a plain value: name, type, and whether None is allowed."""
    found = []
    for f in fields(options):
        annotation = f.type.__name__ if isinstance(f.type, type) else str(f.type)
        plain, _, optional = annotation.partition(" | ")
        if plain in _PLAIN_TYPES:
            found.append((f.name, plain, optional == "None"))
    return tuple(found)


def require_least(options: Any, **least: int) -> None:
    """Raise OptionError for a field that is smaller than it may be; None is left alone."""
    for name, smallest in least.items():
        value = getattr(options, name)
        if value is not None and value < smallest:
            raise OptionError(f"{name} is {value}; it must be at least {smallest}")


def require_defaults(options: Any, names: Iterable[str], why: str) -> None:
    """Raise OptionError, which ends with ``why``, for the first of these fields that is not at its default."""
    for name in names:
        if (value := getattr(options, name)) != getattr(type(options), name):
            raise OptionError(f"{name} is {value!r}, {why}")


@dataclass(frozen=True, eq=False)
class Prefix:
    """The tokens before one row: a text, and the draft tokens that stand between it and the row.

    The first ``prompt_length`` tokens of ``text`` are the prompt, all others are new. The tokens are put
    together when something looks at them, so a row without processors costs nothing; ``text`` grows later, so
    a prefix is read at once or not at all.
    """

    text: Sequence[int]
    prompt_length: int
    draft: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.text) + len(self.draft)

    @property
    def num_new(self) -> int:
        """How many tokens follow the prompt; also the index, from 0, of the new token that comes next."""
        return len(self) - self.prompt_length

    def since(self, start: int) -> list[int]:
        """Those from index ``start`` on."""
        return [*self.text[start:], *self.draft[max(0, start - len(self.text)) :]]

    @cached_property
    def tokens(self) -> tuple[int, ...]:
        """All of them."""
        return (*self.text, *self.draft)

    @cached_property
    def ids(self) -> Integers:
        """All of them, as an array [n]: made once for all processors of a row."""
        return np.asarray(self.tokens, dtype=np.int64)


class Constraint(Protocol):
    """Says which tokens may follow, of one text (`selfspec.grammar`)."""

    @property
    def for_drafts(self) -> ConstraintAhead:
        """The same for drafters, which may ask about any place, again and again."""

    def allowed(self, prefix: Prefix) -> Flags | None:
        """Which tokens [V] may follow ``prefix``; None for all. Each place is asked about once, in order."""


class ConstraintAhead(Constraint, Protocol):
    """What drafters ask beside that."""

    def legal(self, prefix: Prefix, tokens: Sequence[int]) -> int:
        """How many of ``tokens`` may follow ``prefix``, one after the other."""

    def forced(self, prefix: Prefix) -> list[int]:
        """The tokens that must follow ``prefix``: nothing else may stand there."""


# field -> whether a value is allowed, and what is; NaN passes none of them
_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (lambda v: 0.0 <= v < math.inf, "0 (greedy) or a positive number"),
    "top_k": (lambda v: v >= 0, "0 (off) or a positive number of tokens"),
    "top_p": (lambda v: 0.0 < v <= 1.0, "above 0 and at most 1 (1 is off)"),
    "min_p": (lambda v: 0.0 <= v <= 1.0, "0 (off) to 1"),
    "typical_p": (lambda v: 0.0 < v <= 1.0, "above 0 and at most 1 (1 is off)"),
    "repetition_penalty": (lambda v: 1e-6 <= v <= 1e6, "a positive number, 1e-6 to 1e6 (1 is off)"),
    "presence_penalty": (lambda v: -2.0 <= v <= 2.0, "-2 to 2 (0 is off)"),
    "frequency_penalty": (lambda v: -2.0 <= v <= 2.0, "-2 to 2 (0 is off)"),
    "no_repeat_ngram_size": (lambda v: v >= 0, "0 (off) or a positive number of tokens"),
    "min_length": (lambda v: v >= 0, "0 (off) or a positive number of tokens"),
    "min_tokens": (lambda v: v >= 0, "0 (off) or a positive number of tokens"),
}


@dataclass(frozen=True)
class Sampling:
    """How logits become probabilities; the defaults are greedy decoding and change nothing.

    Everything is applied row by row, in the order of transformers' ``generate``: ``logit_bias`` (token ->
    number to add), ``repetition_penalty`` (prompt and new tokens), ``frequency_penalty`` and
    ``presence_penalty`` (new tokens only, as OpenAI and vLLM), ``no_repeat_ngram_size``, ``bad_words`` (token
    sequences), ``min_length`` (prompt included) and ``min_tokens`` (new), ``forced_tokens`` (index of the new
    token -> token), ``suppress_tokens``, ``begin_suppress_tokens`` (first new token only), then
    ``processors``: callables ``(prefix tokens, logits [V]) -> logits [V]``, and a ``constraint`` of this one text,
    both with exactly the calls that plain decoding would make. ``temperature`` 0 takes the largest logit of what
    is left; otherwise follow ``temperature``, ``top_k`` (0 is off), ``top_p``, ``min_p`` and ``typical_p``.

    ``coupled`` draws with noise that is fixed by seed, position and token (`selfspec.sampling.Chance.realise`):
    the text is then the same, token for token, whatever drafts it. It changes nothing in greedy decoding.

    ``eos_token_ids`` are the model's: ``min_length`` and ``min_tokens`` keep them out, ``bad_words`` cannot.
    Mappings may also be given as pairs; what is stored is tuples, so a `Sampling` is hashable.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    processors: Sequence[Processor] = ()
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    min_length: int = 0
    min_tokens: int = 0
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] = ()
    bad_words: Sequence[Sequence[int]] = ()
    forced_tokens: Mapping[int, int] | Sequence[tuple[int, int]] = ()
    suppress_tokens: Sequence[int] = ()
    begin_suppress_tokens: Sequence[int] = ()
    eos_token_ids: Sequence[int] = ()
    coupled: bool = False
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        require_types(self)
        for name, (is_allowed, allowed) in _RANGES.items():
            if not is_allowed(value := getattr(self, name)):
                raise OptionError(f"{name} is {value}; it must be {allowed}")
        for name in ("suppress_tokens", "begin_suppress_tokens", "eos_token_ids"):
            self._store(name, token_ids(name, getattr(self, name)))
        self._store("bad_words", tuple(_word(word) for word in listed("bad_words", self.bad_words)))
        self._store("logit_bias", _pairs("logit_bias", self.logit_bias, _bias))
        self._store("forced_tokens", _pairs("forced_tokens", self.forced_tokens, _integer))
        self._store("processors", tuple(listed("processors", self.processors)))
        if wrong := [p for p in self.processors if not callable(p)]:
            raise OptionError(f"processors has {wrong[0]!r}; it must be a callable (tokens, logits) -> logits")

    def _store(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def is_greedy(self) -> bool:
        """Whether the distribution is the one-hot of the largest logit."""
        return self.temperature == 0.0

    @cached_property
    def changed(self) -> frozenset[str]:
        """The fields that differ from their defaults."""
        return frozenset(f.name for f in fields(self) if getattr(self, f.name) != f.default)

    @cached_property
    def for_drafts(self) -> Sampling:
        """What a drafter that samples uses: everything but the callables, and its own form of the constraint.

        They may keep state, so they must be called for the rows of plain decoding only. A draft may come from
        any law as long as verification knows it, so leaving them out costs accepted tokens at most.
        """
        if not self.is_stateful:
            return self
        return replace(self, processors=(), constraint=self.constraint and self.constraint.for_drafts)

    @property
    def is_stateful(self) -> bool:
        """Whether something must see exactly the calls of plain decoding."""
        return bool(self.processors) or self.constraint is not None

    @cached_property
    def likeliest(self) -> Sampling:
        """What takes the likeliest token; that of coupled sampling depends on its noise, and stays."""
        return self if self.is_greedy or self.coupled else replace(self, temperature=0.0)

    @cached_property
    def arrays(self) -> Mapping[str, Integers]:
        """Token ids by field, for indexing; of the bad words those that are a single token."""
        ids: dict[str, Iterable[int]] = {
            "logit_bias": dict(self.logit_bias),
            "bad_words": [word[0] for word in self._words if len(word) == 1],
            "suppress_tokens": self.suppress_tokens,
            "begin_suppress_tokens": self.begin_suppress_tokens,
            "eos_token_ids": self.eos_token_ids,
        }
        return {name: np.asarray(list(tokens), dtype=np.int64) for name, tokens in ids.items()}

    @cached_property
    def biases(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """What ``logit_bias`` adds to the tokens of ``arrays["logit_bias"]``."""
        return np.asarray(list(dict(self.logit_bias).values()), dtype=np.float64)

    @cached_property
    def forced(self) -> Mapping[int, int]:
        """``forced_tokens`` as a dictionary."""
        return dict(self.forced_tokens)

    @cached_property
    def long_words(self) -> Mapping[int, Sequence[tuple[int, ...]]]:
        """The bad words of several tokens, by their last token but one."""
        found: dict[int, list[tuple[int, ...]]] = {}
        for word in self._words:
            if len(word) > 1:
                found.setdefault(word[-2], []).append(word)
        return found

    @property
    def _words(self) -> list[tuple[int, ...]]:
        """The bad words without those that are an end-of-text token, as transformers filters them."""
        ends = {(token,) for token in self.eos_token_ids}
        return [tuple(word) for word in self.bad_words if word not in ends]

    def require_vocabulary(self, size: int) -> None:
        """Raise OptionError if a token that is named here is not in a vocabulary of ``size``."""
        for name, token in self._named_tokens():
            if token >= size:
                raise OptionError(f"{name} has token {token}; this model's tokens are 0 to {size - 1}")

    def _named_tokens(self) -> Iterator[tuple[str, int]]:
        yield from (("logit_bias", token) for token in dict(self.logit_bias))
        yield from (("bad_words", token) for word in self.bad_words for token in word)
        yield from (("forced_tokens", token) for token in self.forced.values())
        yield from (("suppress_tokens", token) for token in self.suppress_tokens)
        yield from (("begin_suppress_tokens", token) for token in self.begin_suppress_tokens)


# -- checked forms of the fields --------------------------------------------------------------------------


def listed(name: str, values: Any) -> list[Any]:
    """The entries of a list, tuple, array or the like; raises OptionError for anything else."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Collection):
        # an iterator would be empty the second time
        raise OptionError(f"{name} is {values!r}; it must be a list")
    return list(values)


def _integer(name: str, value: Any) -> int:
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise OptionError(f"{name} has {value!r}; it must be 0 or a positive integer")
    return number


def token_ids(name: str, values: Any) -> tuple[int, ...]:
    """The token ids of a list; raises OptionError, with the ``name`` of the option, for anything else."""
    return tuple(_integer(name, value) for value in listed(name, values))


def _word(word: Any) -> tuple[int, ...]:
    if not (tokens := token_ids("bad_words", word)):
        raise OptionError("bad_words has an empty word; leave it out")
    return tokens


def _bias(name: str, value: Any) -> float:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not (abs(value) <= _MOST_BIAS or value == -math.inf):
        raise OptionError(
            f"{name} has the bias {value!r}; it must be a number of at most 1e30, such as -100 or 2.5 (-inf bans)"
        )
    return float(value)


def _pairs(name: str, values: Any, checked: Callable[[str, Any], Any]) -> tuple[tuple[int, Any], ...]:
    """A mapping, or its pairs, as pairs in ascending order; twice the same key is a mistake."""
    found: dict[int, Any] = {}
    for pair in listed(name, values.items() if isinstance(values, Mapping) else values):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise OptionError(f"{name} has {pair!r}; it must be a mapping, or a list of pairs")
        key = _integer(name, pair[0])
        if key in found:
            raise OptionError(f"{name} has {key} twice; give it once")
        found[key] = checked(name, pair[1])
    return tuple(sorted(found.items()))
