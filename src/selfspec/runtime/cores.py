"""How many threads are worth starting: what the process may use, not what the machine has."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

_ROOT = Path("/")


def available_processors(root: Path = _ROOT) -> int:
    """Processors that this process may use: its affinity mask, and the quota of its containers, rounded down.

    A container that may use 1.5 processors of 16 is stopped for the rest of each period when 16 threads wait for
    one another. Quotas are those of Linux control groups, version 2 (``cpu.max``) and 1 (``cpu.cfs_quota_us``),
    read below ``root``; every group up to the topmost one limits.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for group in groups(root, "cpu") if (quota := _quota(group)) is not None]
    return max(1, min([count, *(int(quota) for quota in quotas)]))


def groups(root: Path, controller: str) -> list[Path]:
    """The folders of the control groups of a controller that this process is in and of those above them."""
    found: list[Path] = []
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, name = line.split(":", 2) if line.count(":") >= 2 else ("", "-", "")
        if controllers and controller not in controllers.split(","):
            continue
        mounts = (
            ("sys/fs/cgroup", "sys/fs/cgroup/unified") if not controllers else (f"sys/fs/cgroup/{controllers}",)
        )
        group = PurePosixPath(name.lstrip("/"))
        found += [root / mount / part for mount in mounts for part in (group, *group.parents)]
    return found


def _quota(group: Path) -> float | None:
    """Processors that a group may use; None where it has no limit, or none that can be read."""
    limit = text_of(group / "cpu.max").split()
    if not limit:
        limit = [text_of(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    try:
        quota, period = (int(value) for value in limit)
    except ValueError:  # "max", or nothing
        return None
    return quota / period if quota > 0 and period > 0 else None


def text_of(path: Path) -> str:
    """What a file of the system says; "" where it cannot be read."""
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
