"""Check and measure the torch runtime on a GPU, in one go and under 8 minutes: run nothing else beside it.

    python bench/gpu.py --out gpu.json              everything, on the first GPU
    python bench/gpu.py --rehearse                  the same on the CPU with tiny shapes, in a minute or two
    python bench/gpu.py --predict                   what the cost model expects; measures nothing

It needs torch, transformers and this repository. What a section cannot do (memory, a missing package, its deadline)
is reported, and the others go on; after each section --out is written. See docs/gpu.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import statistics
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if importlib.util.find_spec("selfspec") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch
from gpu_models import SHAPES, TINY_SHAPES, Shape, predictions, random_weights

BUDGET = 460.0  # seconds of all sections together


def _without_extras() -> None:
    """Stand in for two small packages of the base, which torch and transformers do not bring."""
    if importlib.util.find_spec("array_api_compat") is None:
        module: Any = types.ModuleType("array_api_compat")
        own: Any = types.SimpleNamespace(
            **{name: getattr(torch, name) for name in dir(torch) if not name.startswith("_")}
        )
        own.astype = lambda array, dtype: array.to(dtype)
        own.asarray = lambda array, copy=None, device=None: torch.as_tensor(array, device=device).clone()
        module.array_namespace = lambda *_: own
        module.device = lambda array: array.device
        module.to_device = lambda array, device: array.to(device)
        sys.modules["array_api_compat"] = module
    if importlib.util.find_spec("platformdirs") is None:
        os.environ.setdefault("SELFSPEC_CACHE", str(Path.home() / ".cache" / "selfspec"))


_without_extras()

from selfspec.context import Context, Text  # noqa: E402
from selfspec.control import expected_tokens, speedup  # noqa: E402
from selfspec.decode import decode  # noqa: E402
from selfspec.drafters.early_exit import EarlyExit, EarlyExitOptions  # noqa: E402
from selfspec.drafters.plain import Plain  # noqa: E402
from selfspec.drafters.scripted import Scripted, ScriptedOptions  # noqa: E402
from selfspec.runtime.torch import TorchRuntime  # noqa: E402
from selfspec.runtime.torch_rounds import TorchRounds  # noqa: E402
from selfspec.sampling import Chance  # noqa: E402
from selfspec.types import LayerPlan, Rows, Sampling  # noqa: E402


@dataclass
class Bench:
    """How much is measured, and where."""

    device: torch.device
    shapes: dict[str, Shape]
    prompt: int
    new: int
    repeats: int
    backend: Any
    results: dict[str, Any] = field(default_factory=dict)

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    def wait(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize()

    def seconds(self, work: Callable[[], Any], times: int = 0) -> float:
        """Seconds of one call, the median of groups that end in one wait: what the device needs, not the host."""
        work()
        work()
        found = []
        for _ in range(3):
            self.wait()
            started = time.perf_counter()
            for _ in range(times or self.repeats):
                work()
            self.wait()
            found.append((time.perf_counter() - started) / (times or self.repeats))
        return statistics.median(found)

    def compiled(self, runtime: TorchRuntime) -> Any:
        made: Any = runtime.compiled("on", lambda line: print(f"    {line}", flush=True))
        made.compiler.backend = self.backend
        return made

    def text(self, limit: int, sampling: Sampling, vocabulary: int) -> Text:
        prompt = [(37 * i + 11) % vocabulary for i in range(self.prompt)]
        return Text(0, 0, prompt, self.prompt + limit, sampling, Chance(1), lambda _: False)

    def generate(self, runtime: Any, drafter: Any, sampling: Sampling | None = None) -> Run:
        """One text through the real loop."""
        text = self.text(self.new, sampling or Sampling(), runtime.config.vocab_size)
        cache = runtime.new_cache(1, self.prompt + self.new)
        rounds = [r for r in decode(Context(runtime, cache), [text], drafter) if r.index]
        tokens = [len(round_.commits[0].tokens) for round_ in rounds]
        # the first rounds are captured, the last one may be cut
        inner = rounds[len(rounds) // 4 : -1] or rounds
        own = tokens[len(rounds) // 4 : -1] or tokens
        return Run(
            text.tokens[self.prompt :], sum(own) / (inner[-1].ended - inner[0].started), statistics.fmean(own)
        )


@dataclass(frozen=True)
class Run:
    """Tokens of a text, tokens per second of its rounds, tokens per round."""

    tokens: list[int]
    rate: float
    per_round: float


# -- sections ---------------------------------------------------------------------------------------------


def machine(bench: Bench) -> dict[str, Any]:
    """What runs, and how fast it copies: each byte is read once and written once."""
    size = (1 << 30) if bench.is_gpu else (1 << 24)
    source = torch.ones(size // 4, device=bench.device)
    target = torch.empty_like(source)
    seconds = bench.seconds(lambda: target.copy_(source), 10)
    name = torch.cuda.get_device_name() if bench.is_gpu else "cpu"
    return {"device": name, "torch": torch.__version__, "bandwidth": 2 * size / seconds}


def equality(bench: Bench) -> dict[str, Any]:
    """The same texts with and without drafts, rows to the last bit, and no wait inside a round."""
    shape = next(iter(bench.shapes.values()))
    found: dict[str, Any] = {}
    for dtype in (torch.float32, torch.bfloat16):
        config, weights = random_weights(shape, bench.device, dtype, idle_from=shape.layers // 2)
        runtime = bench.compiled(TorchRuntime(config, weights))
        name = str(dtype).removeprefix("torch.")
        drafter = _early_exit(config, shape.layers // 2, 4)
        plain, drafted = bench.generate(runtime, Plain(drafter.options, config)), bench.generate(runtime, drafter)
        found[f"{name} texts equal"] = plain.tokens == drafted.tokens
        found[f"{name} tokens per round"] = drafted.per_round
        found[f"{name} rows bit-identical"] = _is_row_invariant(runtime)
        found[f"{name} as eager"] = _against_eager(bench, runtime, weights)
        if bench.is_gpu:
            found[f"{name} waits in a round"] = _waits(bench, runtime, drafter)
            found[f"{name} graphs"] = runtime.compiler.captured or runtime.compiler.graph_failure
        del runtime, weights
    return found


def _is_row_invariant(runtime: Any) -> bool:
    """Whether eight rows of one pass are, one by one, what they are together."""
    full = LayerPlan.full(runtime.config.num_layers)
    rows = Rows.of([0] * 8, range(8))
    entering = runtime.embed(list(range(3, 11)), rows.positions)
    cache = runtime.new_cache(1, 64)
    ok = True
    for _ in range(3):  # as it is, captured, and replayed
        together = runtime.run(entering, full, rows, cache)[0]
        scored = runtime.scored(together)
        for i in range(8):
            alone = runtime.run(entering[i : i + 1], full, rows.take([i]), cache)[0]
            ok &= torch.equal(alone[0], together[i]) and torch.equal(runtime.scored(alone)[0], scored[i])
    return ok


def _against_eager(bench: Bench, runtime: Any, weights: Any) -> dict[str, float]:
    """The largest difference of logits from the runtime as it is, beside the largest logit."""
    plain = TorchRuntime(runtime.config, weights)
    logits = []
    for one in (plain, runtime):
        rows = Rows.of([0] * 8, range(8))
        hidden = one.embed(list(range(3, 11)), rows.positions)
        hidden, _ = one.run(hidden, LayerPlan.full(one.config.num_layers), rows, one.new_cache(1, 64))
        logits.append(torch.as_tensor(one.logits(hidden)))
    return {"difference": float((logits[0] - logits[1]).abs().max()), "largest": float(logits[0].abs().max())}


def _waits(bench: Bench, runtime: Any, drafter: Any) -> str:
    """What waited for the device in a round, beside its one transfer; "" for nothing."""
    fetched = TorchRounds.fetched

    def allowed(self: TorchRounds, numbers: torch.Tensor) -> list[int]:
        torch.cuda.set_sync_debug_mode("default")
        try:
            return fetched(self, numbers)
        finally:
            torch.cuda.set_sync_debug_mode("error")

    text = bench.text(bench.new, Sampling(), runtime.config.vocab_size)
    cache = runtime.new_cache(1, bench.prompt + bench.new)
    TorchRounds.fetched = allowed  # type: ignore[method-assign]
    try:
        for round_ in decode(Context(runtime, cache), [text], drafter):
            if round_.index == 6:  # everything is captured
                torch.cuda.set_sync_debug_mode("error")
            if round_.index == 20:  # the last drafts are shorter, and captured anew
                break
    except RuntimeError as error:
        return str(error).splitlines()[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
        TorchRounds.fetched = fetched  # type: ignore[method-assign]
    return ""


def shape_section(name: str) -> Callable[[Bench], dict[str, Any]]:
    """Plain speed, v(T), c, loop overhead and S of one shape in bfloat16."""

    def section(bench: Bench) -> dict[str, Any]:
        shape = bench.shapes[name]
        k = shape.layers // 4
        config, weights = random_weights(shape, bench.device, torch.bfloat16, idle_from=k)
        runtime = bench.compiled(TorchRuntime(config, weights))
        plain = Plain(_early_exit(config, k, 4).options, config)
        bench.generate(runtime, plain)
        base = bench.generate(runtime, plain)
        limit = bench.results["machine"]["bandwidth"] / runtime.pass_bytes
        found: dict[str, Any] = {
            "compile_seconds": runtime.compiler.seconds,
            "plain_tokens_per_second": base.rate,
            "share_of_bandwidth_limit": base.rate / limit,
        }
        passes = {rows: _pass_seconds(bench, runtime, rows) for rows in (1, 2, 4, 8, 16)}
        found["v"] = {rows: seconds / passes[1] for rows, seconds in passes.items()}
        found["loop_overhead"] = 1.0 - passes[1] * base.rate
        found["c"] = _draft_cost(bench, runtime, k, passes[1])
        f = min(max(found["c"] - _head_seconds(bench, runtime) / passes[1], 0.0), 1.0)
        found["f"] = f
        found["speedups"] = _speedups(bench, runtime, base, found, (k, f))
        return found

    return section


def _pass_seconds(bench: Bench, runtime: Any, rows: int) -> float:
    full, cache = LayerPlan.full(runtime.config.num_layers), runtime.new_cache(1, bench.prompt + bench.new)
    where = Rows.of([0] * rows, range(bench.prompt, bench.prompt + rows))
    entering = runtime.embed([7] * rows, where.positions)
    return bench.seconds(lambda: runtime.scored(runtime.run(entering, full, where, cache)[0]))


def _head_seconds(bench: Bench, runtime: Any) -> float:
    hidden = runtime.embed([7], Rows.of([0], [0]).positions)
    return bench.seconds(lambda: runtime.scored(hidden))


def _draft_cost(bench: Bench, runtime: Any, k: int, whole: float) -> float:
    """The c of an exit at ``k``: a step of a draft of 4, over a pass."""
    from selfspec.runtime.on_device import Start

    cache, plan = runtime.new_cache(1, bench.prompt + bench.new), LayerPlan.exit_at(runtime.config.num_layers, k)
    start = [Start(0, bench.prompt, 7, 4)]
    return bench.seconds(lambda: runtime.on_device.draft(plan, start, cache, Sampling())) / 4 / whole


def _speedups(bench: Bench, runtime: Any, base: Run, costs: dict[str, Any], exits: tuple[int, float]) -> list[Any]:
    """Scripted drafts of known acceptance, and an exit that is always right, each against the formula."""
    found = []
    k, f = exits
    text = bench.text(bench.new, Sampling(), runtime.config.vocab_size).tokens + base.tokens
    wanted: list[tuple[str, int, float, float, Any]] = [
        (f"scripted {alpha}", gamma, 0.0, 0.0, _scripted(runtime.config, text, alpha, gamma))
        for alpha, gamma in ((0.6, 3), (0.8, 7), (1.0, 7))
    ]
    wanted += [(f"exit {k}", gamma, costs["c"], f, _early_exit(runtime.config, k, gamma)) for gamma in (3, 7)]
    for name, gamma, c, shared, drafter in wanted:
        bench.generate(runtime, drafter)
        plain = Plain(drafter.options, runtime.config)
        pairs = [(bench.generate(runtime, plain), bench.generate(runtime, drafter)) for _ in range(3)]
        measured = statistics.median(drafted.rate / alone.rate for alone, drafted in pairs)
        rows = min(count for count in costs["v"] if count >= gamma + 1)
        alpha = _alpha(pairs[0][1].per_round, gamma)
        formula = speedup(alpha, gamma, c, costs["v"][rows], shared)
        equal = all(alone.tokens == drafted.tokens for alone, drafted in pairs)
        found.append(
            {"draft": name, "gamma": gamma, "alpha": alpha, "S": measured, "formula": formula, "equal": equal}
        )
    return found


def _alpha(per_round: float, gamma: int) -> float:
    """The acceptance rate whose expected tokens per round these are."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, gamma) < per_round else (low, middle)
    return high


