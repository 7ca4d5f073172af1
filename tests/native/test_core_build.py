"""The native core is there where it can be, and tests itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

from selfspec.errors import OptionError, RuntimeMissingError
from selfspec.runtime import packing, selftest
from selfspec.runtime.cpu import CpuRuntime


def test_the_core_is_built_where_a_compiler_is():
    """Guards the build: without this, every other test here could vanish silently."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler: the package is pure Python here")
    assert packing.native().kernel_sets()[-1] == "portable"


def test_the_fastest_kernels_are_those_of_the_processor():
    """Guards the choice at run time: a set is there where the processor has all that it was compiled for."""
    core = packing.native()
    features = set(core.features())
    avx2 = {"avx2", "fma", "f16c"}
    avx512 = avx2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
    needs = {
        "avx512_vnni": avx512 | {"avx512vnni"},
        "avx512": avx512,
        "avx_vnni": avx2 | {"avxvnni"},
        "avx2": avx2,
        "neon_dot": {"neon", "dotprod"},
        "neon": {"neon"},
        "portable": set(),
    }
    assert core.kernel_sets() == [name for name, wanted in needs.items() if wanted <= features]


def test_the_self_test_passes_quickly():
    """Guards the promise of under 0.3 s; processor time, because other tests run beside this one."""
    selftest.self_test.cache_clear()
    before = time.process_time()
    selftest.self_test()
    assert time.process_time() - before < 0.3


def test_the_self_test_sees_a_wrong_bit(monkeypatch):
    """Negative control: one logit of one kernel set is one unit in the last place off."""
    logits, fastest = CpuRuntime.logits, packing.native().kernel_sets()[0]

    def wrong(self, hidden, head=None):
        out = logits(self, hidden, head)
        if self.kernels == fastest and len(out) > 1:
            out[3, 5] = np.nextafter(out[3, 5], np.float32(9))
        return out

    monkeypatch.setattr(CpuRuntime, "logits", wrong)
    selftest.self_test.cache_clear()
    with pytest.raises(OptionError, match="self-test of the native core failed"):
        selftest.self_test()
    selftest.self_test.cache_clear()


def test_without_the_core_the_error_says_what_to_do(monkeypatch):
    """Guards an installation without a compiler: only torch is available, and one line says so."""
    monkeypatch.setitem(sys.modules, "selfspec._native", None)
    monkeypatch.delattr("selfspec._native", raising=False)
    with pytest.raises(RuntimeMissingError, match="not built in this installation"):
        packing.native()


def test_the_cpu_runtime_needs_no_torch():
    """Guards the light base: the core is loaded and used without torch."""
    code = (
        "import sys\nfrom selfspec.runtime.selftest import self_test\nself_test()\nsys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
