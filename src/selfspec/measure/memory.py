"""Peak memory of this process."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

_RESET = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


class PeakMemory:
    """The peak of resident memory since the last `reset`.

    Linux can set its mark back; elsewhere `is_per_run` is False and the peak is that of the whole process.
    """

    def __init__(self) -> None:
        self.is_per_run = self.reset()

    def reset(self) -> bool:
        """Start again from what is resident now; whether that worked."""
        with suppress(OSError):
            _RESET.write_text("5")  # the high-water mark only: no page is touched
            return True
        return False

    def peak_bytes(self) -> int:
        """Bytes."""
        with suppress(OSError, StopIteration):
            lines = _STATUS.read_text(encoding="utf-8").splitlines()
            return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
        return _since_start()


def _since_start() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
