"""Where packed weights lie: in huge pages where there are some and there is room, else mapped; the same bytes."""

from __future__ import annotations

import numpy as np
import pytest

from selfspec.runtime import held as holding
from selfspec.runtime.held import HUGE, held

pytestmark = pytest.mark.usefixtures("core")
SIZE = HUGE + 12_345


@pytest.fixture
def core():
    pytest.importorskip("selfspec._native")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "packed.bin"
    path.write_bytes(np.random.default_rng(0).bytes(SIZE))
    return path


def system(root, available, enabled="always [madvise] never", **limits):
    """A root folder of a system with so many bytes available, and limits of control groups ("__" for "/")."""
    texts = {
        "proc/meminfo": f"MemTotal: 99999999 kB\nMemAvailable: {available // 1024} kB\n",
        "proc/self/cgroup": "0::/box\n",
        "sys/kernel/mm/transparent_hugepage/enabled": enabled,
        **{f"sys/fs/cgroup/{group}memory.max": text for group, text in limits.items()},
    }
    for name, text in texts.items():
        path = root / "system" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "system"


def is_mapped(data):
    while not isinstance(data, np.memmap | type(None)):
        data = getattr(data, "base", None)
    return data is not None


@pytest.mark.parametrize(
    ("options", "mapped"),
    [
        ({"available": 2 * SIZE}, False),
        ({"available": SIZE}, True),  # nothing would be left
        ({"available": 0}, True),
        ({"available": 9 * SIZE, "enabled": "always madvise [never]"}, True),
        ({"available": 9 * SIZE, "enabled": ""}, True),
        ({"available": 9 * SIZE, "box__": f"{SIZE}\n"}, True),  # the container's own limit
        ({"available": 9 * SIZE, "box__": "max\n"}, False),
        ({"available": 9 * SIZE, "box__": "max\n", "": f"{SIZE}\n"}, True),  # that of a group above
        ({"available": 9 * SIZE, "box__": f"{3 * SIZE}\n"}, False),
    ],
    ids=str,
)
def test_the_bytes_are_those_of_the_file(file, tmp_path, options, mapped):
    """Guards both ways, and small machines and containers against memory that cannot be given back."""
    data = held(file, system(tmp_path, **options))
    assert is_mapped(data) == mapped
    assert data.tobytes() == file.read_bytes()
    assert not data.flags.writeable


def test_a_small_file_is_mapped_and_an_empty_one_refused(tmp_path):
    """Guards small models: less than a huge page gains nothing."""
    small, empty = tmp_path / "small", tmp_path / "empty"
    small.write_bytes(b"12345")
    empty.touch()
    root = system(tmp_path, 9 * SIZE)
    assert is_mapped(held(small, root))
    with pytest.raises(ValueError, match="empty"):
        held(empty, root)


def test_a_file_that_shrinks_is_refused(file, tmp_path, monkeypatch):
    """Guards weights of zeros, where a file is cut between its size and its bytes."""
    real = holding.allocate

    def cut(size):
        file.write_bytes(file.read_bytes()[:-1])
        return real(size)

    monkeypatch.setattr(holding, "allocate", cut)
    with pytest.raises(ValueError, match=f"packed.bin had {SIZE} bytes and has {SIZE - 1}"):
        held(file, system(tmp_path, 9 * SIZE))
