"""Ways of decoding, by the names of other programs, whose output no draft can be verified against.

A draft token is checked against the law of the next token of one text. What chooses between whole texts, or
by something that is no such law, is refused by name: running it undrafted, or ignoring it, would both mislead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

_BEAMS = (
    "beam search ranks several whole texts by their total probability, and a draft can only be verified against "
    "the next token of one text"
)
_CONTRASTIVE = (
    "contrastive search compares the hidden states of candidates, so there is no law of the next token to verify "
    "a draft against"
)
_LOSSY = "it accepts draft tokens that plain decoding would not have written; verification here is exact"
_SEVERAL = "a generation is one text; give the prompt to batch several times, each with a seed of its own"

_WHY = {
    **dict.fromkeys(
        (
            "num_beams",
            "num_beam_groups",
            "use_beam_search",
            "beam_width",
            "diversity_penalty",
            "length_penalty",
            "early_stopping",
            "constraints",
            "force_words_ids",
        ),
        _BEAMS,
    ),
    **dict.fromkeys(("num_return_sequences", "best_of"), _SEVERAL),
    "penalty_alpha": _CONTRASTIVE,
    "dola_layers": (
        "DoLa takes the difference between the logits of late and early layers, and a verified row has those of "
        "the last layer only"
    ),
    "guidance_scale": (
        "guidance mixes the logits of two prompts, and a draft is verified against the law of one text"
    ),
    **dict.fromkeys(
        (
            "typical_acceptance",
            "posterior_threshold",
            "posterior_alpha",
            "typical_acceptance_sampler_posterior_threshold",
            "typical_acceptance_sampler_posterior_alpha",
            "spec_decoding_acceptance_method",
            "assistant_ensemble_weight",
        ),
        _LOSSY,
    ),
    "assistant_model": "the drafter is draft='draft_model' with draft_model=PATH here",
    "prompt_lookup_num_tokens": "the drafter is draft='ngram' with gamma=N here",
    "assistant_early_exit": "the drafter is draft='early_exit' with exit_layer=K here",
}


def unverifiable() -> tuple[str, ...]:
    """The names."""
    return tuple(_WHY)


def refuse_unverifiable(names: Iterable[str]) -> None:
    """Raise OptionError for the first of ``names`` that asks for what cannot be verified; it says why."""
    for name in names:
        if name in _WHY:
            raise OptionError(f"{name} is not offered: {_WHY[name]}")
