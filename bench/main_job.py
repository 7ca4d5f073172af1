"""The ratios of the main job, each measured side by side in one run: run nothing else beside it.

    python bench/main_job.py [--data FILE] [--pairs 7] [--tokens 32] [--exits 15,24] [--gamma 4] [--json]

1. Loop overhead per round, with a drafter and a model that cost nothing.
2. Plain decoding against transformers' `generate`, same weights (shared tensors), float32.
3. Early exit against transformers' `assistant_early_exit` at the same k and γ, without and with the
   confidence stop (threshold 0.4, transformers' default), and against our own plain decoding.

A ratio is the median over alternating pairs, with the 90 % interval of a bootstrap over the pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from selfspec import Sampling, drafters
from selfspec.context import Context, Text
from selfspec.decode import decode
from selfspec.engine import Engine
from selfspec.model import EMBEDDED, find_checkpoint
from selfspec.runtime.base import Cache, Runtime
from selfspec.runtime.torch import TorchRuntime
from selfspec.sampling import Chance

if TYPE_CHECKING:
    from collections.abc import Callable

PROMPTS = [
    "Explain in a few sentences why the sky is blue and the sunset is red.",
    "Write a short letter to a neighbour who plays loud music at night.",
    "A shop sells pens at 3 euros and books at 12 euros. What do 4 pens and 3 books cost?",
    "List five things to take along on a walk in the mountains, with a reason for each.",
]


class FreeCache(Cache):
    """Holds nothing."""

    slots, length, nbytes = 1, 10**9, 0

    def longer(self, length: int) -> FreeCache:
        return self


class FreeRuntime(Runtime):
    """A model that costs nothing: always the same logits, of a real vocabulary's size."""

    name, precision, value_bytes = "free", "float32", 4

    def __init__(self, config: Any) -> None:
        self.config = config
        self._logits = np.zeros((64, config.vocab_size), dtype=np.float32)
        self._hidden = np.zeros((64, 1), dtype=np.float32)

    def embed(self, tokens: Any) -> Any:
        return self._hidden[: len(tokens)]

    def run(self, hidden: Any, plan: Any, rows: Any, cache: Any, taps: Any = ()) -> Any:
        return hidden, {}

    def logits(self, hidden: Any) -> Any:
        return self._logits[: len(hidden)]

    def new_cache(self, slots: int, length: int) -> FreeCache:
        return FreeCache()

    def keep(self, cache: Any, rows: Any) -> None:
        pass


def overhead(config: Any, gamma: int, rounds: int = 2000) -> float:
    """Seconds of the loop per round when drafting and the model are free; greedy, every draft accepted."""
    runtime = FreeRuntime(config)
    drafter = drafters.create("scripted", config, {"script": lambda _, g: (0,) * g, "gamma": gamma})
    limit = 2 + rounds * (gamma + 1)
    text = Text(0, 0, [0], limit, Sampling(), Chance(0), lambda _: False)
    times = [r.ended - r.started for r in decode(Context(runtime, FreeCache()), [text], drafter) if r.index]
    return statistics.median(times)


class Run(NamedTuple):
    """One measured generation."""

    speed: float  # new tokens per second, prefill included
    tokens: tuple[int, ...]


Measure: TypeAlias = "Callable[[str], Run]"


def ratio(a: Measure, b: Measure, pairs: int, prompts: list[str]) -> dict[str, Any]:
    """Tokens per second of ``b`` over those of ``a``, over alternating pairs on the same prompt.

    ``equal`` counts the pairs with the same tokens: all of them, near-ties in float32 excepted.
    """
    a(prompts[0]), b(prompts[0])  # warm up
    runs: list[tuple[Run, Run]] = []
    for i in range(pairs):
        prompt = prompts[i % len(prompts)]
        first, second = (a, b) if i % 2 == 0 else (b, a)
        one, two = first(prompt), second(prompt)
        runs.append((one, two) if i % 2 == 0 else (two, one))
    speeds = [(one.speed, two.speed) for one, two in runs]
    equal = sum(one.tokens == two.tokens for one, two in runs)
    ratios = np.array([two / one for one, two in speeds])
    random = np.random.default_rng(0)
    boots = np.median(random.choice(ratios, size=(2000, len(ratios))), axis=1)
    low, high = np.quantile(boots, [0.05, 0.95])
    rates = [statistics.median(speed) for speed in zip(*speeds, strict=True)]
    return {
        "median": float(np.median(ratios)),
        "low": float(low),
        "high": float(high),
        "tokens_per_second": rates,
        "equal": equal,
        "pairs": pairs,
    }


