"""The decode loop: draft, verify, commit, until every text has ended. Plain decoding is the loop with γ = 0."""

from __future__ import annotations

import time
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from selfspec.on_device import judged
from selfspec.rounds import Commit, Round
from selfspec.sampling import score
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
    What goes wrong with one text is raised.
    """
    with closing(Loop(context, clock, origin)) as loop:
        yield _checked(loop.add(texts, drafter), texts)
        while loop.texts:
            yield _checked(loop.turn(), texts)


def _checked(round_: Round, texts: Sequence[Text]) -> Round:
    for text in texts:
        if text.error is not None:
            raise text.error
    return round_


class Loop:
    """Texts that are decoded together; each has its own drafter, and they may join while others run.

    A round drafts for the texts of one drafter together, and scores the rows of all drafts in one pass. A text
    leaves when it ends; then its slot is free. What goes wrong with one text (a user's processor that raises,
    constraints that contradict each other) becomes its ``error`` and ends it alone; a drafter's failure ends the
    texts that it was drafting for. Running out of memory is raised: it concerns all of them.

    Times are seconds of ``clock`` since ``origin``, by default now.
    """

    def __init__(
        self, context: Context, clock: Callable[[], float] = time.perf_counter, origin: float | None = None
    ) -> None:
        self._context = context
        self._clock = context.clock = clock
        self._origin = clock() if origin is None else origin
        self._drafters: dict[Text, Drafter] = {}
        self._index = 0

    @property
    def now(self) -> float:
        """Seconds since the origin."""
        return self._clock() - self._origin

    @property
    def texts(self) -> tuple[Text, ...]:
        """Those in flight, in the order in which they joined."""
        return tuple(self._drafters)

    @property
    def free_slots(self) -> list[int]:
        """The slots of the cache that no text in flight has."""
        taken = {text.slot for text in self._drafters}
        return [slot for slot in range(self._context.cache.slots) if slot not in taken]

    def add(self, texts: Sequence[Text], drafter: Drafter) -> Round:
        """Prefill ``texts``, each in a free slot, and give them their first tokens; a `Round` of index 0."""
        context, started, before = self._context, self.now, self._context.row_layers.copy()
        commits: list[Commit] = []
        for text in texts:
            assert text.slot in self.free_slots
            assert text.limit <= context.cache.length
            context.feeds.open(text.slot, drafter.parts, text.cached)
            with _errors_of([text]):
                commit = _first_token(context, text)
                cost = context.row_layers[text.slot] - before[text.slot]
                commits.append(replace(commit, verify_row_layers=cost))
                if not text.is_ended:
                    drafter.begin(text)
                    self._drafters[text] = drafter
            if text not in self._drafters:
                context.feeds.close(text.slot)
        cost = sum(context.row_layers) - sum(before)
        return Round(0, tuple(commits), started, started, self.now, 0.0, cost)

    def turn(self) -> Round:
        """One round of all texts in flight: draft, verify, commit."""
        context, started, before = self._context, self.now, self._context.row_layers.copy()
        context.feeds.forget()
        groups = self._groups()
        drafts = self._propose(groups)
        drafted_at, drafted = self.now, context.row_layers.copy()
        commits: list[Commit] = []
        waits = self._during(groups, drafts)
        try:
            scored = context.score(list(drafts), list(drafts.values())) if drafts else []
        finally:
            verified = context.row_layers.copy()
            for drafter, wait in waits.items():
                with _errors_of(groups[drafter]):
                    wait()
        verdicts = judged(context, drafts, scored)
        if verdicts and (device := context.runtime.on_device):
            drafted_at = max(drafted_at, started + device.drafting())
        costs = [
            (middle - first + ahead - last, last - middle)
            for first, middle, last, ahead in zip(before, drafted, verified, context.row_layers, strict=True)
        ]
        for (text, draft), rows in zip(drafts.items(), scored, strict=True):
            with _errors_of([text]):
                judge = verdicts.get(text) or _judge(text, draft, rows)
                verdict = judge()
                commit = _scored(text, context.commit(text, draft, verdict), rows, verdict)
                draft_cost, verify_cost = costs[text.slot]
                commits.append(replace(commit, draft_row_layers=draft_cost, verify_row_layers=verify_cost))
                self._drafters[text].observe(text, commits[-1])
        self._index += 1
        draft_sum, verify_sum = (sum(parts) for parts in zip(*costs, strict=True))
        ended = self.now
        if drafts and all(draft.hidden is None for draft in drafts.values()):  # else the pass was not a whole one
            rows = sum(len(draft) + 1 for draft in drafts.values())
            context.runtime.costs.observe(rows, ended - drafted_at, has_drafts=rows > len(drafts))
        round_ = Round(self._index, tuple(commits), started, drafted_at, ended, draft_sum, verify_sum)
        for drafter, texts in groups.items():
            with _errors_of(texts):
                drafter.timed(texts, round_)
        for text in self.texts:
            if text.is_ended:
                self._leave(text)
        return round_

    def remove(self, text: Text) -> None:
        """Let go of a text between two rounds; its slot is free then. Nothing to do where it has ended."""
        if text in self._drafters:
            self._leave(text)

    def close(self) -> None:
        """Let go of the texts that have not ended."""
        for text in self.texts:
            self._leave(text)

    def _groups(self) -> dict[Drafter, list[Text]]:
        """The texts of each drafter."""
        groups: dict[Drafter, list[Text]] = {}
        for text, drafter in self._drafters.items():
            groups.setdefault(drafter, []).append(text)
        return groups

    def _propose(self, groups: dict[Drafter, list[Text]]) -> dict[Text, Draft]:
        """A draft for every text, in the order in which they joined."""
        drafts: dict[Text, Draft] = {}
        for drafter, texts in groups.items():
            gammas = [max(0, min(drafter.options.gamma, text.room())) for text in texts]
            with _errors_of(texts):
                found = drafter.propose(self._context, texts, gammas)
                assert all(len(draft.widths) <= gamma for draft, gamma in zip(found, gammas, strict=True))
                drafts |= zip(texts, found, strict=True)
        return {text: drafts[text] for text in self._drafters if text in drafts}

    def _during(
        self, groups: dict[Drafter, list[Text]], drafts: dict[Text, Draft]
    ) -> dict[Drafter, Callable[[], None]]:
        """Let drafters begin what they do during a verification; what waits for it."""
        waits: dict[Drafter, Callable[[], None]] = {}
        for drafter, texts in groups.items():
            own = [text for text in texts if text in drafts]
            with _errors_of(own):
                if own and (wait := drafter.during(self._context, own, [drafts[text] for text in own])):
                    waits[drafter] = wait
        return waits

    def _leave(self, text: Text) -> None:
        drafter = self._drafters.pop(text)
        self._context.feeds.close(text.slot)
        with _errors_of([text]):
            drafter.end(text)


@contextmanager
def _errors_of(texts: Sequence[Text]) -> Iterator[None]:
    """Keep what is raised as the error of ``texts``; the first one of a text stays."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 (it runs what users and plug-ins wrote)
        for text in texts:
            text.error = text.error or error


