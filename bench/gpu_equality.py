"""What `gpu.py` checks before it measures: equal texts, rows to the last bit, and no wait inside a round."""

from __future__ import annotations

from typing import Any

import torch
from gpu_bench import Bench, early_exit
from gpu_models import random_weights

from selfspec.context import Context
from selfspec.decode import decode
from selfspec.drafters.plain import Plain
from selfspec.runtime.torch import TorchRuntime
from selfspec.runtime.torch_rounds import TorchRounds
from selfspec.types import LayerPlan, Rows, Sampling


def equality(bench: Bench) -> dict[str, Any]:
    """The same texts with and without drafts, rows to the last bit, and no wait inside a round."""
    shape = next(iter(bench.shapes.values()))
    found: dict[str, Any] = {}
    for dtype in (torch.float32, torch.bfloat16):
        config, weights = random_weights(shape, bench.device, dtype, idle_from=shape.layers // 2)
        runtime = bench.compiled(TorchRuntime(config, weights))
        name = str(dtype).removeprefix("torch.")
        drafter = early_exit(config, shape.layers // 2, 4)
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
