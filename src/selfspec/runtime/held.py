"""Packed weights in memory of our own, in huge pages.

Every pass reads all weights, far more than the processor's tables of addresses reach in pages of 4 KB, and a map of
a file has such pages. In huge pages a pass of one row took 8 to 11 % less (docs/memory.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from selfspec.runtime.cores import groups, text_of
from selfspec.runtime.packing import allocate

if TYPE_CHECKING:
    from numpy.typing import NDArray

HUGE = 1 << 21  # bytes of a huge page
_ROOT = Path("/")


def held(file: Path, root: Path = _ROOT) -> NDArray[np.uint8]:
    """The bytes of a file: read into huge pages where there are some and there is room, else mapped.

    ``root`` is where the system's own files lie. Raises ValueError for a file that is empty or shrinks meanwhile.
    """
    size = file.stat().st_size
    if size < HUGE or size > _room(root):
        return np.memmap(file, np.uint8, "r").view(np.ndarray)
    memory, done = allocate(size), 0
    with file.open("rb", buffering=0) as source:
        while done < size and (count := source.readinto(memory.data[done:])):
            done += count
    if done < size:
        raise ValueError(f"{file.name} had {size} bytes and has {done}")
    memory.flags.writeable = False
    return memory


def _room(root: Path) -> int:
    """Bytes that a process may take for weights; 0 where there are no huge pages.

    Four fifths of what is available, and half of what its containers may have.
    """
    enabled = text_of(root / "sys/kernel/mm/transparent_hugepage/enabled")
    if not enabled or "[never]" in enabled:
        return 0
    lines = (line.split() for line in text_of(root / "proc/meminfo").splitlines())
    available = [int(words[1]) * 1024 for words in lines if words[:1] == ["MemAvailable:"]]
    names = ("memory.max", "memory.limit_in_bytes")
    limits = [text_of(group / name).strip() for group in groups(root, "memory") for name in names]
    most = [*(each * 4 // 5 for each in available), *(int(each) // 2 for each in limits if each.isdigit())]
    return min(most, default=0)
