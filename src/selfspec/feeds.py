"""States of committed rows for drafters that read them: trained heads, whose keys and values follow from these.

A reader names layers (`Drafter.taps`). While a text of it is in flight, every pass of the target over rows of that
text, whoever drafts, leaves the states after these layers here, in prefills and in verifications alike; when rows
are committed, theirs join the text's `Feed`, at the latest when somebody looks at it: while another drafter drafts,
a round only notes what has run. There they wait until the reader's own head has run over them: when it drafts next,
or when more than `MOST_PENDING` wait, so that a text for which another drafter drafts holds no more than these. A
reader that may never draft (`Drafter.keeps_up`) runs over none for that: the last `RECENT` stay.

Who learns from verifications (`Drafter.studies`) gets the states of committed rows after one layer, and the
target's logits of these rows, whoever drafted; nothing waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

from selfspec.joining import concatenate
from selfspec.prefixes import shared_length
from selfspec.types import SubLayer, namespace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from selfspec.context import Context, Text
    from selfspec.types import Array, LayerPlan, Rows

MOST_PENDING = 512
MOST_NOTED = 64
"""Rounds of which a text notes no more than what has run: they keep the states of rejected rows, too."""
RECENT = 256
"""Rows from which a head that has fallen behind begins. With all of a prompt of 500 to 1,200 tokens it was right a
little more often (1.32 tokens a round, not 1.27), but reading them took 7 % of the time to the first token."""


class Reader(Protocol):
    """Who reads the states of rows."""

    @property
    def taps(self) -> tuple[int, ...]:
        """The layers after which they are taken; those of a row stand one after the other."""

    @property
    def keeps_up(self) -> bool:
        """Whether it reads rows because too many wait, not only because it drafts."""

    @property
    def studies(self) -> int | None:
        """The layer after which it wants the states of verified rows."""

    def read(self, context: Context, feed: Feed) -> None:
        """Run over what waits in ``feed``, as far as that is possible now."""

    def taught(self, text: Text, states: Array, logits: Array) -> None:
        """Rows were verified and committed."""


class Feed:
    """Rows of one text that a reader has not read: their ``tokens``, and states [rows, taps * d].

    ``first`` is the position of the first of them. ``origin`` is that of the first row that the reader has had at
    all: what came before was in the cache already (a conversation that goes on) and is unknown here, so the reader
    begins its own text there. ``tail`` is what the reader keeps of the last row that it has read.
    """

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.origin = self.first = 0
        self.tokens: list[int] = []
        self.guessed: list[int] = []
        self.tail: Array | None = None
        self._states: list[Array] = []

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def end(self) -> int:
        """The position after the last of them."""
        return self.first + len(self.tokens)

    def is_read_to(self, end: int) -> bool:
        """Whether the states of the row before ``end`` are here, or were read last."""
        return self.end == end and (len(self) > 0 or self.tail is not None)

    def add(self, first: int, tokens: Sequence[int], states: Array) -> None:
        """Rows that are committed, from position ``first`` on."""
        if first != self.end:
            self.begin(first)
        held = shared_length(self.guessed, tokens)  # those that the reader has run: it has drafted them
        self.guessed = []
        if held:
            assert not self.tokens
            self.first += held
        if held < len(tokens):
            self.tokens += tokens[held:]
            self._states.append(states[held:])

    def begin(self, first: int) -> None:
        """Nothing is known of the rows before ``first``: the reader's own text begins there."""
        self.origin = self.first = first
        self.tokens, self.guessed, self.tail, self._states = [], [], None, []

    def drop(self, rows: int) -> None:
        """The first ``rows`` of them will never be read: the reader's own text begins after them."""
        tokens, states = self.tokens[rows:], concatenate(self._states)[rows:]
        self.begin(self.first + rows)
        self.tokens, self._states = tokens, [namespace(states).asarray(states, copy=True)]

    def take(self, rows: int) -> tuple[int, list[int], Array]:
        """The first ``rows`` of them, as read: the position of the first, their tokens, their states."""
        first, tokens, states = self.first, self.tokens[:rows], concatenate(self._states)
        self.first += rows
        del self.tokens[:rows]
        self._states = [states[rows:]] if self.tokens else []
        return first, tokens, states[:rows]


@dataclass(eq=False)
class _Pass:
    """The rows of a pass, and what left its tapped layers [R, d]."""

    ran: Rows
    states: Mapping[SubLayer, Array]

    @cached_property
    def rows(self) -> dict[tuple[int, int], int]:
        """They by slot and cell."""
        places = zip(self.ran.slots.tolist(), self.ran.cells.tolist(), strict=True)
        return {place: i for i, place in enumerate(places)}

    def run_of(self, where: Sequence[tuple[int, int]]) -> slice | None:
        """The rows in these places, if all are here and stand one after the other."""
        first = self.rows.get(where[0])
        if first is None or any(self.rows.get(place) != first + i for i, place in enumerate(where)):
            return None
        return slice(first, first + len(where))


class _Committed(NamedTuple):
    """Rows of a text that are committed: ``tokens`` from position ``first`` on, which ran in ``cells``."""

    first: int
    tokens: Sequence[int]
    cells: Sequence[int]
    passes: Sequence[_Pass]


