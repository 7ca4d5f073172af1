"""Sequences in flight: tokens, cache and kept hidden states, and the only code that moves lengths.

Between rounds a sequence of n tokens has keys and values for its first n - 1; the last token is *pending*:
committed, its row still to be run. Row i of a round owns cell n - 1 + i of the cache: row 0 is the pending
token, row i the i-th draft token. Its position is n - 1 plus its depth: in a chain, that of its cell.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.errors import OptionError
from selfspec.feeds import Feeds
from selfspec.joining import concatenate, merge, padded, select
from selfspec.rounds import Commit
from selfspec.sampling import distribution
from selfspec.types import (
    Array,
    Distribution,
    Draft,
    FinishReason,
    Integers,
    LayerPlan,
    Prefix,
    Rows,
    Sampling,
    SubLayer,
    Verdict,
)
from selfspec.unseen import unread
from selfspec.watch import Watch, Watched

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from selfspec.runtime.base import Cache, Runtime
    from selfspec.sampling import Chance
    from selfspec.scoring import PromptScores

PREFILL_ROWS = 512


@dataclass(eq=False, slots=True)
class Text:
    """One sequence in flight.

    ``limit`` is the most tokens it may have, prompt included; ``ends(token)`` is asked once for every new
    token, in order, and says whether the text is complete with it (end-of-text token or stop string).
    The first ``cached`` tokens have their keys and values in the slot already. What ``tokens`` holds when a
    `Text` is made is its prompt; ``prediction`` are tokens that the user expects in the answer. A text ends with
    a ``finish_reason``, or with the ``error`` that ended it. Where ``samples_drafts`` is off, drafters take the
    likeliest token instead of drawing one; ``explanation`` is what the drafter leaves behind to say how it decided,
    JSON-ready. ``logprobs`` asks for the `Score` of every new token, with so many likeliest ones; None for none.
    ``prompt_scores`` takes those of the prompt.
    """

    index: int
    slot: int
    tokens: list[int]
    limit: int
    sampling: Sampling
    chance: Chance
    ends: Callable[[int], bool]
    cached: int = 0
    prediction: Sequence[int] = ()
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    samples_drafts: bool = True
    explanation: dict[str, Any] | None = None
    logprobs: int | None = None
    prompt_scores: PromptScores | None = None
    prompt_length: int = field(init=False)

    def __post_init__(self) -> None:
        assert len(self.tokens) < self.limit
        self.prompt_length = len(self.tokens)

    @property
    def is_ended(self) -> bool:
        """Whether nothing will follow."""
        return self.finish_reason is not None or self.error is not None

    @property
    def pending(self) -> int:
        """The last committed token, whose row has not run yet."""
        return self.tokens[-1]

    def room(self) -> int:
        """How many tokens a draft may have: the bonus token takes one place of those that are left."""
        return self.limit - len(self.tokens) - 1

    def prefix(self, draft: Sequence[int]) -> Prefix:
        """The tokens before the one that follows ``draft``; read it before the text moves on."""
        return Prefix(self.tokens, self.prompt_length, draft)

    def law(self, logits: Array, draft: Sequence[int] = ()) -> Distribution:
        """The target's distribution of the token that follows ``draft``, from its ``logits`` [V].

        Coupled sampling realises it: what is left is the one token that this text has at that place.
        Raises as `selfspec.sampling.distribution`.
        """
        return self._law(logits, self.prefix(draft), self.sampling)

    def draft_law(self, logits: Array, draft: Sequence[int] = ()) -> Distribution:
        """What a drafter makes of its own ``logits`` [V]: the same, without the user's callables. A grammar holds.

        Realised with the target's noise where sampling is coupled, so that draft and target often agree.
        """
        sampling = self.sampling.for_drafts
        return self._law(logits, self.prefix(draft), sampling if self.samples_drafts else sampling.likeliest)

    def draft_law_at(self, logits: Array, place: int) -> Distribution:
        """What `draft_law` would have been of the logits [V] of what stands at ``place`` of the text now."""
        return self._law(logits, Prefix(self.tokens[:place], self.prompt_length), self.sampling.for_drafts)

    def _law(self, logits: Array, prefix: Prefix, sampling: Sampling) -> Distribution:
        law = distribution(logits, sampling, prefix)
        return self.chance.realise(law, len(prefix)) if sampling.coupled else law

    def extend(self, accepted: Sequence[int], bonus: int | None) -> tuple[int, ...]:
        """Append draft tokens, for which ``ends`` has been asked, and the bonus token; returns them all.

        Without a bonus token the last accepted one ended the text.
        """
        self.tokens += accepted
        if bonus is None:
            self.finish_reason = "stop"
            return tuple(accepted)
        self.tokens.append(bonus)
        if self.ends(bonus):
            self.finish_reason = "stop"
        elif len(self.tokens) == self.limit:
            self.finish_reason = "length"
        return (*accepted, bonus)


class Context:
    """What a drafter and the loop see of the model: rows to run, and texts to move forward.

    ``row_layers`` counts what the rows of each slot have cost so far. A prompt runs in passes of at most
    ``prefill_rows`` rows. ``clock`` is that of the loop, for drafters that must know what a part of a round takes.
    ``watched`` is what the last verification showed to drafters that had asked (`Draft.watch`), ``feeds`` are
    states of committed rows that some read (`selfspec.feeds`).

    Between two passes this is plain Python where it can be: a cold NumPy call costs 10 to 100 µs.
    """

    def __init__(self, runtime: Runtime, cache: Cache, prefill_rows: int = PREFILL_ROWS) -> None:
        self.runtime = runtime
        self.cache = cache
        self.clock: Callable[[], float] = time.perf_counter
        self.watched: dict[Text, Watched] = {}
        self.feeds = Feeds()
        self._prefill_rows = prefill_rows
        self.full = LayerPlan.full(runtime.config.num_layers)
        self.row_layers = [0.0] * cache.slots
        self._spans: dict[tuple[LayerPlan, int, int], LayerPlan] = {}

    def prefill(self, text: Text) -> Array:
        """Run all layers over the prompt, in chunks; returns the logits [V] of its last row."""
        hidden = self.write(text.slot, text.tokens, text.cached, text.prompt_scores)
        assert hidden is not None
        return self.runtime.logits(hidden[-1:])[0]

    def write(
        self, slot: int, tokens: Sequence[int], first: int = 0, scores: PromptScores | None = None
    ) -> Array | None:
        """Run all layers over ``tokens[first:]`` of a slot, in chunks; the states of the last chunk, if any."""
        hidden = None
        for start in range(first, len(tokens), self._prefill_rows):
            chunk = tokens[start : start + self._prefill_rows]
            rows = Rows.of([slot] * len(chunk), range(start, start + len(chunk)))
            self.feeds.forget()
            hidden, _ = self._run(self.runtime.embed(chunk, rows.positions), self.full, rows)
            if scores is not None:
                scores.take(self.runtime, hidden, start)
            self.feeds.deliver(self, slot, chunk, start, range(start, start + len(chunk)))
        self.feeds.forget()
        return hidden

    def step(
        self,
        plan: LayerPlan,
        texts: Sequence[Text],
        tokens: Sequence[Sequence[int]],
        depths: Sequence[int],
        runtime: Runtime | None = None,
        begun: Sequence[Draft] = (),
    ) -> tuple[Array, Array | None]:
        """Run ``plan`` over draft rows: of text i ``tokens[i]``, from ``depths[i]`` rows past its pending one on.

        Returns the states after the plan [rows, d], text after text, and those after the layers that it shares with
        the full model, where verification resumes; None if it shares none. With ``runtime``, other weights of the
        same model run the plan on the same cache: they share nothing. ``begun`` are drafts with the same rows whose
        states some of these layers have made already: rows go on from there where the plan shares those layers.
        """
        rows = Rows.of(
            [text.slot for text, own in zip(texts, tokens, strict=True) for _ in own],
            [
                len(text.tokens) - 1 + depth + i
                for text, own, depth in zip(texts, tokens, depths, strict=True)
                for i in range(len(own))
            ],
        )
        used = self.runtime if runtime is None else runtime
        shared = plan.shared_prefix if used is self.runtime else 0
        flat = [token for own in tokens for token in own]
        if any(0 < max(draft.starts) < shared for draft in begun):
            usable = [draft if max(draft.starts) < shared else Draft() for draft in begun]
            kept = self._resume(self._span(plan, 0, shared), tokens, usable, rows, Watch(()))
            rest = self._span(plan, shared, plan.num_layers)
            return self._run(kept, rest, rows)[0] if rest.steps else kept, kept
        border = SubLayer(shared - 1)
        taps = (border,) if shared and plan.steps[-1] != border else ()
        entering = used.embed(flat, rows.positions)
        if not shared:
            self.count(rows.slots.tolist(), plan.row_layers)
            return used.run(entering, plan, rows, self.cache)[0], None
        hidden, tapped = self._run(entering, plan, rows, taps)
        return hidden, tapped[border] if taps else hidden

    def deepen(
        self,
        texts: Sequence[Text],
        depths: Sequence[int],
        entering: Array | Sequence[int],
        layers: tuple[int, int],
        taps: Sequence[int] = (),
    ) -> tuple[Array, dict[int, Array]]:
        """Run ``layers`` [start, stop) over draft rows; the i-th is ``depths[i]`` rows past its text's pending one.

        ``entering`` are their states [R, d] after ``start`` layers; where that is 0, their tokens. Returns the
        states after ``stop`` layers, and by layer those after each of ``taps``, which end in (start, stop].
        """
        positions = [len(text.tokens) - 1 + depth for text, depth in zip(texts, depths, strict=True)]
        rows = Rows.of([text.slot for text in texts], positions)
        hidden = entering if layers[0] else self.runtime.embed(entering, rows.positions)
        wanted = {SubLayer(layer - 1): layer for layer in taps}
        hidden, tapped = self._run(hidden, self._span(self.full, *layers), rows, list(wanted))
        return hidden, {wanted[tap]: states for tap, states in tapped.items()}

    def count(self, slots: Sequence[int], each: float) -> None:
        """Add the cost of rows of these slots, ``each`` in row-layers of the target."""
        for slot in slots:
            self.row_layers[slot] += each

    def aside(self, text: Text) -> int:
        """How many rows `replay` runs in one pass: as many as there are cells beyond the text."""
        return min(self.cache.length - len(text.tokens) + 1, self._prefill_rows)

    def replay(
        self, plan: LayerPlan, text: Text, hidden: Array, positions: Integers, taps: Sequence[SubLayer] = ()
    ) -> tuple[Array, dict[SubLayer, Array]]:
        """Run ``plan`` over rows [R, d] aside, at ``positions`` [R] of a text, from 1 to its pending one's.

        Each row sees the committed cells before its position, and itself: what it would compute in the place of
        the token that stands there. Several rows may have one position. Keys and values go to cells beyond the
        text, which the next draft overwrites; rows run in as many passes as those cells ask for.
        Returns the states after the plan [R, d], and after each tap. Raises OptionError where layers are recurrent:
        there a row is found from the rows before it, and not from cells.
        """
        if self.runtime.config.recurrences:
            raise OptionError(
                f"{self.runtime.config.family} has recurrent layers, whose rows cannot run aside: name the layers "
                "to skip (layer_skip), or use another drafter"
            )
        first, free = len(text.tokens) - 1, self.aside(text)
        assert free > 0
        assert 1 <= positions.min() <= positions.max() <= first
        outs: list[Array] = []
        tapped: dict[SubLayer, list[Array]] = {tap: [] for tap in taps}
        for start in range(0, len(positions), free):
            at = positions[start : start + free]
            own = np.arange(first, first + len(at))
            rows = Rows(np.full(len(at), text.slot), at, np.stack([at - 1, own], axis=1))
            self.count(rows.slots.tolist(), plan.row_layers)
            out, states = self.runtime.run(hidden[start : start + free], plan, rows, self.cache, taps)
            outs.append(out)
            for tap in taps:
                tapped[tap].append(states[tap])
        return concatenate(outs), {tap: concatenate(parts) for tap, parts in tapped.items()}

    def score(self, texts: Sequence[Text], drafts: Sequence[Draft]) -> list[Array]:
        """One full pass over pending and draft tokens; per text the target's logits [len(draft) + 1, V].

        Rows whose states the draft kept join at the layer where it left; the others start at layer 0.
        """
        tokens = [(text.pending, *unread(draft.tokens)) for text, draft in zip(texts, drafts, strict=True)]
        rows = _rows(texts, drafts)
        watch = Watch(drafts)
        if all(draft.hidden is None for draft in drafts):
            flat = [token for own in tokens for token in own]
            entering = self.runtime.embed(flat, rows.positions)
            hidden, seen = self._run(entering, self.full, rows, watch.within(self.full))
            watch.saw(seen, range(len(rows)))
        else:
            hidden = self._resume(self.full, tokens, drafts, rows, watch)
        logits = self.runtime.logits(hidden)
        edges = list(accumulate((len(draft) + 1 for draft in drafts), initial=0))
        scored = [logits[start:stop] for start, stop in pairwise(edges)]
        self.feeds.spoke([text.slot for text in texts], scored)
        self.watched = {
            text: Watched(watch.of(edge, len(draft) + 1), own)
            for text, draft, edge, own in zip(texts, drafts, edges, scored, strict=False)
            if draft.watch is not None
        }
        return scored

    def commit(self, text: Text, draft: Draft, verdict: Verdict) -> Commit:
        """Move ``text`` forward by what was accepted and the bonus token."""
        leading = tuple(range(verdict.accepted))
        branch = leading if verdict.branch is None else verdict.branch
        if branch != leading:  # else every accepted row has the cell of its position already
            self.runtime.keep(self.cache, _rows([text], [draft]).take([i + 1 for i in branch]))
        first, ran = len(text.tokens) - 1, [text.pending, *(draft.tokens[i] for i in branch)]
        tokens = text.extend(ran[1:], verdict.bonus)
        self.feeds.verified(self, text, ran, [first, *(first + 1 + i for i in branch)])
        text.cached = len(text.tokens) - 1
        commit = Commit(text.index, tokens, draft.widths, verdict.accepted, text.finish_reason)
        if not draft.predicted:
            return commit
        held = len(set(branch).intersection(draft.predicted))
        return replace(commit, predicted=len(draft.predicted), predicted_accepted=held)

    def _embed(self, tokens: Sequence[int], order: Integers, rows: Rows) -> Array:
        return self.runtime.embed([tokens[r] for r in order], rows.positions[order])

    def _span(self, plan: LayerPlan, start: int, stop: int) -> LayerPlan:
        """Layers ``[start, stop)`` of a plan, made once: a plan sorts its steps."""
        if (plan, start, stop) not in self._spans:
            self._spans[plan, start, stop] = plan.span(start, stop)
        return self._spans[plan, start, stop]

    def _run(
        self, hidden: Array, plan: LayerPlan, rows: Rows, taps: Sequence[SubLayer] = ()
    ) -> tuple[Array, Mapping[SubLayer, Array]]:
        self.count(rows.slots.tolist(), plan.row_layers)
        hidden, tapped = self.runtime.run(hidden, plan, rows, self.cache, self.feeds.within(plan, taps))
        self.feeds.saw(rows, tapped)
        return hidden, {tap: tapped[tap] for tap in taps if tap in tapped}

    def _resume(
        self,
        plan: LayerPlan,
        tokens: Sequence[Sequence[int]],
        drafts: Sequence[Draft],
        rows: Rows,
        watch: Watch,
    ) -> Array:
        """Run rows to the end of a plan, those that have kept states from the layer of their draft."""
        starts = np.asarray(
            [start for own, draft in zip(tokens, drafts, strict=True) for start in padded(draft.starts, len(own))]
        )
        kept = [
            draft.hidden[: len(own)] for own, draft in zip(tokens, drafts, strict=True) if draft.hidden is not None
        ]
        return self._run_from(plan, [token for own in tokens for token in own], (starts, kept), rows, watch)

    def _run_from(
        self, plan: LayerPlan, tokens: list[int], begun: tuple[Integers, list[Array]], rows: Rows, watch: Watch
    ) -> Array:
        """Run each row from its start layer to the last of a plan; ``begun``: starts, states of those above 0."""
        starts, kept = begun
        later = np.flatnonzero(starts > 0)
        order = np.flatnonzero(starts == 0)
        hidden = self._embed(tokens, order, rows) if len(order) else None
        states = concatenate(kept) if kept else None
        for start, stop in pairwise(sorted({0, *starts.tolist(), plan.steps[-1].layer + 1})):
            if start > 0:
                joining = np.flatnonzero(starts[later] == start)
                hidden, order = merge(hidden, order, select(states, joining), later[joining])
            if hidden is not None:
                span = self._span(plan, start, stop)
                hidden, seen = self._run(hidden, span, rows.take(order), watch.within(span))
                watch.saw(seen, order.tolist())
        return hidden


def _rows(texts: Sequence[Text], drafts: Sequence[Draft]) -> Rows:
    """The rows of pending and draft tokens, text after text; those of a text own its next cells, in order."""
    slots: list[int] = []
    cells: list[int] = []
    for text, draft in zip(texts, drafts, strict=True):
        start, count = len(text.tokens) - 1, len(draft) + 1
        slots += [text.slot] * count
        cells += range(start, start + count)
    if all(draft.parents is None for draft in drafts):
        return Rows.of(slots, cells)
    parents: list[int] = []
    for draft in drafts:
        root = len(parents)
        follows = range(-1, len(draft) - 1) if draft.parents is None else draft.parents
        parents += [-1, *(root + 1 + parent for parent in follows)]
    return Rows.trees(slots, cells, parents)
