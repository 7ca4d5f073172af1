"""What `gpu.py` measures: bandwidth, three shapes, transformers, the embedded model, quantised matrices."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from gpu_bench import Bench, Run, early_exit, scripted
from gpu_models import random_weights

from selfspec.control import speedup
from selfspec.drafters.plain import Plain
from selfspec.errors import SelfspecError
from selfspec.measure.forecast import alpha_for
from selfspec.runtime.torch import TorchRuntime
from selfspec.types import LayerPlan, Rows, Sampling


def machine(bench: Bench) -> dict[str, Any]:
    """What runs, and how fast it copies: each byte is read once and written once."""
    size = (1 << 30) if bench.is_gpu else (1 << 24)
    source = torch.ones(size // 4, device=bench.device)
    target = torch.empty_like(source)
    seconds = bench.seconds(lambda: target.copy_(source), 10)
    name = torch.cuda.get_device_name() if bench.is_gpu else "cpu"
    return {"device": name, "torch": torch.__version__, "bandwidth": 2 * size / seconds}


def speed_of(name: str) -> Callable[[Bench], dict[str, Any]]:
    """Plain speed, v(T), c, loop overhead and S of one shape in bfloat16."""

    def section(bench: Bench) -> dict[str, Any]:
        shape = bench.shapes[name]
        k = shape.layers // 4
        config, weights = random_weights(shape, bench.device, torch.bfloat16, idle_from=k)
        runtime = bench.compiled(TorchRuntime(config, weights))
        plain = Plain(early_exit(config, k, 4).options, config)
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
        (f"scripted {alpha}", gamma, 0.0, 0.0, scripted(runtime.config, text, alpha, gamma))
        for alpha, gamma in ((0.6, 3), (0.8, 7), (1.0, 7))
    ]
    wanted += [(f"exit {k}", gamma, costs["c"], f, early_exit(runtime.config, k, gamma)) for gamma in (3, 7)]
    for name, gamma, c, shared, drafter in wanted:
        bench.generate(runtime, drafter)
        plain = Plain(drafter.options, runtime.config)
        pairs = [(bench.generate(runtime, plain), bench.generate(runtime, drafter)) for _ in range(3)]
        measured = statistics.median(drafted.rate / alone.rate for alone, drafted in pairs)
        rows = min(count for count in costs["v"] if count >= gamma + 1)
        alpha = alpha_for(pairs[0][1].per_round, gamma)
        assert alpha is not None, "more tokens in a round than it can have"
        formula = speedup(alpha, gamma, c, costs["v"][rows], shared)
        equal = all(alone.tokens == drafted.tokens for alone, drafted in pairs)
        found.append(
            {"draft": name, "gamma": gamma, "alpha": alpha, "S": measured, "formula": formula, "equal": equal}
        )
    return found


def transformers(bench: Bench) -> dict[str, Any]:
    """Plain decoding beside transformers on the same tensors: eager, and static cache with compiled forward."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = next(iter(bench.shapes.values()))
    settings = LlamaConfig(**shape.for_transformers(), max_position_embeddings=4096)
    with torch.device(bench.device):
        model = LlamaForCausalLM(settings).to(torch.bfloat16).eval()
    runtime = bench.compiled(TorchRuntime.of(model))
    plain = Plain(early_exit(runtime.config, 1, 1).options, runtime.config)
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
            plain = Plain(early_exit(config, 1, 1).options, config)
            bench.generate(runtime, plain)
            rate = bench.generate(runtime, plain).rate
            limit = bench.results["machine"]["bandwidth"] / runtime.pass_bytes
            found[dtype] = {"plain_tokens_per_second": rate, "share_of_bandwidth_limit": rate / limit}
        except SelfspecError as error:  # no torchao, or a device that cannot
            found[dtype] = {"left out": str(error)}
        except Exception as error:  # noqa: BLE001 (the other one may run)
            found[dtype] = {"failed": str(error).splitlines()[0]}
    return found
