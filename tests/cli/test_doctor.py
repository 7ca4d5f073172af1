"""``selfspec doctor``: what it says of this installation, and what it finds in others."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import pytest

from selfspec import loading
from selfspec.doctor import facts, findings, requirements
from selfspec.doctor.facts import examine
from selfspec.doctor.findings import findings_of
from selfspec.doctor.requirements import Need


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A cache folder of its own."""
    monkeypatch.setenv("SELFSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_this_installation_is_well(call, home):
    """Guards the verb: exit code, lines and document agree, and looking makes no folder."""
    result = call("doctor", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["ok"]) == (0, True), found["findings"]
    assert found["runtime"]["name"] in loading.RUNTIMES[1:]
    assert found["core"] == {"built": False, "for_another_python": []} or found["core"]["self_test"] == "passed"
    assert found["packages"].keys() >= {"numpy", "tokenizers"} or not found["packages"]  # sources on the path
    assert found["cache"]["folder"] == str(home)
    assert not home.exists()
    shown = call("doctor")
    assert shown.exit_code == 0
    for words in (found["runtime"]["why"], found["machine"]["processor"], str(home), "models can run here"):
        assert words in shown.stdout
    for finding in found["findings"]:
        assert f"{finding['level']}: {finding['what']}" in shown.stdout


def test_no_torch_is_imported_without_a_gpu():
    """Guards the second that it takes; a driver that shows is worth it."""
    program = (
        "import sys; from selfspec.loading import shows_gpu; from selfspec.cli.main import cli\n"
        "try: cli.main(['doctor'])\n"
        "finally: assert shows_gpu() or 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


def test_the_cache_is_counted(home):
    """Guards sizes: entries, what was tuned, what killed processes left; locks are none of them."""
    for name, size in (("abc-v1/model", 1000), ("abc-v1/deep/x", 24), ("def-v1.tmp-1/x", 10), ("tuned/a.json", 5)):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(b"x" * size)
    (home / "abc-v1.lock").touch()
    found = examine()
    assert {
        name: found["cache"][name] for name in ("entries", "bytes", "tuned", "left_over", "left_over_bytes")
    } == {
        "entries": 1,
        "bytes": 1024,
        "tuned": 1,
        "left_over": 1,
        "left_over_bytes": 10,
    }
    assert [finding["what"] for finding in found["findings"] if "unfinished" in finding["what"]]


def test_nothing_to_run_models_with_is_exit_code_1(call, home, monkeypatch):
    """Guards the code that scripts look at."""
    monkeypatch.setattr(loading, "has_native", lambda: False)
    monkeypatch.setattr(facts, "find_spec", lambda name: None)
    result = call("doctor")
    assert result.exit_code == 1
    assert "problem: no runtime: neither the native core nor torch is installed" in result.stdout
    assert result.stdout.rstrip().endswith("models cannot run here yet")


def test_a_core_that_computes_wrong_is_a_problem(call, home, monkeypatch):
    """Guards the self-test: its words are shown, and the exit code says it."""
    from selfspec import OptionError
    from selfspec.runtime import selftest

    def fails():
        raise OptionError("the self-test of the native core failed (int4, avx2 kernels)")

    monkeypatch.setattr(loading, "has_native", lambda: True)
    monkeypatch.setattr(selftest, "self_test", fails)
    result = call("doctor")
    assert result.exit_code == 1
    assert "problem: the native core: the self-test of the native core failed (int4" in result.stdout


def changed(document, path, value):
    """A copy with another value at a path of keys."""
    found = copy.deepcopy(document)
    inner = found
    *names, last = path
    for name in names:
        inner = inner[name]
    inner[last] = value
    return found


BUILT = {"built": True, "features": [], "kernels": ["avx2", "portable"], "threads": 2, "self_test": "passed"}
WELL = {
    "core": BUILT,
    "runtime": {"name": "cpu", "why": ""},
    "machine": {"cores": 2},
    "environment": {},
    "devices": {"driver": False, "torch": "2.13", "gpus": []},
    "cache": {"folder": "c", "writable": True, "entries": 0, "free_bytes": 10**12, "left_over": 0},
    "models": {"a": {"there": False, "why": "the model a is not installed", "variable": "SELFSPEC_A"}},
    "drafters": {"loaded": 3, "broken": {}},
}
ILL = [
    (("core",), {"built": False, "for_another_python": ["_native.cpython-313.so"]}, "warning", "cpython-313.so"),
    (("core", "kernels"), ["portable"], "warning", "neither AVX2"),
    (("core", "self_test"), "it cannot be loaded", "problem", "it cannot be loaded"),
    (("runtime", "name"), None, "problem", "no runtime"),
    (("environment", "OMP_NUM_THREADS"), "16", "warning", "OMP_NUM_THREADS is 16, and 2 processors may be used"),
    (("devices", "driver"), True, "warning", "torch 2.13 finds no GPU"),
    (("devices",), {"driver": True, "torch": None, "gpus": []}, "warning", "torch is missing"),
    (("cache", "writable"), False, "problem", "set SELFSPEC_CACHE"),
    (("cache", "free_bytes"), 10**8, "warning", "has 0.1 GB left"),
    (("models", "a", "why"), "SELFSPEC_A is 'x'; it must be a file", "problem", "SELFSPEC_A is 'x'"),
    (("drafters", "broken"), {"mine": "no module x"}, "warning", "drafter mine: no module x"),
    (("drafters", "loaded"), 0, "problem", "entry points"),
]


def test_what_is_well_is_no_finding():
    """Guards the negative control of the list below; what is fine there must not be found."""
    assert findings_of(WELL, [Need("numpy", ">=2.1", "2.3")], {"torch": [Need("torch", ">=2.5", None)]}) == []
    assert findings_of(changed(WELL, ("environment", "OMP_NUM_THREADS"), "2"), [], {}) == []
    cached = changed(changed(WELL, ("cache", "writable"), False), ("cache", "entries"), 3)
    assert [finding.level for finding in findings_of(cached, [], {})] == ["warning"]


@pytest.mark.parametrize(("path", "value", "level", "words"), ILL, ids=lambda value: str(value)[:40])
def test_bad_combinations_are_found(path, value, level, words):
    """Guards each check: what, why, and what to do, in one line."""
    (finding,) = findings_of(changed(WELL, path, value), [], {})
    assert finding.level == level
    assert words in str(finding)
    assert "\n" not in str(finding)
    assert finding.remedy


def test_pythons_that_do_not_go_with_it_are_found(monkeypatch):
    """Guards free-threaded and 32-bit builds."""
    monkeypatch.setattr(findings.sysconfig, "get_config_var", lambda _: 1)
    monkeypatch.setattr(findings.sys, "maxsize", 2**31 - 1)
    assert ["free-threaded" in str(f) or "32-bit" in str(f) for f in findings_of(WELL, [], {})] == [True, True]


def test_requirements_are_those_of_the_metadata(monkeypatch):
    """Guards nested extras, markers, versions that are too old, and a half of an extra."""
    lines = [
        "numpy>=2.1", "old>=3; python_version < '3'", "selfspec[torch]; extra == 'hf'", "absent>=1; extra == 'hf'",
        "torch>=2.5; extra == 'torch'", "array-api-compat>=1; extra == 'torch'",
    ]  # fmt: skip
    there = {"numpy": "2.0", "torch": "2.4"}
    monkeypatch.setattr(requirements, "requires", lambda _: lines)
    monkeypatch.setattr(requirements, "version_of", there.get)
    monkeypatch.setattr(requirements, "metadata", lambda _: Provides())
    (numpy,) = base = requirements.base_needs()
    assert (str(numpy), numpy.is_met) == ("numpy 2.0 (needs >=2.1)", False)
    extras = requirements.extra_needs()
    assert {name: [need.package for need in needs] for name, needs in extras.items()} == {
        "hf": ["absent", "array-api-compat", "torch"],
        "torch": ["array-api-compat", "torch"],
    }
    found = [str(finding) for finding in findings_of(WELL, base, extras)]
    assert found[0].startswith("problem: numpy 2.0 (needs >=2.1): selfspec cannot do without it; pip install")
    assert sum("torch 2.4 (needs >=2.5)" in line for line in found) == 1  # told once
    assert sum("array-api-compat missing" in line for line in found) == 1
    assert len(found) == 3


class Provides:
    def get_all(self, _):
        return ["dev", "torch", "hf"]