def _early_exit(config: Any, k: int, gamma: int) -> EarlyExit:
    return EarlyExit(EarlyExitOptions(exit_layer=k, gamma=gamma), config)


def _scripted(config: Any, text: list[int], alpha: float, gamma: int) -> Scripted:
    """Right with probability ``alpha`` at each place, the same places in every run."""

    def script(tokens: Any, most: int) -> list[int]:
        at = len(tokens)
        return [
            token if (at + i) * 0.6180339887 % 1.0 < alpha else (token + 1) % config.vocab_size
            for i, token in enumerate(text[at : at + most])
        ]

    return Scripted(ScriptedOptions(script=script, gamma=gamma), config)


def transformers_section(bench: Bench) -> dict[str, Any]:
    """Plain decoding beside transformers on the same tensors: eager, and static cache with compiled forward."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = next(iter(bench.shapes.values()))
    settings = LlamaConfig(**shape.for_transformers(), max_position_embeddings=4096)
    with torch.device(bench.device):
        model = LlamaForCausalLM(settings).to(torch.bfloat16).eval()
    runtime = bench.compiled(TorchRuntime.of(model))
    plain = Plain(_early_exit(runtime.config, 1, 1).options, runtime.config)
    ids = torch.tensor([bench.text(1, Sampling(), shape.vocabulary).tokens], device=bench.device)

    def theirs(**how: Any) -> float:
        rates = []
        for count in (1, bench.new):
            bench.wait()
            started = time.perf_counter()
            model.generate(ids, do_sample=False, min_new_tokens=count, max_new_tokens=count, **how)
            bench.wait()
            rates.append(time.perf_counter() - started)
        return (bench.new - 1) / (rates[1] - rates[0])

    ways: dict[str, Callable[[], float]] = {
        "selfspec": lambda: bench.generate(runtime, plain).rate,
        "transformers eager": theirs,
    }
    if bench.is_gpu:
        ways["transformers static + compile"] = lambda: theirs(cache_implementation="static")
    for way in ways.values():
        way()
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(3):
        for name, way in ways.items():
            rates[name].append(way())
    return {f"{name} tokens/s": statistics.median(own) for name, own in rates.items()}


def embedded(bench: Bench) -> dict[str, Any]:
    """The embedded model, as a user runs it: tokens per second, and equal texts."""
    import selfspec

    engine = selfspec.load(device=bench.device.type, dtype="bfloat16", compile="on")
    engine.runtime.compiler.backend = bench.backend
    prompt = "Write a short poem about a river. Start every line with 'The river'."
    found: dict[str, Any] = {}
    texts = []
    ways = {"plain": {}, "ngram": {}, "early_exit": {"exit_layer": 26, "gamma": 2}}
    for _ in range(2):
        for draft, options in ways.items():
            made = engine.generate(prompt, draft=draft, max_new_tokens=bench.new, ignore_eos=True, **options)
            texts.append(made.text)
            found[f"{draft} tokens/s"] = made.stats.tokens_per_second
    found["texts equal"] = len(set(texts)) == 1
    return found


def quantised(bench: Bench) -> dict[str, Any]:
    """The largest shape with matrices in int8 and int4, by torchao."""
    from selfspec.runtime.torch_quantised import quantise

    name, shape = list(bench.shapes.items())[-1]
    found: dict[str, Any] = {"shape": name}
    for dtype in ("int8", "int4"):
        try:
            config, weights = random_weights(shape, bench.device, torch.bfloat16)
            quantise(config, weights, dtype)
            runtime = bench.compiled(TorchRuntime(config, weights))
            runtime.precision = dtype
            plain = Plain(_early_exit(config, 1, 1).options, config)
            bench.generate(runtime, plain)
            rate = bench.generate(runtime, plain).rate
            limit = bench.results["machine"]["bandwidth"] / runtime.pass_bytes
            found[dtype] = {"plain_tokens_per_second": rate, "share_of_bandwidth_limit": rate / limit}
        except Exception as error:  # noqa: BLE001 (the other one may run)
            found[dtype] = {"failed": str(error).splitlines()[0]}
    return found


# -- running them -----------------------------------------------------------------------------------------


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


def run(
    bench: Bench, sections: dict[str, tuple[float, Callable[[Bench], dict[str, Any]]]], out: Path | None
) -> None:
    """Each section within its seconds, and all within the budget."""
    ends = time.perf_counter() + BUDGET
    for name, (seconds, section) in sections.items():
        print(f"{name}", flush=True)
        started = time.perf_counter()
        try:
            with deadline(max(min(seconds, ends - started), 1.0)):
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
            out.write_text(json.dumps(bench.results, indent=2, default=str) + "\n", encoding="utf-8")


def show(result: Any, indent: int = 4) -> None:
    """A table of names and numbers."""
    for name, value in result.items():
        if isinstance(value, dict):
            print(f"{' ' * indent}{name}")
            show(value, indent + 4)
        elif isinstance(value, list):
            for entry in value:
                print(" " * (indent + 2) + "  ".join(f"{key} {_number(one)}" for key, one in entry.items()))
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
        print(predictions())
        return
    if not arguments.rehearse and not torch.cuda.is_available():
        parser.error("torch finds no CUDA GPU here; --rehearse runs the same on the CPU")
    backend = None if arguments.backend == "none" else arguments.backend
    if arguments.rehearse:
        bench = Bench(torch.device("cpu"), TINY_SHAPES, 16, 40, 2, backend if arguments.backend else "eager")
    else:
        bench = Bench(torch.device("cuda"), SHAPES, 96, 192, 30, backend if arguments.backend else "inductor")
    sections: dict[str, tuple[float, Callable[[Bench], dict[str, Any]]]] = {
        "machine": (20.0, machine),
        "equality": (90.0, equality),
        **{name: (90.0, shape_section(name)) for name in bench.shapes},
        "transformers": (80.0, transformers_section),
        "embedded": (60.0, embedded),
        "quantised": (80.0, quantised),
    }
    if arguments.only:
        names = arguments.only.split(",")
        if unknown := [name for name in names if name not in sections]:
            parser.error(f"--only has {unknown[0]!r}; sections are {', '.join(sections)}")
        sections = {name: section for name, section in sections.items() if name in ("machine", *names)}
    if arguments.rehearse:  # a busy machine is no reason to fail
        sections = {name: (3.0 * seconds, section) for name, (seconds, section) in sections.items()}
    run(bench, sections, arguments.out)
    sys.exit(any("failed" in result for result in bench.results.values()))


if __name__ == "__main__":
    main()
