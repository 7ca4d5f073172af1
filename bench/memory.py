"""What `selfspec plan` counts beside what a process holds.

    python bench/memory.py --context 2048 --concurrency 4 [--model ... --runtime cpu --bits 8 --kv int8]
    python bench/memory.py --context 1024 --concurrency 2 --runtime torch --dtype bfloat16
    python bench/memory.py --draft auto

A cache is filled with a prompt of ``context`` tokens in every slot, and a pass of γ + 1 rows of every text gets its
logits. This is done twice in one process, so that the libraries are there; what the second engine makes the process
grow by is counted, less what a tokenizer does. With ``--draft auto`` the engine holds what its default brings,
though nothing is drafted. Prints one JSON line with bytes: ``planned`` and ``measured``, whose ``weights`` and
``cache`` are what the runtime says, and ``resident`` the peak of that growth.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
from pathlib import Path
from typing import Any

GAMMA = 4


def resident() -> int:
    """Bytes of this process in memory now."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) * 1024


def _give_back() -> None:
    """Free what nothing refers to, to the system where its C library can."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def measured(model: str, context: int, slots: int, draft: str = "plain", **placement: Any) -> dict[str, int]:
    """Bytes held by weights and cache as the runtime says, and what the process grew by."""
    from selfspec import load
    from selfspec.measure.memory import PeakMemory
    from selfspec.model import find_checkpoint

    _used(load(model, draft=draft, **placement), context, slots)  # now all libraries are there
    _give_back()
    program = resident()
    tokenizer = find_checkpoint(model).tokenizer
    _give_back()
    start = resident()
    engine = load(model, draft=draft, **placement)
    _give_back()
    peak = PeakMemory()
    cache = _used(engine, context, slots)
    assert tokenizer  # held to the end: what it frees would be used again
    return {
        "weights": engine.runtime.weight_bytes,
        "cache": cache.nbytes,
        "resident": peak.peak_bytes() - start - (start - program),
        "program": start,
    }


def _used(engine: Any, context: int, slots: int) -> Any:
    """Fill a cache, and get the logits of γ + 1 rows of every text; the cache."""
    import numpy as np

    from selfspec.context import Context
    from selfspec.types import Rows

    runtime = engine.runtime
    cache = runtime.new_cache(slots, context)
    held = Context(runtime, cache)
    runtime.logits(held.write(0, [1]))  # all weights are there before the longest passes, as in a second request
    for slot in range(slots):
        held.write(slot, [slot] * (context - GAMMA - 1))
    places = np.arange(context - GAMMA - 1, context)
    rows = Rows.of([slot for slot in range(slots) for _ in places], [*places] * slots)
    hidden, _ = runtime.run(runtime.embed([1] * len(rows), rows.positions), held.full, rows, cache)
    runtime.logits(hidden)
    return cache


def planned(model: str, context: int, slots: int, draft: str = "plain", **placement: Any) -> dict[str, int]:
    """Bytes as `selfspec plan` counts them, by part and together, but for those that only drafting takes."""
    from selfspec.measure.plan import plan

    rows = plan(model, memory="1TB", context=context, concurrency=slots, gamma=GAMMA, **placement).rows
    parts = dict(next(row.parts for row in rows if row.way.name == {"plain": "none"}.get(draft, draft)))
    parts |= {"draft cache": 0, "draft buffers": 0}
    return {**parts, "total": sum(parts.values())}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--runtime", default="cpu")
    parser.add_argument("--bits", type=int)
    parser.add_argument("--kv")
    parser.add_argument("--dtype")
    parser.add_argument("--draft", choices=["plain", "auto"], default="plain")
    args = vars(parser.parse_args())
    asked = tuple(args.pop(name) for name in ("model", "context", "concurrency"))
    placement = {name: value for name, value in args.items() if value is not None}
    print(json.dumps({"planned": planned(*asked, **placement), "measured": measured(*asked, **placement)}))


if __name__ == "__main__":
    main()
