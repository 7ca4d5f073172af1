"""What does not go together, with the reason: one small check each, over the facts alone."""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from selfspec.doctor.requirements import install_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from selfspec.doctor.requirements import Need

LOW_DISK = 2 * 10**9  # a conversion to float32 of the embedded model takes 0.7 GB, and packing a little more


@dataclass(frozen=True)
class Finding:
    """A ``problem`` keeps models from running here; a ``warning`` makes them slow, or something else fail."""

    level: Literal["problem", "warning"]
    what: str
    why: str
    remedy: str

    def to_dict(self) -> dict[str, str]:
        """JSON-ready."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.level}: {self.what}: {self.why}; {self.remedy}"


def findings_of(
    facts: Mapping[str, Any], base: Sequence[Need], extras: Mapping[str, Sequence[Need]]
) -> list[Finding]:
    """All of them, the problems first; ``base`` and ``extras`` are what the package asks for."""
    found = [
        *_missing(base),
        *_outdated(extras),
        *_core(facts["core"]),
        *_runtime(facts),
        *_threads(facts),
        *_gpu(facts["devices"]),
        *_cache(facts["cache"]),
        *_models(facts["models"]),
        *_drafters(facts["drafters"]),
        *_python(),
    ]
    return sorted(found, key=lambda finding: finding.level != "problem")


def _missing(base: Sequence[Need]) -> Iterator[Finding]:
    for need in base:
        if not need.is_met:
            yield Finding(
                "problem",
                str(need),
                "selfspec cannot do without it",
                f"pip install '{need.package}{need.wanted}'",
            )


def _outdated(extras: Mapping[str, Sequence[Need]]) -> Iterator[Finding]:
    """Of an extra what is there and too old, or half of it: its verbs would fail with another library's words."""
    told: set[str] = set()
    for extra, needs in extras.items():
        there = [need for need in needs if need.version is not None]
        for need in needs:
            is_half = need.version is None and need.package == "array-api-compat" and there
            if (need.version is not None and not need.is_met) or is_half:
                if need.package not in told:
                    yield Finding(
                        "warning",
                        str(need),
                        f"the extra {extra} is not complete, so what uses it fails",
                        install_line(extra),
                    )
                told.add(need.package)


def _core(core: Mapping[str, Any]) -> Iterator[Finding]:
    if not core["built"]:
        if core["for_another_python"]:
            yield Finding(
                "warning",
                "the native core is of another Python",
                f"{', '.join(core['for_another_python'])} cannot be imported here",
                "install selfspec again, in this Python",
            )
        return
    if core["self_test"] != "passed":
        yield Finding(
            "problem",
            "the native core",
            core["self_test"],
            "use --runtime torch, and report this with the output of selfspec doctor --json",
        )
    elif core["kernels"] == ["portable"]:
        yield Finding(
            "warning",
            "only the portable kernels run here",
            "the processor, or what emulates it, shows neither AVX2 with FMA and F16C nor NEON: passes take "
            "several times as long",
            "on Apple's processors use a Python for arm64; elsewhere another machine",
        )


def _runtime(facts: Mapping[str, Any]) -> Iterator[Finding]:
    if facts["runtime"]["name"] is None:
        yield Finding(
            "problem",
            "no runtime",
            facts["runtime"]["why"],
            f"install a wheel of selfspec, a C++20 compiler before its sources, or torch: {install_line('torch')}",
        )


def _threads(facts: Mapping[str, Any]) -> Iterator[Finding]:
    cores, environment = facts["machine"]["cores"], facts["environment"]
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        asked = environment.get(name, "")
        if asked.isdecimal() and int(asked) > cores:
            yield Finding(
                "warning",
                f"{name} is {asked}, and {cores} processors may be used",
                "threads of torch that wait for one another on too few processors make every pass slower",
                f"leave it out, or set it to {cores}",
            )


def _gpu(devices: Mapping[str, Any]) -> Iterator[Finding]:
    if devices["driver"] and devices["torch"] and not devices["gpus"]:
        yield Finding(
            "warning",
            f"a GPU's driver shows, and torch {devices['torch']} finds no GPU",
            "that build of torch is for processors alone, or for another driver, so models run on the processor",
            "install the build of torch for this driver (pytorch.org), or go on without",
        )
    if devices["driver"] and not devices["torch"]:
        yield Finding(
            "warning", "a GPU's driver shows, and torch is missing", "GPUs need torch", install_line("torch")
        )


def _cache(cache: Mapping[str, Any]) -> Iterator[Finding]:
    folder, free = cache["folder"], cache["free_bytes"]
    if not cache["writable"]:
        yield Finding(
            "warning" if cache["entries"] else "problem",
            f"the cache folder {folder!r} cannot be written",
            "models that are not converted there yet cannot be loaded",
            "set SELFSPEC_CACHE to a folder that can be written",
        )
    elif free is not None and free < LOW_DISK:
        yield Finding(
            "warning",
            f"the cache folder {folder!r} has {free / 1e9:.1f} GB left",
            "a conversion keeps a model's weights once more, in float32 until they are packed",
            "free some, or set SELFSPEC_CACHE to a folder elsewhere",
        )
    if cache["left_over"]:
        yield Finding(
            "warning",
            f"{cache['left_over']} unfinished conversions of {cache['left_over_bytes'] / 1e9:.1f} GB",
            "killed processes left them, or one is at work",
            f"the next conversion removes them; or remove {folder}/*.tmp-* while nothing runs",
        )


def _models(models: Mapping[str, Any]) -> Iterator[Finding]:
    """A packaged model that is not installed is no finding; one that a variable names wrongly is."""
    for model in models.values():
        if not model["there"] and model["why"].startswith(model["variable"]):
            yield Finding("problem", model["variable"], model["why"], "set it to a file that is there, or unset it")


def _drafters(drafters: Mapping[str, Any]) -> Iterator[Finding]:
    if not drafters["loaded"] and not drafters["broken"]:
        yield Finding(
            "problem",
            "no drafter is installed",
            "the sources are on the path, but the package's entry points are not",
            "install it: pip install selfspec, or pip install -e . in its sources",
        )
    for name, why in drafters["broken"].items():
        yield Finding("warning", f"drafter {name}", why, "update or uninstall the package that brings it")


def _python() -> Iterator[Finding]:
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        yield Finding(
            "warning",
            "a free-threaded Python",
            "the native core is not built for it: importing it switches the GIL on again",
            "use the usual build of this Python",
        )
    if sys.maxsize < 2**32:
        yield Finding(
            "warning", "a 32-bit Python", "weights are mapped, and 2 GB hold few models", "use a 64-bit Python"
        )
