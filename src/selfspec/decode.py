"""The decode loop: draft, verify, commit, until every text has ended. Plain decoding is the loop with γ = 0."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from selfspec.rounds import Commit, Round
from selfspec.types import Array, Distribution, Draft, Verdict
from selfspec.verify import verify_block, verify_chain, verify_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from selfspec.context import Context, Text
    from selfspec.drafters.base import Drafter


def decode(
    context: Context,
    texts: Sequence[Text],
    drafter: Drafter,
    clock: Callable[[], float] = time.perf_counter,
    origin: float | None = None,
) -> Iterator[Round]:
    """Generate ``texts`` to their ends, one `Round` at a time; round 0 is the prefill.

    Times are seconds of ``clock`` since ``origin``, by default the moment of the first step.
    Closing the generator early is safe: nothing outside the context and the drafter holds state.
    """
    if origin is None:
        origin = clock()
    before = context.row_layers
    began: list[Text] = []
    try:
        commits = []
        for text in texts:
            commits.append(_first_token(context, text))
            if not text.finish_reason:
                drafter.begin(text)
                began.append(text)
        yield _round(0, commits, (0.0, 0.0, clock() - origin), (0.0, context.row_layers - before))
        index = 0
        while active := [text for text in began if not text.finish_reason]:
            index += 1
            yield _turn(context, active, drafter, (index, origin, clock))
    finally:
        for text in began:
            drafter.end(text)


def _first_token(context: Context, text: Text) -> Commit:
    tokens = text.extend((), text.chance.pick(text.law(context.prefill(text))))
    text.cached = len(text.tokens) - 1
    return Commit(text.index, tokens, (), 0, text.finish_reason)


def _turn(
    context: Context, texts: Sequence[Text], drafter: Drafter, timing: tuple[int, float, Callable[[], float]]
) -> Round:
    """One round of all ``texts``; ``timing`` is the round's number, the loop's start and its clock."""
    index, origin, clock = timing
    started, before = clock() - origin, context.row_layers
    gammas = [max(0, min(drafter.options.gamma, text.room())) for text in texts]
    drafts = drafter.propose(context, texts, gammas)
    assert all(len(draft.widths) <= gamma for draft, gamma in zip(drafts, gammas, strict=True))
    drafted, after_draft = clock() - origin, context.row_layers
    logits = context.score(texts, drafts)
    commits = []
    for text, draft, rows in zip(texts, drafts, logits, strict=True):
        verify = _rule(text, draft)
        verdict = verify(draft, _target(text, draft, rows), text.chance, text.ends)
        commits.append(context.commit(text, draft, verdict))
        drafter.observe(text, commits[-1])
    costs = (after_draft - before, context.row_layers - after_draft)
    return _round(index, commits, (started, drafted, clock() - origin), costs)


def _rule(text: Text, draft: Draft) -> Callable[..., Verdict]:
    """The rule that accepts most; chains are judged as a block unless a user's callable would see it."""
    if draft.parents is not None:
        return verify_tree
    return verify_chain if text.sampling.processors else verify_block


def _target(text: Text, draft: Draft, rows: Array) -> Callable[[int], Distribution]:
    """The target's distribution of what follows a row of the draft; computed when asked for."""
    return lambda row: text.law(rows[row], draft.before(row))


def _round(
    index: int, commits: list[Commit], times: tuple[float, float, float], costs: tuple[float, float]
) -> Round:
    return Round(index, tuple(commits), *times, *costs)
