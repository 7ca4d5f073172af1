"""Check and measure the torch runtime on a GPU, in one go and under 8 minutes: run nothing else beside it.

    python bench/gpu.py --out gpu.json              everything, on the first GPU
    python bench/gpu.py --rehearse                  the same on the CPU with tiny shapes, in minutes
    python bench/gpu.py --predict                   what the cost model expects; measures nothing

It needs torch, transformers and this repository. What a section cannot do (memory, a missing package, its deadline)
is reported, and the others go on; after each section --out is written. The last ones put what was measured beside
the predictions and the aims. See docs/gpu.md.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch
from gpu_bench import Bench
from gpu_equality import equality
from gpu_models import SHAPES, TINY_SHAPES
from gpu_predictions import aims, compared, predictions, table
from gpu_speed import embedded, machine, quantised, speed_of, transformers

BUDGET = 460.0  # seconds of all sections together
PATIENCE = 100.0  # of a rehearsal: a machine that is busy, or stands still for a while, is no reason to fail

Sections: TypeAlias = dict[str, tuple[float, Callable[[Bench], dict[str, Any]]]]
"""By name: the most seconds, and what is to be done."""


def sections(shapes: list[str]) -> Sections:
    """All of them, in their order."""
    return {
        "machine": (20.0, machine),
        "equality": (90.0, equality),
        **{name: (90.0, speed_of(name)) for name in shapes},
        "transformers": (80.0, transformers),
        "embedded": (60.0, embedded),
        "quantised": (80.0, quantised),
        "compared": (5.0, lambda bench: compared(bench.results, bench.shapes)),
        "aims": (5.0, lambda bench: {"aims": aims(bench.results, bench.shapes, bench.is_gpu)}),
    }


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the section when its time is over, where the system has alarms."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def over(*_: Any) -> None:
        raise TimeoutError(f"its {seconds:.0f} s are over")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def run(bench: Bench, chosen: Sections, out: Path | None, patience: float = 1.0) -> None:
    """Each section within its seconds, and all within the budget, times ``patience``."""
    ends = time.perf_counter() + patience * BUDGET
    for name, (seconds, section) in chosen.items():
        print(f"{name}", flush=True)
        started = time.perf_counter()
        try:
            with deadline(max(min(patience * seconds, ends - started), 1.0)):
                bench.results[name] = section(bench)
        except Exception as error:  # noqa: BLE001 (the others go on)
            where = traceback.extract_tb(error.__traceback__)[-1]
            lines = str(error).splitlines() or [""]
            bench.results[name] = {
                "failed": f"{type(error).__name__}: {lines[0]}",
                "at": f"{where.name}:{where.lineno}",
            }
        bench.results[name]["seconds"] = round(time.perf_counter() - started, 2)
        show(bench.results[name])
        if bench.is_gpu:
            torch.cuda.set_sync_debug_mode("default")
            torch.cuda.empty_cache()
        if out is not None:
            write(out, bench.results)


def write(out: Path, found: Any) -> None:
    """As JSON."""
    out.write_text(json.dumps(found, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")


def show(result: Any, indent: int = 4) -> None:
    """A table of names and numbers."""
    for name, value in result.items():
        if isinstance(value, dict):
            print(f"{' ' * indent}{name}")
            show(value, indent + 4)
        elif isinstance(value, list):
            print(f"{' ' * indent}{name}")
            for entry in value:
                print(" " * (indent + 4) + "  ".join(f"{key} {_number(one)}" for key, one in entry.items()))
        else:
            print(f"{' ' * indent}{name!s:<34} {_number(value)}", flush=True)


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the results there, as JSON")
    parser.add_argument("--rehearse", action="store_true", help="the same on the CPU with tiny shapes")
    parser.add_argument("--predict", action="store_true", help="print what the cost model expects, and stop")
    parser.add_argument("--only", help="sections, with commas")
    parser.add_argument("--backend", help="of torch.compile, or none; rehearsals have eager")
    arguments = parser.parse_args()
    if arguments.predict:
        print(table())
        if arguments.out is not None:
            write(arguments.out, predictions())
        return
    if not arguments.rehearse and not torch.cuda.is_available():
        parser.error("torch finds no CUDA GPU here; --rehearse runs the same on the CPU")
    backend = None if arguments.backend == "none" else arguments.backend
    if arguments.rehearse:
        bench = Bench(torch.device("cpu"), TINY_SHAPES, 16, 40, 2, backend if arguments.backend else "eager")
    else:
        bench = Bench(torch.device("cuda"), SHAPES, 96, 192, 30, backend if arguments.backend else "inductor")
    chosen = sections(list(bench.shapes))
    if arguments.only:
        names = arguments.only.split(",")
        if unknown := [name for name in names if name not in chosen]:
            parser.error(f"--only has {unknown[0]!r}; sections are {', '.join(chosen)}")
        always = ("machine", "compared", "aims")
        chosen = {name: section for name, section in chosen.items() if name in (*always, *names)}
    run(bench, chosen, arguments.out, PATIENCE if arguments.rehearse else 1.0)
    sys.exit(any("failed" in result for result in bench.results.values()))


if __name__ == "__main__":
    main()
