"""Which tokens a draft may use: those that the target generates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from selfspec.errors import OptionError

if TYPE_CHECKING:
    from selfspec.train.data import Data

Integers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

_FOLDS = 5


def draft_vocabulary(data: Data, size: int) -> tuple[Integers, float]:
    """The tokens that a draft may use, chosen from what the target generates (VocabTrim, arXiv 2506.22694).

    End-of-text and other special tokens are always among them. The others are those most frequent in the answers;
    among equals those most frequent in the prompts, then lower ids, which byte-pair merges give to the frequent.
    Drafts stay exact whatever is left out: such tokens have no mass in the draft (FR-Spec, arXiv 2502.14856).

    Parameters
    ----------
    data
        Texts of the target.
    size
        How many tokens; all of them if the model has no more.

    Returns
    -------
    ids, coverage
        Ascending ids, int64 [size], and the share of the tokens of answers, 0 to 1, that a vocabulary of this size
        holds if it is chosen from the answers to *other* prompts (in turn four fifths choose, and the last fifth is
        counted). Answers that chose would look better covered than those to come: rare tokens are in their own.

    Raises
    ------
    OptionError
        ``size`` has no room for the special tokens.
    """
    always = sorted({*data.provenance["eos_token_ids"], *data.provenance["special_ids"]})
    least = max(1, len(always))
    if size < least:
        raise OptionError(f"a draft vocabulary of {size} tokens is too small; special tokens alone are {least}")
    answers, prompts = _counts(data)
    return np.sort(_best(answers.sum(0), prompts.sum(0), always, size)), _coverage(answers, prompts, always, size)


def _counts(data: Data) -> tuple[Integers, Integers]:
    """How often each token is in answers and in prompts, by parts [parts, V] that share no prompt."""
    sources = np.unique(np.concatenate([shard.sources for shard in data.shards]))
    answers, prompts = (np.zeros((min(_FOLDS, len(sources)), data.vocab_size), np.int64) for _ in range(2))
    for text in data:
        part = int(np.searchsorted(sources, text.source)) % len(answers)
        answers[part] += np.bincount(text.answer, minlength=data.vocab_size)
        prompts[part] += np.bincount(text.prompt, minlength=data.vocab_size)
    return answers, prompts


def _coverage(answers: Integers, prompts: Integers, always: list[int], size: int) -> float:
    covered = 0
    for part in range(len(answers)):
        others = [other for other in range(len(answers)) if other != part] or [part]
        chosen = _best(answers[others].sum(0), prompts[others].sum(0), always, size)
        covered += int(answers[part][chosen].sum())
    return covered / int(answers.sum())


def _best(answers: Integers, prompts: Integers, always: list[int], size: int) -> Integers:
    is_other = np.ones(len(answers), bool)
    is_other[always] = False
    return np.lexsort((np.arange(len(answers)), -prompts, -answers, is_other))[:size]
