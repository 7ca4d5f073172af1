"""One worker thread that owns the engine: requests queue, join between rounds, move on together, and leave."""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import TYPE_CHECKING, Protocol

from selfspec.context import PREFILL_ROWS
from selfspec.errors import OptionError
from selfspec.flight import Progress
from selfspec.server.failures import ClosingError, DeadlineError, GoneError, QueueFullError
from selfspec.server.room import CacheLimits, Room

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from selfspec.flight import Flight
    from selfspec.generation import Generation
    from selfspec.runtime.base import Runtime

_LOG = logging.getLogger("selfspec.server")


class Watcher(Protocol):
    """Who counts what the scheduler does; called from its thread."""

    def progressed(self, progress: Progress) -> None:
        """A text moved on."""

    def began(self, waited: float) -> None:
        """A text got a slot after so many seconds."""


@dataclass(eq=False)
class Job:
    """One text: what it is to run, who is told, and until when, in seconds of the scheduler's clock.

    ``tell`` is called in the worker thread with every `Progress`, the last of which has an ``end``. A job that was
    cancelled hears nothing more.
    """

    generation: Generation
    tell: Callable[[Progress], None]
    deadline: float | None = None
    index: int = field(default=0, init=False)
    came: float = field(default=0.0, init=False)
    is_cancelled: bool = field(default=False, init=False)


