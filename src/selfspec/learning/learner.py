"""The thread that learns: it takes rows from verifications, works at the pace it is given, and offers heads.

An engine's loop only ever hands rows over and reads one reference; what goes wrong here ends the learning, and
nothing else.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from selfspec.errors import OptionError
from selfspec.learning.course import Course
from selfspec.learning.pace import Pace, one_thread, threads_of_products
from selfspec.learning.replay import LEAST, row_bytes
from selfspec.model.head_file import write_head
from selfspec.model.reading import expanded, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from selfspec.model.head_file import HeadFile
    from selfspec.runtime.attached import Attached
    from selfspec.runtime.base import Runtime
    from selfspec.types import Array

_TAKE = 16  # rows that are taken from the queue between two pieces of work, about
_PROMPTS = 64  # that may wait
_SAVE_AFTER = 30.0  # seconds since the last time
_PATIENCE = 30.0  # seconds that who closes it waits for a piece of work


@dataclass(frozen=True)
class LearnSettings:
    """How an engine learns: ``share`` of a core, ``memory`` in MiB for rows, ``out``: the file of the head."""

    share: float = 0.05
    memory: int = 32
    out: str | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0:
            raise OptionError(f"learn_share is {self.share}; it must be above 0, and at most 1 (a whole core)")
        if self.memory < 1:
            raise OptionError(f"learn_memory is {self.memory}; it must be at least 1 MiB")

    def sizes(self, width: int) -> tuple[int, int]:
        """Bytes of the rows that are kept, and of those that wait; raises OptionError where they are too few."""
        size = self.memory << 20
        waiting = size // 4
        if (rows := (size - waiting) // row_bytes(width)) < 2 * LEAST:
            least = -(-2 * LEAST * row_bytes(width) * 4 // 3 >> 20)
            raise OptionError(
                f"learn_memory is {self.memory}, in which {rows} rows of this model have room, too few to learn "
                f"from; give at least {least + 1}"
            )
        return size - waiting, waiting


class Offered(NamedTuple):
    """A head, and what runs it: whoever has the one has the other."""

    head: HeadFile
    attached: Attached


class _Rows(NamedTuple):
    """Rows of a verification that wait."""

    states: Array
    scores: Array
    temperature: float

    @property
    def nbytes(self) -> int:
        return int(self.states.nbytes + self.scores.nbytes)


class Worker:
    """What the thread works on; `Learner` is what others hold.

    ``attach(head)`` makes what runs a head. ``notify`` is told once of what ends the learning.
    """

    def __init__(
        self,
        start: Offered,
        runtime: Runtime,
        settings: LearnSettings,
        attach: Callable[[HeadFile], Attached],
        notify: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.current = start
        self.failure = ""
        self.saved = ""
        self._sizes = settings.sizes(runtime.config.hidden_size)
        self._runtime, self._attach, self._notify = runtime, attach, notify
        self._is_forked = False
        self._begin()

    def _begin(self) -> None:
        """Begin, or begin again in a forked process, where there is no thread and locks may be held for ever."""
        self._process = os.getpid()
        self._lock, self._wake, self._closing = Lock(), Event(), Event()
        self._waiting: deque[_Rows] = deque()
        self._waiting_bytes = 0
        self._prompts: deque[Any] = deque(maxlen=_PROMPTS)
        self._thread: Thread | None = None
        self._is_unsaved = False
        self._saved_at = -_SAVE_AFTER
        self.pace = Pace(self.settings.share, threads_of_products())
        size, tokens = self._sizes[0], self._runtime.config.vocab_size
        self.course = Course(self.current.head, size, tokens, self._runtime.head_rows, self._use)

    # -- in the threads of engines ------------------------------------------------------------------------

    def offer(self, states: Array, scores: Array, temperature: float) -> None:
        """Rows of a verification: states [R, d], logits [R, V]; dropped while too many wait."""
        if not self._has_thread():
            return
        rows = _Rows(states, scores, temperature)
        with self._lock:
            if self._waiting_bytes + rows.nbytes > self._sizes[1]:
                self.course.counts.dropped += len(states)
                return
            self._waiting_bytes += rows.nbytes
            self._waiting.append(rows)
        self._wake.set()

    def read(self, prompt: Sequence[int]) -> None:
        """A text begins with these tokens."""
        if self._has_thread():
            self._prompts.append(np.asarray(prompt, dtype=np.int64))

    @property
    def is_on(self) -> bool:
        """Whether it learns, and was not closed."""
        return not (self.failure or (self._closing.is_set() and self._process == os.getpid()))

    def _has_thread(self) -> bool:
        """Whether it learns; the thread is there then."""
        if self._process != os.getpid():
            self._is_forked = True
            self._begin()
        with self._lock:
            if self._thread is None and self.is_on:
                thread = Thread(target=self._live, name="selfspec-learner", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # too many threads, or the process ends
                    self._fail(error)
                else:
                    self._thread = thread
        return self.is_on

    def close(self) -> None:
        """End the learning, and keep in its file what was learned; the head goes on drafting."""
        if self._process != os.getpid():
            return
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE)
            self._thread = None
        if self._is_unsaved:
            self._save()

    # -- in the thread ------------------------------------------------------------------------------------

    def _live(self) -> None:
        """Work and rest, until it is closed or something goes wrong."""
        try:
            with np.errstate(all="ignore"):  # what is no number is found, and thrown away
                self._work()
        except Exception as error:  # noqa: BLE001 (generations must not notice)
            self._fail(error)
            with self._lock:
                self._waiting.clear()

    def _fail(self, error: Exception) -> None:
        """Learning ends; said once."""
        self.failure = f"{type(error).__name__}: {one_line(error)}"
        self._tell(f"learning has ended ({self.failure}); texts go on with the head that there is")

    def _work(self) -> None:
        pieces = self.pieces()
        while not self._closing.is_set():
            self.pace.begin()
            with one_thread():
                has_worked = next(pieces)
            if has_worked:
                self._closing.wait(self.pace.end())
                continue
            self.pace.end()
            self._wake.clear()
            if not self._waiting and not self._closing.is_set():
                self._wake.wait()

    def pieces(self) -> Iterator[bool]:
        """All work for ever, a short piece at a time; False where there is nothing to do until more rows come."""
        while True:
            if not self.course.has_work:
                yield self._take()
                continue
            for _ in self.course.work():
                yield True
                if self._waiting:
                    yield self._take()
            if self._is_unsaved and time.monotonic() >= self._saved_at + _SAVE_AFTER:
                self._save()
                yield True

    def _take(self) -> bool:
        """Some of what waits; whether there was any."""
        while self._prompts:
            self.course.read(self._prompts.popleft())
        taken = 0
        while self._waiting and taken < _TAKE:
            with self._lock:
                rows = self._waiting.popleft()
                self._waiting_bytes -= rows.nbytes
            self.course.take(*rows)
            taken += len(rows.states)
        return taken > 0

    def _use(self, head: HeadFile) -> None:
        """Offer a head that was kept: it is whole, and so is the assignment."""
        self.current = Offered(head, self._attach(head))
        self._is_unsaved = True

    def _save(self) -> None:
        """Write the head, where that is asked for; one that cannot be written is no reason to stop."""
        self._is_unsaved = False
        self._saved_at = time.monotonic()
        out = self.settings.out
        if out is None or self._is_forked:
            return
        try:
            write_head(expanded(out), self.current.head)
            self.saved = out
        except OSError as error:
            self._tell(f"what was learned cannot be written to {out!r} ({one_line(error)})")

    def _tell(self, line: str) -> None:
        """Tell the user; who listens must not end anything either."""
        with suppress(Exception):
            self._notify(line)


class Learner:
    """What an engine's drafters hold: the head that drafts now, and where rows of verifications go.

    It ends with the engine, with the process, or with `close`; then what it has learned is written, where a file
    was named.
    """

    def __init__(self, *worker: Any) -> None:
        self._worker = Worker(*worker)
        self.close = weakref.finalize(self, self._worker.close)
        self.offer, self.read = self._worker.offer, self._worker.read

    @property
    def current(self) -> Offered:
        """The head of this moment."""
        return self._worker.current

    @property
    def is_on(self) -> bool:
        """Whether it learns: it was not closed, and nothing went wrong."""
        return self._worker.is_on

    @property
    def nbytes(self) -> int:
        """Bytes that learning takes beside the head that drafts: rows, those that wait, weights and moments."""
        return self._worker.course.nbytes + self._worker._sizes[1]

    def save(self, path: str) -> None:
        """Write the head as it is now; the file appears whole or not at all."""
        write_head(Path(path), self.current.head)

    def facts(self) -> dict[str, Any]:
        """What came of it, JSON-ready: counts, held-out α first and now, CPU seconds, and what went wrong."""
        worker = self._worker
        counts = worker.course.counts
        vocabulary = self.current.head.vocabulary
        return {
            **asdict(counts),
            "held": len(worker.course.replay),
            "vocabulary": None if vocabulary is None else len(vocabulary),
            "memory_bytes": self.nbytes,
            "share": worker.settings.share,
            "cpu_seconds": worker.pace.spent,
            "out": worker.settings.out,
            "saved": worker.saved or None,
            "failure": worker.failure or None,
        }
