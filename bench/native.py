"""What a pass of the native core costs: one row against the memory floor, v(T), and the time by operator.

    python bench/native.py --kinds bf16 int8 int4 --pairs 9
    python bench/native.py --kinds stored --kv float16 int8 --context 6000 --rows 1 4 --prefill 0

Everything alternates in one run: each repetition sums a vector, copies one, reads the weights without arithmetic,
and runs passes of T rows at the given context, head and arg-max included; ratios are taken within a repetition.
Run nothing beside it. The theory: a pass cannot be faster than reading its weights and its KV, so the floor of
one row is its bytes / the best of the three bandwidths, and as long as arithmetic hides behind memory v(T) stays
near 1. "stored" is the model as it is packed by default: a GGUF file's blocks as they are.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from itertools import product
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

import selfspec
from selfspec.measure.passes import Vector, fill
from selfspec.model.load import find_checkpoint
from selfspec.model.stored import from_safetensors
from selfspec.runtime.cores import available_processors
from selfspec.runtime.cpu import KV, CpuRuntime, kv_bytes_per_token
from selfspec.runtime.packing import KINDS, Packed, allocate, pack, packed_bytes
from selfspec.runtime.parts import parts_by_name
from selfspec.types import LayerPlan, Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
OPERATORS = ("norms", "qkv", "rotary+cache", "attention", "output", "gate+up", "down", "head")


def packed_model(checkpoint: Any, kind: str) -> dict[str, Any]:
    """The weights of a checkpoint, packed in one kind, one after the other in one piece of memory."""
    parts = parts_by_name(checkpoint.config)
    kinds = {part.key: "fp32" if part.is_exact else kind for group in parts.values() for part in group}
    matrices = [part for group in parts.values() for part in group if not part.is_vector]
    arena = allocate(sum(packed_bytes(kinds[part.key], *part.shape) for part in matrices))
    used, weights = 0, {}
    for name, weight in from_safetensors(checkpoint.weight_files):
        for part in parts[name]:
            values = np.ascontiguousarray(part.of(weight).dense())
            if not part.is_vector:
                size = packed_bytes(kinds[part.key], *part.shape)
                values, used = pack(values, kinds[part.key], arena[used : used + size]), used + size
            weights[part.key] = values
    return weights


def clocked(work: Callable[[], Any]) -> float:
    """Milliseconds."""
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


class Case:
    """One packed model with a filled cache."""

    def __init__(
        self,
        checkpoint: Any,
        weights: dict[str, Any],
        args: argparse.Namespace,
        side: tuple[str | None, str | None],
    ) -> None:
        kernels, kv = side
        self.runtime = CpuRuntime(checkpoint.config, weights, threads=args.threads, kernels=kernels, kv=kv)
        self.bytes = [w.data for w in weights.values() if isinstance(w, Packed)]
        self.size = sum(len(data) for data in self.bytes)
        self.context: int = args.context
        self.full = LayerPlan.full(checkpoint.config.num_layers)
        self.cache = self.runtime.new_cache(1, max(args.context + max(args.rows), args.prefill))
        self.tokens = (
            np.random.default_rng(0).integers(0, 2**15, args.context + max(args.prefill, *args.rows)).tolist()
        )
        self.prefill(args.context)
        self.core = self.runtime._model  # its clocks are no part of the runtime

    def prefill(self, count: int) -> None:
        fill(self.runtime, self.cache, self.tokens[:count])

    def rows(self, count: int, start: int) -> Any:
        rows = Rows.of([0] * count, range(start, start + count))
        hidden = self.runtime.embed(self.tokens[start : start + count], rows.positions)
        return self.runtime.run(hidden, self.full, rows, self.cache)[0]

    def turn(self, count: int) -> None:
        self.runtime.best(self.rows(count, self.context))

    def floor(self) -> None:
        self.core.sweep(self.bytes)

    @property
    def kv_bytes(self) -> int:
        """Read by one row at this context."""
        return kv_bytes_per_token(self.runtime.config, self.runtime.kv) * self.context

    @property
    def side(self) -> str:
        """What is compared with others."""
        return f"{self.runtime.kernels}, KV {self.runtime.kv}"


def measure(cases: Sequence[Case], vector: Vector, rows: Sequence[int], pairs: int) -> list[dict[str, list[float]]]:
    """Of each repetition and case: milliseconds of a pass of T rows, of reading the weights; best bytes per ms."""
    names = ["floor", *map(str, rows)]
    times: list[dict[str, list[float]]] = [{name: [] for name in (*names, "bytes_per_ms")} for _ in cases]
    works: dict[Any, Callable[[], Any]] = {"sum": vector.sum, "copy": vector.copy}
    for i, case in enumerate(cases):
        works[i, "floor"] = case.floor
        works |= {(i, str(count)): partial(case.turn, count) for count in rows}
    moved = {"sum": vector.sum(), "copy": vector.copy()}
    for repetition in range(pairs + 1):
        spent = {key: clocked(works[key]) for key in (works if repetition % 2 else reversed(works))}
        if not repetition:  # it warms up
            continue
        for i, case in enumerate(cases):
            read = {**moved, (i, "floor"): case.size}
            times[i]["bytes_per_ms"].append(max(size / spent[key] for key, size in read.items()))
            for name in names:
                times[i][name].append(spent[i, name])
    return times


def operators(case: Case, count: int, pairs: int) -> dict[str, float]:
    """Milliseconds by operator of a pass of ``count`` rows, of the pass with the median total."""
    case.core.seconds()
    passes = []
    for _ in range(pairs):
        case.turn(count)
        passes.append(case.core.seconds())
    middle = sorted(passes, key=sum)[pairs // 2]
    return {name: 1e3 * seconds for name, seconds in zip(OPERATORS, middle, strict=True)}


def report(kind: str, case: Case, times: dict[str, list[float]], args: argparse.Namespace) -> dict[str, Any]:
    """Print what was found of one packed model and kernel set."""
    one, floor, total = median(times["1"]), median(times["floor"]), case.size + case.kv_bytes
    ratio = median(a / b for a, b in zip(times["1"], times["floor"], strict=True))
    against = median(a * rate / total for a, rate in zip(times["1"], times["bytes_per_ms"], strict=True))
    print(
        f"{kind}, {case.side}: {case.size / 1e6:.0f} MB of weights, {case.kv_bytes / 1e6:.1f} MB of KV; "
        f"bandwidth {median(times['bytes_per_ms']) / 1e6:.1f} GB/s (best {max(times['bytes_per_ms']) / 1e6:.1f})\n"
        f"  one row {one:.2f} ms (best {min(times['1']):.2f}), {against:.2f} x its bytes at that bandwidth, "
        f"{ratio:.2f} x reading the weights alone ({floor:.2f} ms)"
    )
    v = {n: median(a / b for a, b in zip(times[n], times["1"], strict=True)) for n in map(str, args.rows)}
    print("  v(T): " + "  ".join(f"{n}: {value:.2f}" for n, value in v.items()))
    print("  best ms: " + "  ".join(f"{n}: {min(times[n]):.2f}" for n in v))
    result = {
        "kind": kind,
        "kernels": case.runtime.kernels,
        "kv": case.runtime.kv,
        "context": case.context,
        "bytes": total,
        "floor_ms": floor,
        "one_row_ms": one,
        "v": v,
    }
    result |= {"bytes_per_ms": median(times["bytes_per_ms"]), "over_bandwidth": against, "over_weights": ratio}
    for count in (1, max(args.rows)) if 8 not in args.rows else (1, 8):
        split = operators(case, count, args.pairs)
        print(f"  {count} row(s), ms: " + "  ".join(f"{name} {ms:.2f}" for name, ms in split.items()))
        result[f"operators_{count}"] = split
    if args.prefill:
        spent = [clocked(lambda: case.prefill(args.prefill)) for _ in range(3)]
        result["prefill_ms"] = median(spent)
        print(f"  prefill of {args.prefill} tokens: {median(spent):.0f} ms (best {min(spent):.0f})")
    return result


def compared(kind: str, checkpoint: Any, vector: Vector, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One kind of weights under every kernel set wanted, in alternation; ratios are to the first set."""
    if kind == "stored":
        runtime = selfspec.load(args.model, runtime="cpu", threads=args.threads).runtime
        assert isinstance(runtime, CpuRuntime)
        weights = dict(runtime._weights)
    else:
        weights = packed_model(checkpoint, kind)
    cases = [Case(checkpoint, weights, args, side) for side in product(args.kernels, args.kv)]
    times = measure(cases, vector, args.rows, args.pairs)
    found = [report(kind, case, own, args) for case, own in zip(cases, times, strict=True)]
    for case, own, result in zip(cases[1:], times[1:], found[1:], strict=True):
        ratios = {n: [a / b for a, b in zip(own[n], times[0][n], strict=True)] for n in map(str, args.rows)}
        result["time_to_first"] = ratios
        lines = (f"{n}: {median(each):.3f} ({min(each):.2f} to {max(each):.2f})" for n, each in ratios.items())
        print(f"  time of {case.side} / {cases[0].side}: " + "  ".join(lines))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument(
        "--kinds", nargs="+", choices=(*KINDS, "stored"), default=["fp32", "bf16", "int8", "int4", "stored"]
    )
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--prefill", type=int, default=1000, help="tokens of the prefill measured; 0: none")
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS), help="rows of the passes; 1 is needed")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument(
        "--kv", nargs="+", choices=KV, default=[None], help="precisions of keys and values, side by side"
    )
    parser.add_argument(
        "--kernels", nargs="+", default=[None], help="kernel sets, side by side; default: the fastest"
    )
    args = parser.parse_args(argv)
    if 1 not in args.rows:
        parser.error("--rows needs 1: v(T) is a pass of T rows / one of one row")
    checkpoint = find_checkpoint(args.model)
    vector = Vector(args.threads or available_processors())
    results = [result for kind in args.kinds for result in compared(kind, checkpoint, vector, args)]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