def _first_token(context: Context, text: Text) -> Commit:
    logits = context.prefill(text)
    verdict = Verdict(0, text.chance.pick(text.law(logits)))
    return _scored(text, context.commit(text, Draft(), verdict), [logits], verdict)


def _scored(text: Text, commit: Commit, rows: Any, verdict: Verdict) -> Commit:
    """The commit with the scores of its tokens, from the logits of a draft's ``rows``, where the text wants any."""
    if text.logprobs is None:
        return commit
    branch = range(verdict.accepted) if verdict.branch is None else verdict.branch
    path = (0, *(i + 1 for i in branch))  # the row that a token follows
    scores = [score(rows[row], token, text.logprobs) for row, token in zip(path, commit.tokens, strict=False)]
    return replace(commit, scores=tuple(scores))


def _judge(text: Text, draft: Draft, rows: Array) -> Callable[[], Verdict]:
    """The verdict, from the logits of the draft's ``rows``."""
    return lambda: _rule(text, draft)(draft, _target(text, draft, rows), text.chance, text.ends)


def _rule(text: Text, draft: Draft) -> Callable[..., Verdict]:
    """The rule that accepts most; chains are judged as a block unless a callable or a grammar would see it."""
    if draft.parents is not None:
        return verify_tree
    return verify_chain if text.sampling.is_stateful else verify_block


def _target(text: Text, draft: Draft, rows: Array) -> Callable[[int], Distribution]:
    """The target's distribution of what follows a row of the draft; computed when asked for."""
    return lambda row: text.law(rows[row], draft.before(row))
