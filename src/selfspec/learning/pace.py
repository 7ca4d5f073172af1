"""How much of a core a thread takes: a stated share, by its own CPU time."""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from selfspec.runtime.cores import available_processors

if TYPE_CHECKING:
    from collections.abc import Callable


class Pace:
    """After work of c CPU seconds the next may begin c ÷ ``share`` seconds after that began.

    Unused time is not saved up, so in any stretch of time the work takes at most ``share`` of it, and one piece of
    work more. ``times`` says how many CPU seconds a second of this thread stands for.
    """

    def __init__(
        self,
        share: float,
        times: int = 1,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._share, self._times, self._clock, self._cpu = share, times, clock, cpu
        self._began = (clock(), cpu())
        self.spent = 0.0  # CPU seconds

    def begin(self) -> None:
        """A piece of work begins."""
        self._began = (self._clock(), self._cpu())

    def end(self) -> float:
        """It ends; how many seconds to wait before the next one."""
        began, before = self._began
        took = self._times * (self._cpu() - before)
        self.spent += took
        return max(0.0, took / self._share - (self._clock() - began))


@cache
def _blas() -> Any:
    """What sets the number of NumPy's threads; None without threadpoolctl."""
    try:
        found = import_module("threadpoolctl")
    except ImportError:
        return None
    return found.ThreadpoolController().select(user_api="blas")


def one_thread() -> AbstractContextManager[Any]:
    """NumPy's products take one thread, where threadpoolctl is there to say so."""
    found = _blas()
    return nullcontext() if found is None else found.limit(limits=1)


def threads_of_products() -> int:
    """How many threads a product of NumPy may have inside `one_thread`; an upper bound where nobody can say."""
    found = _blas()
    if found is not None and found.info():
        return 1
    asked = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or ""
    return int(asked) if asked.isdecimal() and int(asked) else available_processors()
