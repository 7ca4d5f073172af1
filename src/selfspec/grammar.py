"""Texts that obey a grammar: a JSON schema, a regular expression, or a context-free grammar in Lark's notation.

The grammar itself is llguidance's (an Earley parser over a lexer of derivatives; Moskal et al., "Making Structured
Outputs Go Brrr", 2025); it says which tokens may follow. Needs the extra ``grammar``.

Of a text's two matchers one belongs to the target: it goes forward only, token by token as they are committed, so
it sees exactly the calls of plain decoding. Drafters have another one, which goes wherever a draft does and back.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.errors import ConstraintError, OptionError
from selfspec.model.reading import one_line
from selfspec.model.token_bytes import token_bytes
from selfspec.prefixes import shared_length

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.model.config import ModelConfig
    from selfspec.model.tokenizer import Tokenizer
    from selfspec.settings import Flags, Prefix

KINDS = ("json_schema", "regex", "grammar")
MOST_CHARACTERS = 1 << 18
_MOST_SYMBOLS = 20_000  # of a compiled grammar: schemas that multiply would take half a minute
_KEPT = 64  # compiled grammars
_WHITESPACE = r"([ ]|\n[ ]{0,20})"
"""Between the tokens of JSON: none, a space or a line with its indent. Small models would go on for ever."""


def require_one(given: Mapping[str, Any]) -> tuple[str, Any] | None:
    """The one of `KINDS` that is not None, with its name. Raises OptionError for several, and for other types."""
    found = [(kind, given[kind]) for kind in KINDS if given[kind] is not None]
    if len(found) > 1:
        raise OptionError(f"{found[1][0]} and {found[0][0]} are both given; an answer obeys one of them")
    for kind, value in found:
        is_text = isinstance(value, str) and value.strip() != ""
        if not is_text and not (kind == "json_schema" and isinstance(value, Mapping | bool)):
            wanted = "an object, or its JSON text" if kind == "json_schema" else "a text that is not empty"
            raise OptionError(f"{kind} is {one_line(repr(value), 60)}; it must be {wanted}")
    return found[0] if found else None


def schema_options() -> dict[str, Any]:
    """How JSON is written, and that a keyword of a schema which is not enforced is an error."""
    return {"whitespace_pattern": _WHITESPACE, "whitespace_flexible": True, "lenient": False}


def literal_of(tokenizer: Tokenizer, text: str) -> str:
    """A text as Lark spells it; where a special token is in it, as that token."""
    special = {tokenizer.piece(token): token for token in tokenizer.special_ids}
    names = "|".join(re.escape(name) for name in sorted(filter(None, special), key=len, reverse=True))
    parts = re.split(f"({names})", text) if names else [text]
    return " ".join(f"<[{special[part]}]>" if part in special else json.dumps(part) for part in parts if part)


class Grammars:
    """The compiled grammars of one tokenizer; the last few are kept.

    Raises
    ------
    OptionError
        llguidance is not installed, there is no tokenizer, or the model has no end-of-text token.
    """

    def __init__(self, tokenizer: Tokenizer | None, config: ModelConfig) -> None:
        if tokenizer is None:
            raise OptionError("a grammar needs a tokenizer, and this engine has none")
        if not config.eos_token_ids:
            raise OptionError("a grammar needs a model with an end-of-text token, and this one has none")
        try:
            import llguidance
        except ImportError:
            raise OptionError(
                "grammars need llguidance, which is not installed; pip install 'selfspec[grammar]'"
            ) from None
        self._library: Any = llguidance
        self._limits = llguidance.LLParserLimits(verbose_errors=False, max_grammar_size=_MOST_SYMBOLS)
        self._size = config.vocab_size
        self._ends = frozenset(config.eos_token_ids)
        self._tokens = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Vocabulary(tokenizer, config)),
            n_vocab=config.vocab_size,
            eos_token=list(config.eos_token_ids),
        )
        self._kept: OrderedDict[tuple[str, str], Any] = OrderedDict()
        self._lock = Lock()

    def start(self, kind: str, value: Any) -> Grammar:
        """A grammar at the beginning of a text. Raises OptionError, which names the ``kind``, for a wrong one."""
        try:
            source = value if isinstance(value, str) else json.dumps(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise OptionError(f"{kind} is no JSON: {one_line(error, 100)}") from error
        if len(source) > MOST_CHARACTERS:
            raise OptionError(f"{kind} has {len(source)} characters; it may have {MOST_CHARACTERS}")
        key = (kind, source)
        with self._lock:
            matcher = self._kept.pop(key, None)
        matcher = matcher or self._compiled(kind, source)  # which may take a second; others need not wait
        with self._lock:
            self._kept[key] = matcher
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
            return Grammar(matcher.deep_copy(), matcher.deep_copy(), self._size, self._ends)

    def _compiled(self, kind: str, source: str) -> Any:
        make = self._library.LLMatcher
        try:
            if kind == "json_schema":
                spelled = make.grammar_from_json_schema(_checked(source), overrides=schema_options())
            else:
                spelled = (make.grammar_from_regex if kind == "regex" else make.grammar_from_lark)(source)
            wrong = make.validate_grammar(spelled, self._tokens, limits=self._limits)
        except (ValueError, RecursionError) as error:
            wrong = str(error)
        if not wrong:
            matcher = make(self._tokens, spelled, log_level=0, limits=self._limits)
            wrong = matcher.get_error() or _error_of_first_masks(matcher)
        if wrong:
            raise OptionError(f"{kind} cannot be followed: {_said(wrong)}; correct it")
        return matcher


def _said(wrong: str) -> str:
    """What the library found, on one line and without its own names."""
    if "NoExtensionBias" in wrong:
        return "no text is what it asks for"
    return one_line(wrong.replace("<non-verbose/>", ""), 200)


def _error_of_first_masks(matcher: Any) -> str:
    """Why no text can begin; "" if one can. The second copy finds what the first one has used up."""
    for begun in (matcher.deep_copy(), matcher.deep_copy()):
        can_begin = any(begun.compute_bitmask())
        if wrong := begun.get_error() or ("" if can_begin else "no text begins as it asks"):
            return str(wrong)
    return ""


def _checked(schema: str) -> str:
    """A schema as it is, true as the object that allows the same. Raises ValueError where it is no such JSON."""
    found = json.loads(schema)
    if found is False:
        raise ValueError("false allows nothing")
    return "{}" if found is True else schema


class _Vocabulary:
    """A tokenizer as llguidance asks for it: the bytes of each token, and the tokens of bytes."""

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = config.eos_token_ids[0]
        self.bos_token_id = None
        self.tokens = [token_bytes(tokenizer, token) for token in range(config.vocab_size)]
        self.special_token_ids = sorted(token for token in tokenizer.special_ids if token < config.vocab_size)

    def __call__(self, text: bytes | str) -> list[int]:
        whole = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self._tokenizer.encode(whole, add_special_tokens=False)


class Grammar:
    """The grammar of one text, where the target stands: it takes committed tokens, in their order, each once."""

    def __init__(self, matcher: Any, fresh: Any, size: int, ends: frozenset[int]) -> None:
        self._matcher, self._size = matcher, size
        self._ahead = GrammarAhead(fresh, size, ends)
        self._taken = 0

    @property
    def for_drafts(self) -> GrammarAhead:
        """The same grammar for drafters, which try what may never be committed."""
        return self._ahead

    def allowed(self, prefix: Prefix) -> Flags:
        """Which tokens [V] may follow ``prefix``, which goes on from that of the last call."""
        for token in prefix.since(prefix.prompt_length + self._taken):
            self._take(token)
        assert self._taken == prefix.num_new, "a grammar that was asked twice about one place"
        return _flags(self._matcher, self._size)

    def ends(self, token: int) -> bool:
        """Take a token, which is no end-of-text token; True where nothing may follow."""
        self._take(token)
        return bool(self._matcher.is_stopped())

    def _take(self, token: int) -> None:
        if not self._matcher.consume_token(token):
            raise ConstraintError(f"the grammar cannot go on: {one_line(self._matcher.get_error(), 200)}")
        self._taken += 1


class GrammarAhead:
    """The grammar of one text where its drafts stand, anywhere."""

    def __init__(self, matcher: Any, size: int, ends: frozenset[int]) -> None:
        self._matcher, self._size, self._ends = matcher, size, ends
        self._tokens: list[int] = []

    @property
    def for_drafts(self) -> GrammarAhead:
        """Itself."""
        return self

    def allowed(self, prefix: Prefix) -> Flags | None:
        """Which tokens [V] may follow ``prefix``; None after what the grammar forbids, and after the end."""
        new = prefix.since(prefix.prompt_length)
        if not self._goes_to(new) or (new and new[-1] in self._ends):
            return None
        try:
            return _flags(self._matcher, self._size)
        except ConstraintError:  # too complex, perhaps only past a token that will be rejected: the target decides
            return None

    def legal(self, prefix: Prefix, tokens: Sequence[int]) -> int:
        """How many of ``tokens`` may follow ``prefix``, one after the other."""
        if not self._goes_to(prefix.since(prefix.prompt_length)):
            return 0
        return int(self._matcher.validate_tokens(list(tokens)))

    def forced(self, prefix: Prefix) -> list[int]:
        """The tokens that must follow ``prefix``: nothing else may stand there."""
        if not self._goes_to(prefix.since(prefix.prompt_length)) or self._matcher.is_stopped():
            return []
        return list(self._matcher.compute_ff_tokens())

    def _goes_to(self, new: list[int]) -> bool:
        """Stand after the ``new`` tokens; False where the grammar forbids one of them."""
        own = self._tokens
        shared = shared_length(own, new)
        if shared < len(own):
            self._matcher.rollback(len(own) - shared)
            del own[shared:]
        taken = self._matcher.try_consume_tokens(new[shared:]) if len(new) > shared else 0
        own += new[shared : shared + taken]
        return len(own) == len(new)


def _flags(matcher: Any, size: int) -> Flags:
    """The tokens [V] that may come next, as truth values."""
    bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
    if matcher.is_error():
        raise ConstraintError(f"the grammar cannot go on: {one_line(matcher.get_error(), 200)}")
    return np.unpackbits(bits, count=size, bitorder="little").view(np.bool_)
