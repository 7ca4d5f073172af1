"""Look-up drafts for texts that another engine decodes, which shows each as far as it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.context import Text
from selfspec.drafters import create, resolve
from selfspec.errors import OptionError
from selfspec.model.config import ModelConfig
from selfspec.prefixes import shared_length
from selfspec.rounds import Commit
from selfspec.sampling import Chance
from selfspec.types import MAX_GAMMA, Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from selfspec.drafters.base import Host
    from selfspec.model import Tokenizer

_ENDLESS = 1 << 40  # tokens; the other engine knows where a text ends


class Onlookers:
    """The drafters that run no model, for any number of texts of one vocabulary.

    Parameters
    ----------
    draft
        ``suffix``, ``ngram`` or a chain of such, with options: ``suffix:corpus=notes.txt``.
    vocab_size, eos
        Of the other engine's model; nothing is drafted past an end of text.
    row_price
        What a draft token costs there, in passes over one: a token is drafted only while it is expected to bring
        well more. (Here it is measured; from outside it cannot be.)
    tokenizer
        For a corpus of texts.

    Raises
    ------
    OptionError
        As `selfspec.drafters.create`, and for a drafter that runs a model or drafts trees.
    """

    def __init__(
        self,
        draft: str,
        vocab_size: int,
        eos: Sequence[int] = (),
        row_price: float = 0.1,
        tokenizer: Tokenizer | None = None,
        **options: Any,
    ) -> None:
        if not row_price >= 0.0:
            raise OptionError(f"row_price is {row_price}; it must be 0 or a positive share of a pass")
        config = ModelConfig("elsewhere", 8, 1, 1, 1, 1, 1, vocab_size, _ENDLESS, eos_token_ids=tuple(eos))
        cls, within = resolve(draft)
        drafter = create(cls, config, within | options)
        if not all(part.is_free for part in drafter.parts):
            raise OptionError(f"draft is {draft!r}, which runs a model; give ngram, suffix, or a chain of them")
        if drafter.most_tokens > drafter.options.gamma:
            raise OptionError(f"draft {draft!r} has siblings; other engines verify chains: leave siblings at 0")
        drafter.bind(_host(tokenizer))
        self.drafter = drafter
        # all that look-up asks of a context is what a row costs
        self.context: Any = SimpleNamespace(
            runtime=SimpleNamespace(costs=SimpleNamespace(price=lambda rows, texts: row_price))  # noqa: ARG005
        )

    def watch(self, tokens: Sequence[int], prediction: Sequence[int] = ()) -> Onlooker:
        """Begin a text; ``prediction`` are tokens that are expected in it."""
        return Onlooker(self, tokens, prediction)


class Onlooker:
    """One text of another engine, its index, and what was drafted for it."""

    def __init__(self, owner: Onlookers, tokens: Sequence[int], prediction: Sequence[int] = ()) -> None:
        self._owner = owner
        self._seen = np.array(tokens, dtype=np.int64)
        self._text = Text(
            0, 0, self._seen.tolist(), _ENDLESS, Sampling(), Chance(0), lambda _: False, prediction=prediction
        )
        self._last: tuple[int, ...] = ()
        self.drafted = self.accepted = 0
        owner.drafter.begin(self._text)

    def goes_on(self, tokens: Sequence[int]) -> bool:
        """Whether ``tokens`` are this text, perhaps with more behind."""
        count = len(self._seen)
        return len(tokens) >= count and bool(np.array_equal(np.asarray(tokens[:count]), self._seen))

    def draft(self, tokens: Sequence[int], most: int = MAX_GAMMA) -> list[int]:
        """What may follow ``tokens``, at most ``most`` of them; they are this text, with what is new."""
        owner, text = self._owner, self._text
        new = tuple(int(token) for token in tokens[len(self._seen) :])
        if new:
            if len(new) > len(self._last) + 1:  # more than a verification adds: a turn of a chat, and no verdict
                self._last = ()
            accepted = shared_length(self._last, new)
            self.drafted += len(self._last)
            self.accepted += accepted
            self._seen = np.array(tokens, dtype=np.int64)
            text.tokens += new
            owner.drafter.observe(text, Commit(0, new, (1,) * len(self._last), accepted, None))
        (made,) = owner.drafter.propose(owner.context, [text], [min(most, owner.drafter.options.gamma)])
        self._last = tuple(made.tokens)
        return list(self._last)

    def close(self) -> None:
        """Drop the index."""
        self._owner.drafter.end(self._text)


def _host(tokenizer: Tokenizer | None) -> Host:
    """What an engine would be to such a drafter."""
    made: dict[Hashable, Any] = {}

    def kept(key: Hashable, make: Callable[[], Any]) -> Any:
        if key not in made:
            made[key] = make()
        return made[key]

    host: Any = SimpleNamespace(kept=kept, tokenizer=tokenizer, notify=lambda _line: None, fingerprint="")
    found: Host = host
    return found
