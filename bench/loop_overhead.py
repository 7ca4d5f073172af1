"""What the loop itself costs per round, with a drafter and a model that cost nothing: run nothing else beside it.

    python bench/loop_overhead.py [--gamma 0,4] [--rounds 2000] [--vocab 49152]

Everything else is measured by ``selfspec bench``.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import numpy as np

from selfspec import Sampling, drafters
from selfspec.context import Context, Text
from selfspec.decode import decode
from selfspec.model.config import ModelConfig
from selfspec.runtime.base import Cache, Runtime
from selfspec.sampling import Chance


class FreeCache(Cache):
    """Holds nothing."""

    slots, length, nbytes = 1, 10**9, 0

    def longer(self, length: int) -> FreeCache:
        return self


class FreeRuntime(Runtime):
    """A model that costs nothing: always the same logits, of a real vocabulary's size."""

    name, precision, value_bytes = "free", "float32", 4

    def __init__(self, vocab_size: int) -> None:
        self.config = ModelConfig("llama", 30, 576, 1536, 9, 3, 64, vocab_size, 10**9)
        self._logits = np.zeros((64, vocab_size), dtype=np.float32)
        self._hidden = np.zeros((64, 1), dtype=np.float32)

    def embed(self, tokens: Any, positions: Any = None) -> Any:
        return self._hidden[: len(tokens)]

    def run(self, hidden: Any, plan: Any, rows: Any, cache: Any, taps: Any = ()) -> Any:
        return hidden, {}

    def logits(self, hidden: Any) -> Any:
        return self._logits[: len(hidden)]

    def new_cache(self, slots: int, length: int) -> FreeCache:
        return FreeCache()

    def keep(self, cache: Any, rows: Any) -> None:
        pass


def overhead(runtime: Runtime, gamma: int, rounds: int) -> float:
    """Seconds of the loop per round; greedy, every draft accepted."""
    drafter = drafters.create("scripted", runtime.config, {"script": lambda _, g: (0,) * g, "gamma": gamma})
    limit = 2 + rounds * (gamma + 1)
    text = Text(0, 0, [0], limit, Sampling(), Chance(0), lambda _: False)
    times = [r.ended - r.started for r in decode(Context(runtime, FreeCache()), [text], drafter) if r.index]
    return statistics.median(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gamma", default="0,4")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--vocab", type=int, default=49152)
    arguments = parser.parse_args()
    for gamma in map(int, arguments.gamma.split(",")):
        seconds = overhead(FreeRuntime(arguments.vocab), gamma, arguments.rounds)
        print(f"gamma {gamma}: {seconds * 1e3:.3f} ms per round")


if __name__ == "__main__":
    main()