class Feeds:
    """The feeds of all texts in flight, and what the passes of this round have shown."""

    def __init__(self) -> None:
        self._feeds: dict[int, dict[Reader, Feed]] = {}
        self._pupils: dict[int, list[Reader]] = {}
        self._scores: dict[int, Array] = {}
        self._taps: frozenset[SubLayer] = frozenset()
        self._within: dict[LayerPlan, tuple[SubLayer, ...]] = {}
        self._passes: list[_Pass] = []
        self._committed: dict[int, list[_Committed]] = {}

    def open(self, slot: int, readers: Sequence[Reader], filled: int) -> None:
        """These read the rows of a slot's text, of which ``filled`` have run: a new one, or more of a prompt."""
        self._settle(slot)
        known = self._feeds.get(slot, {})
        self._pupils[slot] = [reader for reader in readers if reader.studies is not None]
        self._feeds[slot] = feeds = {}
        for reader in readers:
            if reader.taps:
                feed = known.get(reader)
                feeds[reader] = feed if feed is not None and feed.end == filled else Feed(slot)
        self._listen()

    @property
    def is_idle(self) -> bool:
        """Whether nobody reads states."""
        return not self._taps

    def close(self, slot: int) -> None:
        """Its text has left."""
        self._feeds.pop(slot, None)
        self._committed.pop(slot, None)
        self._pupils.pop(slot, None)
        self._listen()

    def of(self, slot: int, reader: Reader) -> Feed:
        """What waits for a reader."""
        self._settle(slot)
        return self._feeds[slot][reader]

    def _listen(self) -> None:
        readers = {reader for feeds in self._feeds.values() for reader in feeds}
        layers = {layer for reader in readers for layer in reader.taps}
        layers |= {reader.studies for pupils in self._pupils.values() for reader in pupils if reader.studies}
        self._taps = frozenset(SubLayer(layer - 1) for layer in layers)
        self._within = {}

    def within(self, plan: LayerPlan, taps: Sequence[SubLayer]) -> Sequence[SubLayer]:
        """The taps of a pass: those that are asked for, and those that somebody reads."""
        if not self._taps:
            return taps
        if plan not in self._within:
            self._within[plan] = tuple(step for step in plan.steps if step in self._taps)
        return [*taps, *(step for step in self._within[plan] if step not in taps)]

    def saw(self, rows: Rows, states: Mapping[SubLayer, Array]) -> None:
        """Remember a pass of the target, until rows are delivered."""
        if self._taps and states:
            self._passes.append(_Pass(rows, states))

    def deliver(self, context: Context, slot: int, tokens: Sequence[int], first: int, cells: Sequence[int]) -> None:
        """Rows of a text are committed: ``tokens`` from position ``first`` on, which ran in ``cells``."""
        feeds = self._feeds.get(slot)
        if not feeds or not self._passes:
            return
        noted = self._committed.setdefault(slot, [])
        noted.append(_Committed(first, list(tokens), list(cells), list(self._passes)))
        waiting = first + len(tokens) - min(feed.first for feed in feeds.values())
        if len(noted) < MOST_NOTED and waiting < MOST_PENDING:
            return
        self._settle(slot)
        for reader, feed in feeds.items():
            if len(feed) > MOST_PENDING and reader.keeps_up:
                reader.read(context, feed)
            elif len(feed) >= MOST_PENDING and not reader.keeps_up:
                feed.drop(len(feed) - RECENT)

    def _settle(self, slot: int) -> None:
        """What is committed joins the feeds of a text."""
        for one in self._committed.pop(slot, ()):
            for reader, feed in self._feeds[slot].items():
                taps = [SubLayer(layer - 1) for layer in reader.taps]
                columns = _find(one.passes, slot, one.cells, taps)
                if columns is not None:  # else a drafter has run layers by itself
                    states = columns[0] if len(columns) == 1 else namespace(columns[0]).concat(columns, axis=1)
                    feed.add(one.first, one.tokens, states)

    def spoke(self, slots: Sequence[int], scores: Sequence[Array]) -> None:
        """The target's logits [rows, V] of the rows of drafts; kept for who learns, until the round ends."""
        self._scores = {slot: own for slot, own in zip(slots, scores, strict=True) if self._pupils.get(slot)}

    def verified(self, context: Context, text: Text, tokens: Sequence[int], cells: Sequence[int]) -> None:
        """Rows of a text were verified and are committed: ``tokens``, the pending one first, ran in ``cells``."""
        self.deliver(context, text.slot, tokens, cells[0], cells)
        scores = self._scores.pop(text.slot, None)
        for pupil in self._pupils.get(text.slot, ()):
            layer = pupil.studies
            found = None if layer is None else _find(self._passes, text.slot, cells, [SubLayer(layer - 1)])
            if found is not None and scores is not None:
                states = namespace(found[0]).asarray(found[0], copy=True)
                pupil.taught(text, states, scores[[cell - cells[0] for cell in cells]])

    def forget(self) -> None:
        """A round begins, or a prompt: what passes have shown concerns nobody any more."""
        self._passes.clear()
        self._scores.clear()


def _find(passes: Sequence[_Pass], slot: int, cells: Sequence[int], taps: Sequence[SubLayer]) -> list[Array] | None:
    """The states [rows, d] that left these layers in these cells, each as the last pass over it had them."""
    if not passes:
        return None
    where = [(slot, cell) for cell in cells]
    last = passes[-1]
    if (run := last.run_of(where)) is not None and all(tap in last.states for tap in taps):
        return [last.states[tap][run] for tap in taps]  # nearly always
    columns: list[Array] = []
    for tap in taps:
        found: list[Array] = []
        for place in where:
            seen = next((p for p in reversed(passes) if tap in p.states and place in p.rows), None)
            if seen is None:
                return None
            found.append(seen.states[tap][(row := seen.rows[place]) : row + 1])
        columns.append(concatenate(found))
    return columns
