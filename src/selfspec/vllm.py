"""Look-up drafts in vLLM: its ``method: custom_class`` with ``model: selfspec.vllm.Proposer``.

vLLM imports this by its name; it is not imported here. ``SELFSPEC_VLLM_DRAFT`` names the drafter, with options
(``suffix`` by default), ``SELFSPEC_VLLM_ROW_PRICE`` what a draft token costs in passes over one. See
docs/exports.md.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from selfspec.drafters.onlooker import Onlooker, Onlookers
from selfspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

DRAFT, ROW_PRICE = "SELFSPEC_VLLM_DRAFT", "SELFSPEC_VLLM_ROW_PRICE"


class Proposer:
    """What vLLM 0.32 asks of a proposer: token ids in, token ids out; it verifies them as chosen deterministically.

    Each request keeps an index of its own, found again by its tokens: vLLM moves requests between rows.
    """

    def __init__(self, vllm_config: Any) -> None:
        settings, model = vllm_config.speculative_config, vllm_config.model_config
        self._most: int = settings.num_speculative_tokens
        self._longest: int = model.max_model_len
        ends = getattr(model.hf_config, "eos_token_id", None)
        try:
            price = float(os.environ.get(ROW_PRICE, "0.02"))
        except ValueError:
            raise OptionError(f"{ROW_PRICE} is {os.environ[ROW_PRICE]!r}; it must be a number") from None
        self._owner = Onlookers(
            os.environ.get(DRAFT, "suffix"),
            model.get_vocab_size(),
            (ends,) if isinstance(ends, int) else tuple(ends or ()),
            price,
        )
        self._rows: dict[int, Onlooker] = {}

    def load_model(self, *_: Any, **__: Any) -> None:
        """Nothing to load; vLLM asks for it on a CPU."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Any,
        token_ids_cpu: Any,
        slot_mappings: Any = None,  # noqa: ARG002 (of attention, which nothing here has)
    ) -> list[list[int]]:
        """Drafts for the rows of a batch: none for a row whose prompt is still being read, or that is full.

        Row i has ``num_tokens_no_spec[i]`` tokens in ``token_ids_cpu[i]``, those that were just sampled among them.
        """
        drafts: list[list[int]] = []
        before, self._rows = self._rows, {}
        for row, sampled in enumerate(sampled_token_ids):
            count = int(num_tokens_no_spec[row])
            tokens = token_ids_cpu[row, :count]
            if not sampled or count >= self._longest:
                drafts.append([])
                continue
            text = self._rows[row] = self._found(before, row, tokens)
            drafts.append(text.draft(tokens, min(self._most, self._longest - count)))
        for text in before.values():
            text.close()
        return drafts

    def _found(self, before: dict[int, Onlooker], row: int, tokens: Any) -> Onlooker:
        """The text of these tokens: most likely in its row, else in another one, else new."""
        for other in (row, *before):
            if other in before and before[other].goes_on(tokens):
                return before.pop(other)
        return self._owner.watch(tokens)
