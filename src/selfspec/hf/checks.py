"""What a call of ``generate`` asks for that has no place here, refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from selfspec.errors import OptionError, PromptError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

# setting of a generation config -> what is asked for by it, and the values that ask for nothing
_OTHER_WAYS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "num_beams": ("beam search", (1,)),
    "num_beam_groups": ("group beam search", (1,)),
    "constraints": ("constrained beam search", ()),
    "force_words_ids": ("constrained beam search", ()),
    "penalty_alpha": ("contrastive search", (0, 0.0)),
    "dola_layers": ("DoLa, which mixes the logits of layers", ()),
    "prompt_lookup_num_tokens": ("transformers' prompt look-up (here: draft='ngram')", ()),
    "assistant_early_exit": ("transformers' early exit (here: draft='early_exit')", ()),
    "use_mtp": ("transformers' multi-token prediction", (False,)),
    "guidance_scale": ("classifier-free guidance, which runs the model itself", (1, 1.0)),
    "output_attentions": ("attention weights, which are not kept", (False,)),
    "output_hidden_states": ("hidden states, which are not kept", (False,)),
    "use_cache": ("decoding without a cache", (True,)),
    "cache_implementation": ("a cache of another kind", ("dynamic", "static", "hybrid")),
}
_KNOWN = (
    "attention_mask",
    "position_ids",
    "cache",
    "past_key_values",
    "use_cache",
    "logits_to_keep",
    "token_type_ids",
)


def check_call(config: Any, caller: Mapping[str, Any], given: Mapping[str, Any], input_ids: Tensor) -> None:
    """Raise OptionError for what is not greedy decoding or sampling from ``input_ids`` [B, n] alone.

    ``caller`` are the arguments of ``generate`` that it drops, ``given`` those for the model.
    """
    if caller.get("assistant_model") is not None:
        raise _refused("assistant_model", "assisted decoding (here: draft='draft_model:model=PATH')")
    for name, (what, allowed) in _OTHER_WAYS.items():
        value = getattr(config, name, None)
        if value is not None and value not in allowed:
            raise _refused(f"{name}={value!r}", what)
    if caller.get("synced_gpus"):
        raise _refused("synced_gpus", "steps in time with other processes")
    if unknown := [name for name, value in given.items() if name not in _KNOWN and value is not None]:
        raise _refused(unknown[0], "more than text in token ids, or an option that no drafter has")
    if input_ids.numel() == 0:
        raise _refused("inputs_embeds", "a prompt of embeddings; give input_ids")
    for name in ("cache", "past_key_values"):
        cache = given.get(name)
        if cache is not None and (getattr(cache, "_is_user_defined", False) or cache.get_seq_length() > 0):
            raise _refused(name, "a cache of the caller's; this loop has its own")
    types = given.get("token_type_ids")
    if types is not None and bool((types != 0).any()):
        raise _refused("token_type_ids", "tokens that are no text")
    _check_positions(given.get("position_ids"), given.get("attention_mask"), input_ids)


def _refused(name: str, what: str) -> OptionError:
    return OptionError(
        f"generate was given {name}, which asks for {what}; selfspec.hf.generate drafts for greedy decoding and "
        "sampling of texts: leave it out, or leave out custom_generate"
    )


def _check_positions(positions: Tensor | None, mask: Tensor | None, input_ids: Tensor) -> None:
    """The positions must be those that transformers itself derives from the attention mask."""
    if positions is None:
        return
    seen = torch.ones_like(input_ids) if mask is None else mask.to(input_ids.device)
    own = seen.cumsum(-1) - 1
    fits = positions.ndim == 2 and positions.shape[-1] == own.shape[-1]
    if not fits or bool(((positions.to(own.device) != own) & (seen != 0)).any()):
        raise _refused("position_ids", "other positions than those of the attention mask")


def prompts_of(input_ids: Tensor, mask: Tensor | None) -> list[tuple[int, list[int]]]:
    """For each row of ``input_ids`` [B, n] the number of pads on its left, and its tokens.

    Raises PromptError where the attention mask leaves out anything else.
    """
    if mask is None:
        return [(0, ids) for ids in input_ids.tolist()]
    if mask.shape != input_ids.shape:
        raise PromptError(
            f"attention_mask has shape {tuple(mask.shape)}; that of input_ids is {tuple(input_ids.shape)}"
        )
    found = []
    for row, (ids, seen) in enumerate(zip(input_ids.tolist(), (mask != 0).tolist(), strict=True)):
        pads = seen.index(True) if True in seen else len(ids)
        if not all(seen[pads:]) or pads == len(ids):
            raise PromptError(
                f"attention_mask of row {row} leaves out more than padding on the left; pad on the left "
                "(tokenizer.padding_side = 'left')"
            )
        found.append((pads, ids[pads:]))
    return found