class Bench:
    """One model, run by us and by transformers on the same tensors."""

    def __init__(self, tokens: int) -> None:
        checkpoint = find_checkpoint(EMBEDDED, notify=print)
        self.tokens = tokens
        self.model = AutoModelForCausalLM.from_pretrained(checkpoint.folder, dtype=torch.float32).eval()
        self.engine = Engine(TorchRuntime.of(self.model), checkpoint.tokenizer, checkpoint.name)

    def ours(self, **options: Any) -> Measure:
        """Our engine."""

        def measure(prompt: str) -> Run:
            done = self.engine.generate(prompt, max_new_tokens=self.tokens, ignore_eos=True, **options)
            return Run(done.stats.tokens_per_second, done.token_ids)

        return measure

    def theirs(self, **options: Any) -> Measure:
        """Transformers' generate; assistant settings go where it reads them."""
        config = self.model.generation_config
        config.num_assistant_tokens = options.pop("gamma", 4)
        config.num_assistant_tokens_schedule = "constant"
        config.eos_token_id = None  # as ours: go on past an end
        threshold = options.pop("confidence", 0.0)
        settings = {
            "max_new_tokens": self.tokens,
            "do_sample": False,
            "pad_token_id": 0,
            **options,
        }

        def measure(prompt: str) -> Run:
            config.assistant_confidence_threshold = threshold
            ids = self.engine.tokenizer.encode_chat([{"role": "user", "content": prompt}])
            start = time.perf_counter()
            out = self.model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), **settings)
            tokens = tuple(out[0, len(ids) :].tolist())
            return Run(len(tokens) / (time.perf_counter() - start), tokens)

        return measure


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="JSON lines with a field `turns` or `prompt`")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--exits", default="15,24")
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    prompts = PROMPTS
    if arguments.data:
        rows = [json.loads(line) for line in arguments.data.read_text(encoding="utf-8").splitlines()]
        prompts = [row["turns"][0] if "turns" in row else row["prompt"] for row in rows]
    bench = Bench(arguments.tokens)
    results: dict[str, Any] = {}

    def show(name: str, result: dict[str, Any]) -> None:
        results[name] = result
        rates = " / ".join(f"{rate:.1f}" for rate in result["tokens_per_second"])
        interval = f"[{result['low']:.2f}, {result['high']:.2f}]"
        equal = f"equal texts {result['equal']}/{result['pairs']}"
        print(f"{name:58s} {result['median']:.2f}x  {interval}  ({rates} tok/s; {equal})")

    print(f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, float32, {bench.engine.name}")
    for gamma in (0, 4):
        seconds = overhead(bench.engine.config, gamma)
        results[f"overhead seconds, gamma {gamma}"] = seconds
        print(f"loop overhead per round, gamma {gamma}: {seconds * 1e3:.3f} ms")
    plain = bench.ours(draft="plain")
    show("plain / transformers generate", ratio(bench.theirs(), plain, arguments.pairs, prompts))
    for layer in map(int, arguments.exits.split(",")):
        for stop in (0.0, 0.4):
            options = {"draft": "early_exit", "exit_layer": layer, "gamma": arguments.gamma, "confidence": stop}
            label = f"early exit k={layer} gamma={arguments.gamma} stop={stop}"
            rival = bench.theirs(assistant_early_exit=layer, gamma=arguments.gamma, confidence=stop)
            ours = bench.ours(**options)
            show(f"{label} / transformers early exit", ratio(rival, ours, arguments.pairs, prompts))
            show(f"{label} / our plain", ratio(plain, ours, arguments.pairs, prompts))
    show("ngram / our plain", ratio(plain, bench.ours(draft="ngram"), arguments.pairs, prompts))
    if arguments.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
