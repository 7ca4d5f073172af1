"""Look-up drafts in llama-cpp-python: any drafter that runs no model as its ``draft_model``.

>>> from llama_cpp import Llama
>>> llm = Llama("model.gguf", draft_model=selfspec.llamacpp.draft("suffix"))

llama-cpp-python decodes and verifies; it is not imported here. See docs/exports.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.drafters.onlooker import Onlooker, Onlookers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.model import Tokenizer

LARGEST_VOCABULARY = 1 << 31


class LlamaDraft:
    """A ``LlamaDraftModel``: called with all tokens so far [n], it gives the tokens that may follow [m], int32.

    ``drafted`` and ``accepted`` count over all texts. ``prediction`` are tokens that the next text is expected to
    hold, ``llm.tokenize(..., add_bos=False)`` of the file that it is to change, say; set it before each answer.
    """

    def __init__(self, owner: Onlookers, prediction: Sequence[int]) -> None:
        self._owner = owner
        self._text: Onlooker | None = None
        self._ended = (0, 0)
        self._predicted: tuple[int, ...] = ()  # in the text that is being written
        self.prediction: Sequence[int] = tuple(prediction)

    def __call__(self, input_ids: Any, /, **_: Any) -> Any:
        """Draft; a text that does not go on from the last one, or has another prediction, begins a new index."""
        text, predicted = self._text, tuple(self.prediction)
        if text is None or predicted != self._predicted or not text.goes_on(input_ids):
            if text is not None:
                self._ended = (self.drafted, self.accepted)
                text.close()
            self._predicted = predicted
            text = self._text = self._owner.watch(input_ids, predicted)
        return np.asarray(text.draft(input_ids), dtype=np.intc)

    @property
    def drafted(self) -> int:
        """Draft tokens whose fate is known."""
        return self._ended[0] + (0 if self._text is None else self._text.drafted)

    @property
    def accepted(self) -> int:
        """Those of them that came."""
        return self._ended[1] + (0 if self._text is None else self._text.accepted)


def draft(
    draft: str = "suffix",
    *,
    prediction: Sequence[int] = (),
    eos: Sequence[int] = (),
    row_price: float = 0.1,
    tokenizer: Tokenizer | None = None,
    **options: Any,
) -> LlamaDraft:
    """A ``draft_model`` for ``llama_cpp.Llama``; parameters as for `Onlookers`, ``options`` are the drafter's.

    Raises OptionError for an unknown drafter or option, and for one that runs a model.
    """
    owner = Onlookers(draft, LARGEST_VOCABULARY, eos, row_price, tokenizer, **options)
    return LlamaDraft(owner, prediction)
