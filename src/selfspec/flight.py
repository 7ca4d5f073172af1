"""The generations that are under way in one loop: prompts run in pieces, texts join, move on and leave."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from selfspec.context import PREFILL_ROWS, Context
from selfspec.decode import Loop
from selfspec.prefixes import Prefixes
from selfspec.request import Completion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.context import Text
    from selfspec.generation import Generation
    from selfspec.request import Chunk
    from selfspec.rounds import Commit, Round
    from selfspec.runtime.base import Runtime


@dataclass(frozen=True, slots=True)
class Progress:
    """What became of one generation: new ``chunks`` and their ``commit``, if any, and its ``end``, if it ended."""

    index: int
    chunks: Sequence[Chunk] = ()
    commit: Commit | None = None
    end: Completion | Exception | None = None


@dataclass(eq=False)
class _Seat:
    """A generation and its slot; ``filled`` tokens of its prompt have run, for ``cost`` row-layers.

    The first ``cached`` of them were there when it came.
    """

    index: int
    generation: Generation
    slot: int
    joined: float
    cached: int
    filled: int
    cost: float = 0.0
    text: Text | None = None


class Flight:
    """Up to ``slots`` generations; the KV cache is as long as the longest of them so far.

    A prompt runs in passes of at most 512 rows, between which the others' rounds may run; each pass is the one that
    it would be alone. Running out of memory is raised: by `board` it concerns the newcomer, which is then not
    aboard, by the others all.

    With ``keeps_prefixes`` the cells of a text stay when it leaves, until another one needs its slot: a prompt that
    begins as that text does goes on from there.
    """

    def __init__(self, runtime: Runtime, slots: int, length: int, keeps_prefixes: bool = False) -> None:
        self._context = Context(runtime, runtime.new_cache(slots, length))
        self._loop = Loop(self._context)
        self._seats: dict[int, _Seat] = {}
        self._prefixes = Prefixes() if keeps_prefixes else None

    @property
    def aboard(self) -> tuple[int, ...]:
        """The indices of those under way, in the order in which they came."""
        return tuple(self._seats)

    @property
    def slots(self) -> int:
        """How many may be under way at once."""
        return self._context.cache.slots

    @property
    def longest(self) -> int:
        """The most tokens that one of those under way may have; 0 where there are none."""
        return max((seat.generation.limit for seat in self._seats.values()), default=0)

    @property
    def free_slots(self) -> int:
        """How many may come."""
        return self._context.cache.slots - len(self._seats)

    @property
    def length(self) -> int:
        """Cells of the cache for each slot."""
        return self._context.cache.length

    @property
    def kv_bytes(self) -> int:
        """Bytes of the cache."""
        return self._context.cache.nbytes

    def board(self, index: int, generation: Generation, length: int = 0) -> None:
        """Give a generation a slot; a cache that is too short becomes ``length`` long, at least as needed."""
        context = self._context
        if context.cache.length < generation.limit:
            context.cache = context.cache.longer(max(generation.limit, length))
        taken = {seat.slot for seat in self._seats.values()}
        free = [slot for slot in range(context.cache.slots) if slot not in taken]
        slot, cached = free[0], 0
        if self._prefixes is not None:
            slot, cached = self._prefixes.take(
                free, generation.prompt if generation.can_reuse else (), context.cache
            )
        self._seats[index] = _Seat(index, generation, slot, self._loop.now, cached, cached)

    def fill(self, rows: int | None = None) -> list[Progress]:
        """Run prompts, who came first before the others, until about ``rows`` have run; None runs them all.

        A text whose prompt has run whole has its first token.
        """
        found: list[Progress] = []
        for seat in [seat for seat in self._seats.values() if seat.text is None]:
            while seat.text is None and seat.index in self._seats and (rows is None or rows > 0):
                before = seat.filled
                found += self._piece(seat)
                rows = None if rows is None else rows - (seat.filled - before)
        return found

    def turn(self) -> list[Progress]:
        """One round of all texts whose prompts have run; nothing where there are none."""
        if not self._loop.texts:
            return []
        round_ = self._loop.turn()
        return [self._after(seat, round_) for seat in list(self._seats.values()) if seat.text is not None]

    def drop(self, index: int) -> None:
        """Let go of one, wherever it stands; its slot is free."""
        seat = self._seats.pop(index)
        if seat.text is not None:
            self._loop.remove(seat.text)
        self._context.feeds.close(seat.slot)
        self._leave(seat)

    def close(self) -> None:
        """Let go of all."""
        self._loop.close()
        for seat in self._seats.values():
            self._context.feeds.close(seat.slot)
        self._seats.clear()

    def _piece(self, seat: _Seat) -> list[Progress]:
        """The next rows of a prompt; with the last ones the text joins the loop."""
        prompt, context = seat.generation.prompt, self._context
        stop = seat.filled + PREFILL_ROWS
        if stop >= len(prompt):
            seat.text = seat.generation.open(seat.index, seat.slot, seat.filled)
            seat.filled = len(prompt)
            return [self._after(seat, self._loop.add([seat.text], seat.generation.drafter))]
        before = context.row_layers[seat.slot]
        context.feeds.open(seat.slot, seat.generation.drafter.parts, seat.filled)
        try:
            context.write(seat.slot, prompt[:stop], seat.filled, seat.generation.prompt_scores)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 (whatever it was, the others go on)
            del self._seats[seat.index]
            context.feeds.close(seat.slot)
            return [Progress(seat.index, end=error)]
        seat.cost += context.row_layers[seat.slot] - before
        seat.filled = stop
        return []

    def _after(self, seat: _Seat, round_: Round) -> Progress:
        """Count a round for one of its texts, and say what it brought."""
        text, generation = seat.text, seat.generation
        assert text is not None
        chunks: list[Chunk] = []
        own = round_.only(text.index, seat.joined)
        if own:
            if own.index == 0:
                own = replace(own, verify_row_layers=own.verify_row_layers + seat.cost)
            chunks = generation.take(own)
        commit = own.commits[0] if own else None
        if not text.is_ended:
            return Progress(seat.index, chunks, commit)
        del self._seats[seat.index]
        if text.error is not None:
            return Progress(seat.index, [*chunks, *generation.rest()], commit, text.error)
        self._leave(seat)
        end = replace(generation.completion(text, self._context.cache), cached_tokens=seat.cached)
        return Progress(seat.index, chunks, commit, end)

    def _leave(self, seat: _Seat) -> None:
        """Note what the cells of a free slot hold."""
        if self._prefixes is None:
            return
        if (text := seat.text) is None:
            self._prefixes.leave(seat.slot, seat.generation.prompt[: seat.filled])
        elif self._context.cache.rewinds(max(text.cached, text.prompt_length), text.cached):
            self._prefixes.leave(seat.slot, text.tokens[: text.cached])