class Scheduler:
    """Continuous batching: first come, first served; ``slots`` texts at once, at most ``queue`` waiting.

    Between two rounds texts leave that ended, were cancelled or are out of time, waiting ones take their slots, and
    of their prompts about 512 rows run, so that a long prompt does not hold up the others. What goes wrong with one
    text ends it alone; only memory that runs out in a round ends all that are in flight.
    """

    def __init__(
        self,
        runtime: Runtime,
        slots: int = 8,
        queue: int = 64,
        watcher: Watcher | None = None,
        clock: Callable[[], float] = time.monotonic,
        cache: CacheLimits = CacheLimits(),  # noqa: B008 (frozen)
    ) -> None:
        for name, value, least in (("slots", slots, 1), ("queue", queue, 0)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(f"{name} is {value!r}; it must be an integer of at least {least}")
        self._runtime = runtime
        self.slots, self.queue = slots, queue
        self._watcher, self._clock = watcher, clock
        self._room = Room(runtime, slots, cache)
        self._changed = Condition()
        self._waiting: deque[Job] = deque()
        self._jobs: dict[int, Job] = {}  # with a slot; the worker's alone, but for their number
        self._flight: Flight | None = None
        self._numbers = itertools.count()
        self._is_draining = self._is_closed = False
        self._thread = Thread(target=self._work, name="selfspec-engine", daemon=True)
        self._thread.start()

    # -- called from any thread ---------------------------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        """Texts without a slot."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Texts with a slot."""
        return len(self._jobs)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the cache, 0 before the first text."""
        flight = self._flight
        return 0 if flight is None else flight.kv_bytes

    @property
    def is_open(self) -> bool:
        """Whether it takes requests."""
        return self._thread.is_alive() and not (self._is_draining or self._is_closed)

    def now(self) -> float:
        """The clock of deadlines."""
        return self._clock()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue the texts of one request: all, or none.

        Raises
        ------
        QueueFullError
            There is no place for them now.
        OptionError
            There never will be.
        ClosingError
            The server shuts down.
        """
        with self._changed:
            if not self.is_open:
                raise ClosingError("the server is shutting down; try again later, or elsewhere")
            if len(jobs) > self.slots + self.queue:
                raise OptionError(
                    f"the request asks for {len(jobs)} texts; this server holds {self.slots + self.queue} at most: "
                    "ask for fewer"
                )
            if len(self._waiting) + len(self._jobs) + len(jobs) > self.slots + self.queue:
                raise QueueFullError(
                    f"{len(self._jobs)} texts are being written and {len(self._waiting)} wait, of "
                    f"{self.queue} that may; try again later"
                )
            for job in jobs:
                self._room.require(job.generation.limit)
            for job in jobs:
                job.index, job.came = next(self._numbers), self._clock()
            self._waiting.extend(jobs)
            self._changed.notify_all()

    def cancel(self, jobs: Iterable[Job]) -> None:
        """Let go of texts; those with a slot lose it before the next round. Nothing to do for ended ones."""
        with self._changed:
            for job in jobs:
                job.is_cancelled = True
            self._changed.notify_all()

    def drain(self) -> None:
        """Take no more requests; those that are there run on."""
        with self._changed:
            self._is_draining = True
            self._changed.notify_all()

    def close(self) -> None:
        """Fail what is not finished, and end the thread, which may take a round."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    # -- the worker ---------------------------------------------------------------------------------------

    def _work(self) -> None:
        while self._has_work():
            try:
                self._round()
            except Exception as error:  # noqa: BLE001 (nobody may wait for ever)
                _LOG.log(
                    logging.WARNING if isinstance(error, MemoryError) else logging.ERROR,
                    "a round failed; its texts end",
                    exc_info=error,
                )
                self._fail_all(error)
        for job in [*self._jobs.values(), *self._waiting]:
            self._end(job, ClosingError("the server shut down before the text was finished; try again elsewhere"))
        if self._flight is not None:
            self._flight.close()

    def _has_work(self) -> bool:
        """Wait for something to do; False when the scheduler was closed."""
        with self._changed:
            while not (self._waiting or self._jobs or self._is_closed):
                self._changed.wait()
            return not self._is_closed

    def _round(self) -> None:
        self._let_go()
        self._admit()
        if self._flight is None:
            return
        self._pass_on(self._flight.fill(PREFILL_ROWS))
        self._pass_on(self._flight.turn())

    def _let_go(self) -> None:
        """Of those that were cancelled, and of those whose time is over."""
        now = self._clock()
        for job in [*self._jobs.values(), *self._waiting]:
            late = job.deadline is not None and now >= job.deadline
            if not (job.is_cancelled or late):
                continue
            if self._flight is not None and job.index in self._jobs:
                self._flight.drop(job.index)
            late_by = f"the text was not finished after {now - job.came:.1f} s, the time it had"
            self._end(job, GoneError("the client has left") if job.is_cancelled else DeadlineError(late_by))

    def _admit(self) -> None:
        """Give free slots to those that wait, in their order: one that has to wait for room holds up the others."""
        while self._waiting:
            job = self._waiting[0]
            limit = job.generation.limit
            if self._flight is not None and not self._room.suits(self._flight, limit):
                if self._flight.aboard:
                    return
                self._flight = None  # its memory is needed
            try:
                self._flight = self._flight or self._room.flight(limit)
                if not self._flight.free_slots:
                    return
                self._room.board(self._flight, job.index, job.generation)
            except Exception as error:  # noqa: BLE001 (a cache that does not fit is the newcomer's)
                self._end(job, error)
                continue
            with self._changed:
                self._waiting.popleft()
                self._jobs[job.index] = job
            if self._watcher is not None:
                self._watcher.began(self._clock() - job.came)

    def _pass_on(self, found: list[Progress]) -> None:
        for progress in found:
            job = self._jobs[progress.index]
            if self._watcher is not None:
                self._watcher.progressed(progress)
            if progress.end is not None:
                self._forget(job)  # first: who hears of the end may ask again at once
            self._tell(job, progress)

    def _tell(self, job: Job, progress: Progress) -> None:
        if job.is_cancelled:
            return
        try:
            job.tell(progress)
        except Exception as error:  # noqa: BLE001 (who asked is gone, and the others are not)
            _LOG.debug("a text has no reader", exc_info=error)
            job.is_cancelled = True

    def _end(self, job: Job, error: Exception) -> None:
        """Take a job out, and say why if it still listens."""
        self._forget(job)
        progress = Progress(job.index, end=error)
        if self._watcher is not None:
            self._watcher.progressed(progress)
        self._tell(job, progress)

    def _forget(self, job: Job) -> None:
        with self._changed:
            if self._jobs.pop(job.index, None) is None and job in self._waiting:
                self._waiting.remove(job)

    def _fail_all(self, error: Exception) -> None:
        """A round failed as a whole: end what was in flight, and begin with a new cache."""
        flight, self._flight = self._flight, None
        for job in list(self._jobs.values()):
            self._end(job, error)
        if flight is not None:
            flight.close()
