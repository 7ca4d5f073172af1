"""What there is here: versions, devices, threads, the runtime, caches, models; nothing is changed or written."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfspec import loading
from selfspec._version import __version__
from selfspec.doctor.findings import findings_of
from selfspec.doctor.requirements import base_needs, extra_needs, install_line
from selfspec.errors import SelfspecError
from selfspec.machine import machine, version_of
from selfspec.model import cache
from selfspec.model.embedded import PACKAGED, find_embedded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_WATCHED = ("vllm", "openvino-genai", "llama-cpp-python", "optimum")  # engines that drafts can run in
_ENVIRONMENT = (cache.VARIABLE, "OMP_NUM_THREADS", "MKL_NUM_THREADS", "SELFSPEC_SMOLLM2", "SELFSPEC_GEMMA3")


def examine() -> dict[str, Any]:
    """All that is known, as one document; ``ok`` is False where something has to be mended before a model runs."""
    facts: dict[str, Any] = {
        "selfspec": __version__,
        "machine": {**machine(), "processors": os.cpu_count() or 1},
        "environment": {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
        "packages": {need.package: need.version for need in base_needs()},
        "extras": _extras(),
        "core": _core(),
        "devices": _devices(),
        "runtime": _runtime(),
        "cache": _cache(cache.cache_folder()),
        "models": {name: _model(name) for name in PACKAGED},
        "drafters": _drafters(),
    }
    found = findings_of(facts, base_needs(), extra_needs())
    is_well = all(finding.level != "problem" for finding in found)
    return {"ok": is_well, **facts, "findings": [finding.to_dict() for finding in found]}


def _extras() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for extra, needs in extra_needs().items():
        is_there = all(need.is_met for need in needs)
        found[extra] = {
            "there": is_there,
            "packages": {need.package: need.version for need in needs},
            **({} if is_there else {"install": install_line(extra)}),
        }
    others = {name: version for name in _WATCHED if (version := version_of(name))}
    return found | ({"other engines": {"there": True, "packages": others}} if others else {})


def _core() -> dict[str, Any]:
    """The native core: whether it is built, what the processor has, which kernels run, and its self-test."""
    if not loading.has_native():
        others = sorted(path.name for path in Path(loading.__file__).parent.glob("_native.*.so"))
        return {"built": False, "for_another_python": others}
    try:
        from selfspec.runtime.cores import available_processors
        from selfspec.runtime.packing import native
        from selfspec.runtime.selftest import self_test

        core = native()
        found = {"built": True, "features": core.features(), "kernels": core.kernel_sets()}
        found["threads"] = available_processors()
    except ImportError as error:
        return {"built": True, "self_test": f"it cannot be loaded: {error}"}
    try:
        self_test()
    except SelfspecError as error:
        return found | {"self_test": str(error)}
    return found | {"self_test": "passed"}


def _devices() -> dict[str, Any]:
    """What torch sees, which is imported only where the driver of a GPU shows."""
    shows = loading.shows_gpu()
    found: dict[str, Any] = {"driver": shows, "torch": version_of("torch"), "gpus": []}
    if shows and find_spec("torch") is not None:
        from selfspec.runtime.torch import TorchRuntime

        found["gpus"] = TorchRuntime.gpus()
    return found


def _runtime() -> dict[str, str | None]:
    """Which runtime a model of the Llama type gets where nothing is said, and why."""
    has_core, has_torch = loading.has_native(), find_spec("torch") is not None
    if not has_core and not has_torch:
        return {"name": None, "why": "neither the native core nor torch is installed"}
    if loading.has_gpu():
        return {"name": "torch", "why": "torch has a GPU; --runtime cpu takes the native core"}
    if not has_core:
        return {"name": "torch", "why": "the native core is not built here"}
    why = "torch has no GPU here" if has_torch else "torch is not installed"
    rest = "; families that the core lacks run in torch" if has_torch else ""
    return {"name": "cpu", "why": f"the native core is built, and {why}{rest}"}


def _cache(folder: Path) -> dict[str, Any]:
    """The conversion cache: entries, what was tuned, what killed processes left, room."""
    there = _sizes(folder.iterdir()) if folder.is_dir() and os.access(folder, os.R_OK) else {}
    left = {name: size for name, size in there.items() if ".tmp-" in name}
    entries = {n: s for n, s in there.items() if n not in left and n != "tuned" and not n.endswith(".lock")}
    place = next(path for path in (folder, *folder.parents) if path.is_dir())
    try:
        free = shutil.disk_usage(place).free
    except OSError:
        free = None
    return {
        "folder": str(folder),
        "writable": os.access(place, os.W_OK | os.X_OK),
        "entries": len(entries),
        "bytes": sum(entries.values()),
        "tuned": len(list((folder / "tuned").glob("*.json"))),
        "left_over": len(left),
        "left_over_bytes": sum(left.values()),
        "free_bytes": free,
    }


def _sizes(paths: Iterable[Path]) -> dict[str, int]:
    """Bytes by name; what vanishes meanwhile counts nothing."""
    found = {}
    for path in paths:
        files = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
        found[path.name] = sum(_size(file) for file in files)
    return found


def _size(file: Path) -> int:
    try:
        return 0 if file.is_dir() else file.lstat().st_size
    except OSError:
        return 0


def _model(name: str) -> dict[str, Any]:
    try:
        return {"there": True, "file": str(find_embedded(name))}
    except SelfspecError as error:
        return {"there": False, "why": str(error), "variable": PACKAGED[name].variable}


def _drafters() -> Mapping[str, Any]:
    """How many can be loaded, and why the others cannot."""
    from selfspec.drafters import available, drafter_class

    broken: dict[str, str] = {}
    try:
        names = list(available())
    except SelfspecError as error:
        return {"loaded": 0, "broken": {"all": str(error)}}
    for name in names:
        try:
            drafter_class(name)
        except SelfspecError as error:
            broken[name] = " ".join(str(error).split())
    return {"loaded": len(names) - len(broken), "broken": broken}
