"""The default number of threads: affinity, and the quotas of containers."""

from __future__ import annotations

import os

import pytest

from selfspec.runtime.cores import available_processors

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity masks")


@pytest.fixture(autouse=True)
def eight(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def system(root, groups, **files):
    """A root folder with /proc/self/cgroup and files of control groups; "/" in a name is "__"."""
    for name, text in {"proc__self__cgroup": groups, **files}.items():
        path = root / name.replace("__", "/").replace("cpu_max", "cpu.max").replace("cpu_cfs", "cpu.cfs")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("250000 100000", 2), ("50000 100000", 1), ("max 100000", 8), ("1600000 100000", 8), ("", 8), ("rubbish", 8)],
)
def test_the_quota_of_version_2(tmp_path, limit, expected):
    """Guards threads that stop each other in a container."""
    assert available_processors(system(tmp_path, "0::/\n", sys__fs__cgroup__cpu_max=limit)) == expected


def test_the_quota_of_a_group_above(tmp_path):
    """Guards a pod's limit: the container's own group may have none."""
    files = {"sys__fs__cgroup__pod__box__cpu_max": "max 100000", "sys__fs__cgroup__pod__cpu_max": "300000 100000"}
    assert available_processors(system(tmp_path, "0::/pod/box\n", **files)) == 3


@pytest.mark.parametrize(("quota", "expected"), [("400000", 4), ("-1", 8)])
def test_the_quota_of_version_1(tmp_path, quota, expected):
    """Guards hosts of the older kind, where the two controllers share a folder."""
    folder = "sys__fs__cgroup__cpu,cpuacct__box__"
    files = {f"{folder}cpu_cfs_quota_us": quota, f"{folder}cpu_cfs_period_us": "100000"}
    groups = "5:memory:/elsewhere\n3:cpu,cpuacct:/box\n0::/\n"
    assert available_processors(system(tmp_path, groups, **files)) == expected


def test_no_control_groups(tmp_path, monkeypatch):
    """Guards other systems, and the affinity mask."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert available_processors(tmp_path) == 1
